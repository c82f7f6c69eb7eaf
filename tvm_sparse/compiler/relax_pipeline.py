"""TVM's passes over a whole module, and ours among them."""

import tvm
from tvm import relax
from tvm.relax.backend.cpu_generic import pipeline as cpu_generic
from tvm.relax.backend.cuda import pipeline as cuda
from tvm.target import Target

from tvm_sparse.compiler.cpu_loops.schedule_batch_matmul import schedule_batch_matmul
from tvm_sparse.compiler.cpu_loops.schedule_elements import schedule_elements
from tvm_sparse.compiler.cpu_loops.schedule_interleaved import schedule_interleaved
from tvm_sparse.compiler.cpu_loops.schedule_loops import schedule_loops
from tvm_sparse.compiler.cpu_loops.schedule_matmul import schedule_matmul
from tvm_sparse.compiler.cpu_loops.schedule_rows import schedule_rows
from tvm_sparse.compiler.cpu_loops.schedule_transposes import schedule_transposes
from tvm_sparse.compiler.cpu_loops.vector_exponentials import vector_exponentials
from tvm_sparse.compiler.gpu_loops.default_schedules import default_schedules, schedule_rest
from tvm_sparse.compiler.gpu_loops.schedule_gemm import schedule_gemm
from tvm_sparse.compiler.gpu_loops.schedule_maps import schedule_maps
from tvm_sparse.compiler.gpu_loops.schedule_mean import schedule_mean
from tvm_sparse.compiler.gpu_loops.schedule_pool import schedule_pool
from tvm_sparse.compiler.rewriting.extremes import EXTREMES
from tvm_sparse.compiler.rewriting.guard_addresses import guard_addresses
from tvm_sparse.compiler.rewriting.own_results import own_results
from tvm_sparse.compiler.rewriting.resize_by_axes import RESIZE_BY_AXES
from tvm_sparse.compiler.rewriting.roi_align import ROI_ALIGN
from tvm_sparse.compiler.rewriting.rounding import ROUNDING
from tvm_sparse.compiler.rewriting.side_by_side import side_by_side
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.resolve import thread_count


def relax_pipeline(target: Target) -> tvm.transform.Pass:
    """TVM's own Relax pipeline for `target`, with schedules of ours for what its own schedules badly."""
    is_cpu = target.kind.name == "llvm"
    backend = cpu_generic if is_cpu else cuda
    legalize = [own_functions(is_cpu), *backend.legalize_passes(target)]
    if is_cpu:
        cpu, threads = CpuInfo.of(target), thread_count(target)
        legalize += [
            guard_addresses,
            vector_exponentials,
            schedule_batch_matmul(cpu, threads),
            schedule_matmul(threads),
        ]
        legalize += [schedule_elements(cpu.lanes), schedule_transposes(cpu.lanes), schedule_rows(cpu.lanes)]
        legalize += [schedule_interleaved, schedule_loops]
    else:
        # In the place of the last, which is TVM's own schedules.
        legalize[-1:] = [guard_addresses, schedule_gemm, schedule_mean, schedule_pool, schedule_maps]
        legalize += [default_schedules(), schedule_rest]
    dispatch, lower, finalize = (
        passes(target)
        for passes in (backend.library_dispatch_passes, backend.dataflow_lower_passes, backend.finalize_passes)
    )
    if is_cpu:
        # On a GPU the runner copies all results.
        lower = [*lower, own_results]
    else:
        finalize = [side_by_side(finalize, target)]
    return tvm.transform.Sequential([*dispatch, *legalize, *lower, *finalize])


def own_functions(is_cpu: bool) -> tvm.transform.Pass:
    """For a CPU or a GPU; run it once nothing else looks at operators."""
    of_cpu = {**RESIZE_BY_AXES, **ROUNDING} if is_cpu else {}
    return relax.transform.LegalizeOps({**EXTREMES, **ROI_ALIGN, **of_cpu})
