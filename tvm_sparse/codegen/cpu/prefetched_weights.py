"""Prefetches of the block of weights behind the one that a loop multiplies with.

In a network weights come from a level-3 cache or from memory, as those of other layers displaced them. Tiles of pixels
use a block of weights one after the other, and the first of them would wait for it: hardware prefetchers stop at the
end of a page. So each tile asks for a share of the next block. Layers of ResNet-50 on 7x7 took 1.16 to 1.3 times as
long without (docs/lab/cpu-dense.md, "How fast are dense convolutions on a CPU?").

Tiles ask before they begin, all at once. Between multiply-adds LLVM would store the sums again and again, as it takes
a prefetch for one that reads them.
"""

import tvm_ffi
from tvm.ir import Expr, TensorLoad
from tvm.tirx import BufferStore, For, Ramp, Stmt, Var

from tvm_sparse.codegen.tir.tir_builder import each_loop_pass, prefetch, sequence, substituted
from tvm_sparse.errors import BuildError
from tvm_sparse.scheduling.annotations import PREFETCH
from tvm_sparse.target.cpu_info import LINE

# Lines that a tile asks for at most: no more are on their way at a time.
MOST_LINES = 64
# What llvm.prefetch is told: to read, for the caches of all levels, data.
HINTS = (0, 3, 1)


@each_loop_pass("PrefetchedWeights", PREFETCH)
def prefetched_weights(tiles: For, where: str) -> Stmt:
    """The annotated loop over tiles, each of which asks for its share of the next block."""
    weights, start = _first_weight(tiles, where)
    floats, turn = int(tiles.annotations[PREFETCH]), tiles.loop_var - tiles.min
    lines = min(MOST_LINES, -(-floats // (LINE * int(tiles.extent))))
    asked = [prefetch(weights, start + floats + (turn * lines + i) * LINE, HINTS) for i in range(lines)]
    body = sequence([*asked, tiles.body])
    return For(tiles.loop_var, tiles.min, tiles.extent, tiles.kind, body, annotations=tiles.annotations)


def _first_weight(tiles: For, where: str) -> tuple[Var, Expr]:
    """The tensor of weights, of which vectors are loaded and none is stored, and the index of the block's first."""
    loads, stored, loops = list[TensorLoad](), list[Var](), list[For]()
    stores = (BufferStore, lambda node: stored.append(node.buffer))
    tvm_ffi.structural_walk(tiles.body, [(TensorLoad, loads.append), stores, (For, loops.append)])
    vectors = [each for each in loads if isinstance(each.indices[0], Ramp)]
    found = next((each for each in vectors if not any(map(each.source.same_as, stored))), None)
    if found is None:
        raise BuildError(f"function {where}", "a loop does not load weights", f"{len(loads)} loads", "a vector of them")
    start = found.indices[0].base
    for loop in loops:
        start = substituted(start, loop.loop_var, loop.min)
    return found.source, start
