"""One chunk of input channels in a ring of copies: what is copied, what is computed, and in which order (`ring`)."""

from __future__ import annotations

from dataclasses import dataclass

import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.tirx import For, Stmt, Var

from tvm_sparse.codegen.cuda.async_copies import ChunkCopies
from tvm_sparse.codegen.tir.tir_builder import barrier, committed, integer, substituted


@dataclass(frozen=True)
class Chunk:
    """One turn of the chunk loop: what is copied, and what is computed from the copy.

    `alone` says whether each thread block has a multiprocessor for itself.
    """

    var: Var
    count: int
    copies: ChunkCopies
    compute: Stmt
    length: int
    alone: bool

    def copied(self, index: tirx.Expr, start: tirx.Expr) -> Stmt:
        """The copy of chunk `index` into the buffer that begins at element `start`, committed as one group."""
        return committed(self.copies.at(index, start))

    def computed(self, index: tirx.Expr, start: tirx.Expr) -> Stmt:
        """The arithmetic on chunk `index`, which lies in the buffer that begins at element `start`."""

        def load(node: TensorLoad) -> tirx.Expr:
            if not node.source.same_as(self.copies.buffer):
                return node
            return tirx.BufferLoad(node.source, [each + start for each in node.indices])

        return substituted(tvm_ffi.structural_map(self.compute, (TensorLoad, load), order="post"), self.var, index)

    def turn(self, copies: list[Stmt], index: tirx.Expr, start: tirx.Expr) -> list[Stmt]:
        """The chunk `index`, which lies at `start`, behind a barrier, and `copies` of a later one.

        Right behind the barrier all warps would copy at once, and their loads from shared memory queue behind that.
        With the copies in the middle operator 10 took 324 us at batch 64 for 335, operator 9 600 for 621. A block that
        is alone waits for its copies: there they come first (operator 2: 3.6 us for 3.8).
        """
        nest = self.computed(index, start)
        if self.alone:
            return [barrier(), *copies, nest]
        first, *rest = _halves(nest) if copies else [nest]
        return [barrier(), first, *copies, *rest]


def _halves(loop: For) -> list[Stmt]:
    """The nest `loop` as two, one after the other; as it is where no loop of it turns twice."""
    count = int(loop.extent)
    if count == 1:
        return [_turning(loop, 1, body) for body in _halves(loop.body)] if isinstance(loop.body, For) else [loop]
    middle = (count + 1) // 2
    later = substituted(loop.body, loop.loop_var, loop.loop_var + integer(middle))
    return [_turning(loop, middle, loop.body), _turning(loop, count - middle, later)]


def _turning(loop: For, times: int, body: Stmt) -> Stmt:
    """`loop` with another body, so many times."""
    return For(loop.loop_var, integer(0), integer(times), loop.kind, body, annotations=loop.annotations)
