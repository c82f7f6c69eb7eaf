"""Programmatic dependent launch: CUDA kernels that start while the one before them ends.

A GPU stands still for a fraction of a microsecond between one kernel and the next of a stream. The pass DependentLaunch
has every kernel launched before the one ahead of it has ended, and begin with a wait until that is complete and all it
wrote can be read. So kernels still follow each other, and memory is reused as before; only the launch is hidden.
(CUDA programming guide, "Programmatic Dependent Launch"; compute capability 9.0 and later.)

When the next kernel may start is up to the earlier one: `multistage_pipeline` places `launch_dependents` where the
schedule's `annotations.DependentLaunch` says. Blocks of the next kernel that start early wait on whichever
multiprocessors have room.
"""

from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.tirx import Evaluate, SeqStmt, Stmt

from tvm_sparse.codegen.tir.tir_builder import function_pass
from tvm_sparse.target.gpu import gpu_info

# Begins every kernel; `separate_compilation` knows it by name.
WAIT = "tvm_sparse_grid_dependency_wait"
_LAUNCH_DEPENDENTS = "tvm_sparse_launch_dependents"
_SOURCE = """
__forceinline__ __device__ void {name}() {{
  __asm__ __volatile__("griddepcontrol.{instruction};" ::: "memory");
}}
"""
# TVM's runtime launches kernels with this tag (its spelling) by ``cuLaunchKernelEx``; the other tag has to be the last.
LAUNCHED_EARLY, LAUNCHED_WITH_SHARED = "tirx.use_programtic_dependent_launch", "tirx.use_dyn_shared_memory"
_LAUNCH = "tirx.kernel_launch_params"


def launch_dependents() -> Stmt:
    """From here on the next kernel may start, as far as this thread is concerned."""
    return _call(_LAUNCH_DEPENDENTS, "launch_dependents")


@function_pass("DependentLaunch")
def dependent_launch(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func`, of a device, which waits for the kernel before it; that of a target that cannot is left alone."""
    if _LAUNCH not in func.attrs or not gpu_info(func.attrs["target"]).has_dependent_launch:
        return func
    tags = [str(tag) for tag in func.attrs[_LAUNCH]]
    tags.insert(len(tags) - (tags[-1] == LAUNCHED_WITH_SHARED), LAUNCHED_EARLY)
    return func.with_body(SeqStmt([_call(WAIT, "wait"), func.body])).with_attr(_LAUNCH, tags)


def _call(name: str, instruction: str) -> Stmt:
    return Evaluate(cuda_func_call(name, source_code=_SOURCE.format(name=name, instruction=instruction)))
