"""One k-tile of a multistage pipeline: what is copied, what is computed, and in which order."""

from collections.abc import Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, TensorLoad
from tvm.tirx import For, Stmt, Var

from tvm_sparse.codegen.cuda.async_copies import KTileCopies
from tvm_sparse.codegen.tir.tir_builder import barrier, committed, integer, substituted


@dataclass(frozen=True)
class KTile:
    """The body of a k-tile loop over `var` of extent `count`: `copies` to shared memory, and `compute` from there.

    A k-tile takes `length` elements of shared memory. `is_alone` says whether each thread block has a multiprocessor
    for itself.
    """

    var: Var
    count: int
    copies: KTileCopies
    compute: Stmt
    length: int
    is_alone: bool

    def copied(self, index: Expr, start: Expr) -> Stmt:
        """The copy of k-tile `index` into the buffer that begins at element `start`, committed as one group."""
        return committed(self.copies.at(index, start))

    def computed(self, index: Expr, start: Expr) -> Stmt:
        """The arithmetic on k-tile `index`, which lies in the buffer that begins at element `start`."""

        def load(node: TensorLoad) -> Expr:
            if not node.source.same_as(self.copies.buffer):
                return node
            return tirx.BufferLoad(node.source, [each + start for each in node.indices])

        return substituted(tvm_ffi.structural_map(self.compute, (TensorLoad, load), order="post"), self.var, index)

    def step(self, index: Expr, start: Expr, copies: Sequence[Stmt], first: Sequence[Stmt] = ()) -> list[Stmt]:
        """The k-tile `index`, which lies at `start`: a barrier, what comes `first`, and `copies` of a later k-tile.

        Right behind the barrier all warps would copy at once, and their loads from shared memory queue behind that.
        With the copies in the middle operator 10 took 324 us at batch 64 for 335, operator 9 600 for 621. A block that
        is alone waits for its copies: there they come first (operator 2: 3.6 us for 3.8).
        """
        nest = self.computed(index, start)
        if self.is_alone:
            return [barrier(), *first, *copies, nest]
        half, *rest = _halves(nest) if copies else [nest]
        return [barrier(), *first, half, *copies, *rest]


def _halves(loop: For) -> list[Stmt]:
    """The nest `loop` as two, one after the other; as it is where no loop of it has two iterations."""
    count = int(loop.extent)
    if count == 1:
        return [_shortened(loop, 1, body) for body in _halves(loop.body)] if isinstance(loop.body, For) else [loop]
    middle = (count + 1) // 2
    later = substituted(loop.body, loop.loop_var, loop.loop_var + integer(middle))
    return [_shortened(loop, middle, loop.body), _shortened(loop, count - middle, later)]


def _shortened(loop: For, extent: int, body: Stmt) -> Stmt:
    """`loop` with another extent and body."""
    return For(loop.loop_var, integer(0), integer(extent), loop.kind, body, annotations=loop.annotations)
