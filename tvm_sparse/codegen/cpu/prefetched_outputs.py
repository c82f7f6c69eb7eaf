"""Prefetches of what a block of filters stores, and of the residual that is added there, while its sums are computed.

A channel of the output is far from the next in memory, so that a block of filters is stored as 16 or more streams side
by side, of a page or less each, and as many of the residual are read: too many and too short for hardware prefetchers.
So each tile of pixels asks for a share of these lines. 64 filters of one tap on 64 channels of 56x56 took 1.18 times as
long without, 256 with a residual 1.16 (docs/lab/cpu-dense.md, "How fast are dense convolutions on a CPU?").
"""

import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad, Var
from tvm.tirx import BufferStore, For, Ramp, Stmt

from tvm_sparse.codegen.tir.tir_builder import function_name, loop_pass, prefetch, sequence, substituted
from tvm_sparse.errors import BuildError
from tvm_sparse.scheduling.annotations import STORED
from tvm_sparse.target.cpu_info import LINE

# What llvm.prefetch is told: to write or to read, for the caches of all levels or from the second on, data.
TO_WRITE, TO_READ = (1, 3, 1), (0, 2, 1)
# Lines of a tensor that a tile asks for at most.
MOST_LINES = 32


@loop_pass("PrefetchedOutputs", STORED)
def prefetched_outputs(func: tirx.PrimFunc, _loops: list[For]) -> Stmt:
    """The body in which each annotated loop asks for what is stored behind it."""
    loops, stores = list[For](), list[BufferStore]()
    tvm_ffi.structural_walk(func.body, [(For, loops.append), (BufferStore, stores.append)])
    # Flattened, a parameter is another variable of its name.
    store = next((each for each in stores if each.buffer.name == func.params[-1].name), None)
    if store is None:
        where = f"function {function_name(func)}"
        raise BuildError(where, "a loop is to fetch what is stored", "no store of the output", "one, of vectors")

    def rewrite(node: For) -> Stmt:
        return _prefetching(node, store, loops) if STORED in node.annotations else node

    return tvm_ffi.structural_map(func.body, (For, rewrite), order="post")


def _prefetching(tiles: For, store: BufferStore, loops: list[For]) -> Stmt:
    """The annotated loop over tiles, each of which asks for its share of what `store` writes behind it."""
    filters, plane, pixels = (int(each) for each in tiles.annotations[STORED])
    first = store.indices[0]
    for loop in loops:
        if not _encloses(loop, tiles):
            first = substituted(first, loop.loop_var, loop.min)
    first = first.base if isinstance(first, Ramp) else first
    lines = filters * -(-pixels // LINE)
    share = min(MOST_LINES, -(-lines // int(tiles.extent)))
    residuals, asked = _read_there(store), []
    for i in range(share):
        # Behind the last line is what other threads may write.
        number = tirx.min((tiles.loop_var - tiles.min) * share + i, lines - 1)
        place = first + tirx.floormod(number, filters) * plane + tirx.floordiv(number, filters) * LINE
        asked.append(prefetch(store.buffer, place, TO_WRITE))
        asked += [prefetch(residual, place, TO_READ) for residual in residuals]
    body = sequence([*asked, tiles.body])
    return For(tiles.loop_var, tiles.min, tiles.extent, tiles.kind, body, annotations=tiles.annotations)


def _read_there(store: BufferStore) -> list[Var]:
    """The tensors that a store reads where it writes: the residual, if there is one."""
    loads: list[TensorLoad] = []
    tvm_ffi.structural_walk(store.value, (TensorLoad, loads.append))
    there = [each.source for each in loads if tvm_ffi.structural_equal(each.indices[0], store.indices[0])]
    return list({each.name: each for each in there}.values())


def _encloses(outer: For, inner: For) -> bool:
    within: list[For] = []
    tvm_ffi.structural_walk(outer, (For, within.append))
    return any(each.loop_var.same_as(inner.loop_var) for each in within)
