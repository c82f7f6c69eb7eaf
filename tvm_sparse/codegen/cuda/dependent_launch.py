"""CUDA kernels that start while the one before them ends: programmatic dependent launch.

A GPU stands still for a fraction of a microsecond between one kernel and the next of a stream. `WaitForEarlier` has
every kernel launched before the one ahead of it has ended, and begin with a wait until that is complete and all it
wrote can be read. So kernels still follow each other, and memory is reused as before; only the launch is hidden.
(CUDA programming guide, "Programmatic Dependent Launch"; compute capability 9.0 and later.)

When the next kernel may start is up to the earlier one, and the annotation `RELEASE` of its chunk loop says it (one of
`gpu_kernel.RELEASES`); `MakeRings` places the instruction:

* `AT_EXIT`, as thread blocks end;
* `LAST_CHUNK`, when all blocks have come to their last chunk;
* `AT_ONCE`, when all blocks have started.

Blocks of the next kernel that start early wait on whichever multiprocessors have room. Those of `AT_ONCE` kernels ask
for so much shared memory that none gets more than its share of them.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.tirx import Evaluate, SeqStmt, Stmt

from tvm_sparse.target.gpu import gpu_info

# Begins every kernel; `pieces` knows it by name.
WAIT = "tvm_sparse_after_earlier"
_RELEASE = "tvm_sparse_release"
_SOURCE = """
__forceinline__ __device__ void {name}() {{
  __asm__ __volatile__("griddepcontrol.{instruction};" ::: "memory");
}}
"""
# TVM's runtime launches kernels with this tag (its spelling) by ``cuLaunchKernelEx``; the other tag has to be the last.
_LAUNCHED_EARLY, _DYNAMIC = "tirx.use_programtic_dependent_launch", "tirx.use_dyn_shared_memory"
_LAUNCH = "tirx.kernel_launch_params"


def release() -> Stmt:
    """From here on the next kernel may start, as far as this thread is concerned."""
    return _call(_RELEASE, "launch_dependents")


def wait_for_earlier_pass() -> tvm.transform.Pass:
    """The pass `WaitForEarlier`, on device functions; those of other targets are left alone."""

    @tirx.transform.prim_func_pass(opt_level=0, name="tvm_sparse.WaitForEarlier")
    def wait(func: tirx.PrimFunc, _module: tvm.IRModule, _context: object) -> tirx.PrimFunc:
        if _LAUNCH not in func.attrs or not gpu_info(func.attrs["target"]).has_dependent_launch:
            return func
        tags = [str(tag) for tag in func.attrs[_LAUNCH]]
        tags.insert(len(tags) - (tags[-1] == _DYNAMIC), _LAUNCHED_EARLY)
        body = SeqStmt([_call(WAIT, "wait"), func.body])
        return tirx.PrimFunc(func.params, body, func.ret_type, func.attrs).with_attr(_LAUNCH, tags)

    return wait


def _call(name: str, instruction: str) -> Stmt:
    return Evaluate(cuda_func_call(name, source_code=_SOURCE.format(name=name, instruction=instruction)))
