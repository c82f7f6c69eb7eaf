"""Loads of every other float as loads of neighbours and a shuffle.

LLVM loads a vector of every other float one by one. Here it is two loads of neighbours, which vectors that begin alike
share, and a shuffle. One float more is read than wanted, which has to be there.
"""

import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.tirx import Expr, For, Ramp, Shuffle, Stmt

from tvm_sparse.codegen.tir.tir_builder import each_loop_pass
from tvm_sparse.errors import BuildError
from tvm_sparse.scheduling.annotations import EVERY_OTHER


@each_loop_pass("StridedLoads", EVERY_OTHER)
def strided_loads(loop: For, where: str) -> Stmt:
    """The annotated loop, in which vectors of every other float are shuffled."""
    found = list[TensorLoad]()

    def load(node: TensorLoad) -> Expr:
        (index,) = node.indices if len(node.indices) == 1 else (None,)
        if not isinstance(index, Ramp) or int(index.stride) != 2:
            return node
        found.append(node)
        lanes = int(index.lanes)
        both = [tirx.BufferLoad(node.source, [Ramp(index.base + i * lanes, 1, lanes)]) for i in range(2)]
        return Shuffle(both, list(range(0, 2 * lanes, 2)))

    body = tvm_ffi.structural_map(loop.body, (TensorLoad, load), order="post")
    if not found:
        raise BuildError(f"function {where}", "a loop does not load every other float", "0 loads", "1 or more")
    return For(loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations=loop.annotations)
