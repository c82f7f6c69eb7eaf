"""Schedule the fully connected layers of a CPU model, which TVM's CPU pipeline leaves as the plainest of loops.

They are no business of ours but for one thing: beside fast convolutions, 5 ms of ResNet-50's last layer would show.
"""

import tvm
from tvm import s_tir, tirx

from tvm_sparse.compiler.unscheduled import schedule_each

# Outputs computed at a time: as many accumulators as stay in registers, whole vectors if the size allows.
MOST_OUTPUTS = 128
VECTORS = (16, 8, 4, 1)


@tvm.transform.module_pass(opt_level=0, name="tvm_sparse.schedule_matmul")
def schedule_matmul(module: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
    """`module` with every unscheduled (N, K) x (K, M) product vectorised along M and parallel over tiles of M."""
    return schedule_each(module, _schedule)


def _schedule(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """`func` scheduled, or None where it is no product of matrices of known size."""
    schedule = s_tir.Schedule(func)
    blocks = {schedule.get(block).name_hint: block for block in schedule.get_child_blocks(schedule.get_sblock("root"))}
    if "matmul" not in blocks:
        return None
    loops = schedule.get_loops(blocks["matmul"])
    if len(loops) != 3 or not isinstance(schedule.get(loops[1]).extent, tirx.IntImm):
        return None
    row, column, reduction = loops
    outer, inner = schedule.split(column, [None, _tile(int(schedule.get(column).extent))])
    schedule.reorder(outer, row, reduction, inner)
    accumulators = schedule.cache_write(blocks["matmul"], 0, "local")
    schedule.reverse_compute_at(accumulators, row, preserve_unit_loops=True)
    schedule.vectorize(inner)
    schedule.vectorize(schedule.get_loops(accumulators)[-1])
    schedule.parallel(outer)
    schedule.decompose_reduction(blocks["matmul"], reduction)
    return schedule.mod["main"].with_attr("tirx.is_scheduled", True)


def _tile(extent: int) -> int:
    divisors = [d for d in range(1, min(extent, MOST_OUTPUTS) + 1) if extent % d == 0]
    whole = next(vector for vector in VECTORS if any(d % vector == 0 for d in divisors))
    return max(d for d in divisors if d % whole == 0)
