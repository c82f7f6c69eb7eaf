"""The lowering pipeline in which weights are folded, and building one kernel with it.

It is TVM's own S-TIR pipeline without common-subexpression elimination, with asynchronous copies enabled, with
`FoldWeights` just before host and device code are split, and without simplification after it: simplifying or scanning
the long chains of single assignments that folding leaves takes hours.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from tvm_sparse import cuda_build, environment
from tvm_sparse.chains import Deferred
from tvm_sparse.cluster import join_parts_pass
from tvm_sparse.errors import BuildError
from tvm_sparse.fold import fold_weights_pass
from tvm_sparse.overlap import wait_for_earlier_pass
from tvm_sparse.ring import make_rings_pass

# Name under which the pipeline is registered with TVM, for `tvm.compile(..., tir_pipeline=PIPELINE)`.
PIPELINE = "tvm_sparse"


def _passes(deferred: Deferred | None = None) -> list[tvm.transform.Pass]:
    t, s = tirx.transform, s_tir.transform
    return [
        # Blocks to loops and buffers
        s.CanonicalizeLoop(),
        s.LowerCrossThreadReduction(),
        s.LowerInitBlock(),
        s.PlanAndUpdateBufferAllocationLocation(),
        s.ConvertBlocksToOpaque(),
        s.LiftThreadBinding(),
        s.ManifestSharedMemoryLocalStage(),
        s.CompactBufferAllocation(),
        s.LowerAutoCopy(),
        s.UnifyThreadBinding(),
        s.LowerMatchBuffer(),
        t.StmtSimplify(),
        s.InjectPermutedLayout(),
        s.AnnotateIrregularLoop(),
        s.InjectSoftwarePipeline(),
        s.TransformMmaBufferLayout(),
        s.LowerOpaqueBlock(),
        # Loops and buffers to flat code
        t.FlattenBuffer(),
        t.BF16ComputeLegalize(),
        t.NarrowDataType(32),
        s.LoopPartition(),
        t.VectorizeLoop(True),
        s.InjectVirtualThread(),
        s.InjectDoubleBuffer(),
        t.StorageRewrite(),
        s.LowerAsyncDMA(),
        s.HoistIfThenElse(),
        t.UnrollLoop(),
        s.RenormalizeSplitPattern(),
        t.StmtSimplify(),
        t.RemoveNoOp(),
        s.RewriteUnsafeSelect(),
        # Memory and synchronisation
        t.FP8ComputeLegalize(),
        s.VerifyVTCMLimit(),
        s.LowerVtcmAlloc(),
        t.VerifyMemory(),
        t.AnnotateEntryFunc(),
        s.ThreadSync("shared"),
        s.ThreadSync("shared.dyn"),
        s.ThreadSync("warp"),
        join_parts_pass(),
        make_rings_pass(),
        t.ConvertSSA(),
        s.InferFragment(),
        s.LowerThreadAllreduce(),
        s.InjectPTXAsyncCopy(),
        s.MergeSharedMemoryAllocations(),
        # The weights
        fold_weights_pass(deferred),
        # Host and device
        t.SplitHostDevice(),
        t.MakePackedAPI(),
        t.FP8StorageLegalize(),
        t.BF16StorageLegalize(),
    ]


def register() -> None:
    """Register `PIPELINE` with TVM; calling it again changes nothing."""
    from tvm.s_tir import pipeline

    def factory() -> tuple:
        deferred = Deferred()

        @tvm.transform.module_pass(opt_level=0, name="tvm_sparse.lower")
        def lower(module: tvm.IRModule, _context: object) -> tvm.IRModule:
            return tvm.ir.transform.Sequential(_passes(deferred))(module)

        def finalize_device() -> tvm.transform.Pass:
            t = tirx.transform
            passes = [t.LowerWarpMemory(), t.LowerIntrin(), wait_for_earlier_pass(), deferred.write_pass()]
            return tvm.ir.transform.Sequential(passes)

        return lower, pipeline.finalize_host_passes, finalize_device

    tirx.register_tir_pipeline(PIPELINE, factory)


@contextmanager
def cuda_compiler(target: tvm.target.Target) -> Iterator[None]:
    """Have TVM compile CUDA code with nvcc, else NVRTC, and with IEEE arithmetic instead of its ``--use_fast_math``.

    Large kernels are built in parts where nvcc is there (`cuda_build`).

    TVM reads these settings from the environment; the caller's own choice of compiler is kept. For a target without
    CUDA nothing changes.

    Raises
    ------
    BuildError
        TVM can use a GPU here, but there is no CUDA compiler.
    """
    if target.kind.name != "cuda":
        yield
        return
    mode = os.environ.get("TVM_CUDA_COMPILE_MODE") or ("nvcc" if shutil.which("nvcc") else "nvrtc")
    bindings = importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.bindings")
    # Without TVM's CUDA runtime the code is not compiled here at all.
    if mode == "nvrtc" and not bindings and tvm_ffi.get_global_func("device_api.cuda", allow_missing=True):
        raise BuildError("target cuda", "no CUDA compiler", hint="put nvcc on PATH or pip install 'tvm-sparse[cuda]'")
    options = os.environ.get("TVM_CUDA_NVRTC_EXTRA_OPTS", "")
    settings = {
        "TVM_CUDA_COMPILE_MODE": mode,
        "TVM_CUDA_NVCC_NO_FAST_MATH": "1",
        "TVM_CUDA_NVRTC_EXTRA_OPTS": f"{options} --ftz=false --prec-div=true --prec-sqrt=true".strip(),
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        with cuda_build.hooks(target):
            yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# What LLVM says of code that its own optimiser broke.
_BROKEN = "Instruction does not dominate all uses"


def compiled(module: tvm.IRModule, target: tvm.target.Target, relax_pipeline: Any = None) -> Any:
    """`tvm.compile` with `PIPELINE`; at LLVM's level 2 where its level 3 breaks the code.

    LLVM 22's SLP vectoriser moves a use before its definition in some dense kernels of strided rows; LLVM's verifier
    finds that, so that nothing wrong is run.
    """
    register()
    options = {} if relax_pipeline is None else {"relax_pipeline": relax_pipeline}

    def attempt(target: tvm.target.Target) -> Any:
        with target, cuda_compiler(target):
            return tvm.compile(module, target, tir_pipeline=PIPELINE, **options)

    try:
        return attempt(target)
    except RuntimeError as error:
        if target.kind.name != "llvm" or _BROKEN not in str(error):
            raise
    return attempt(tvm.target.Target({**environment.target_json(target), "opt-level": 2}))


def build(func: tirx.PrimFunc, target: tvm.target.Target) -> tvm.runtime.Module:
    """Compile one scheduled function into a module whose function ``main`` it is.

    Raises
    ------
    BuildError
        There is no CUDA compiler, or it rejects the code; the sentence quotes it.
    """
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    try:
        return compiled(module, target).mod
    except RuntimeError as error:
        # TVM's message is the whole source, megabytes of it, before what the compiler says.
        _, marker, complaint = str(error).partition("Compilation error:")
        if not marker:
            raise
        raise BuildError("CUDA kernel", f"the compiler rejects it: {complaint.strip()[:500]}") from None
