"""Schedule the dense linear layers of a GPU model that computes few images: matrix-vector products.

TVM's own schedule has 16 threads add up an output's products, 128 each in turn for ResNet-50's classifier: 11.5 us on
an H200, where reading the weight takes 2. Four times as many threads share them here, with several reads in flight.
"""

import tvm
from tvm import s_tir, tirx

from tvm_sparse.compiler.unscheduled import schedule_each

# Rows of the product at most: each reads the whole weight.
MOST_ROWS = 4
# Threads along the outputs, whose reads of a weight's row lie side by side, and along the sum; a thread's loop over the
# latter is unrolled so far.
MOST_COLUMNS, MOST_PARTS, UNROLLED = 16, 64, 8


@tvm.transform.module_pass(opt_level=0, name="tvm_sparse.schedule_gemv")
def schedule_gemv(module: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
    """`module` with every unscheduled (N, C) x (C, K) product of few rows scheduled for a GPU."""
    return schedule_each(module, _schedule)


def _schedule(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """`func` scheduled; None where it is no such product, or computes more than an epilogue beside it."""
    sch = s_tir.Schedule(func)
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    if not blocks or sch.get(blocks[0]).name_hint != "matmul":
        return None
    product, *steps = blocks
    extents = [sch.get(loop).extent for loop in sch.get_loops(product)]
    if len(extents) != 3 or not all(isinstance(each, tirx.IntImm) for each in extents) or int(extents[0]) > MOST_ROWS:
        return None
    shape = [int(extent) for extent in extents[:2]]
    if any([int(sch.get(loop).extent) for loop in sch.get_loops(step)] != shape for step in steps):
        return None
    for step in steps[:-1]:
        sch.compute_inline(step)
    # Whole sectors of a row, if the size allows.
    columns = next(each for each in (16, 8, _divisor(shape[1], MOST_COLUMNS)) if shape[1] % each == 0)
    parts = _divisor(int(extents[2]), MOST_PARTS)
    *_, c = sch.get_loops(product)
    _, part = sch.split(c, [None, parts])
    partial = sch.rfactor(part, 0)
    row, column, part = sch.get_loops(product)
    outer, inner = sch.split(column, [None, columns])
    sch.reorder(row, outer, inner, part)
    sch.bind(row, "blockIdx.y")
    sch.bind(outer, "blockIdx.x")
    sch.compute_at(partial, outer, preserve_unit_loops=True)
    *_, part_partial, _, inner_partial, c = sch.get_loops(partial)
    c_outer, c_inner = sch.split(c, [None, _divisor(int(sch.get(c).extent), UNROLLED)])
    sch.unroll(c_inner)
    for along_columns, along_parts in ((inner, part), (inner_partial, part_partial)):
        sch.bind(along_columns, "threadIdx.x")
        sch.bind(along_parts, "threadIdx.y")
    sch.set_scope(partial, 0, "local")
    if steps:
        sch.set_scope(product, 0, "local")
        sch.reverse_compute_at(steps[-1], outer, preserve_unit_loops=True)
        sch.bind(sch.get_loops(steps[-1])[-1], "threadIdx.x")
    sch.decompose_reduction(partial, c_outer)
    return sch.mod["main"].with_attr("tirx.is_scheduled", True)


def _divisor(extent: int, most: int) -> int:
    return max(d for d in range(1, most + 1) if extent % d == 0)
