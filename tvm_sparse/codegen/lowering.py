"""The lowering pipeline in which weights are folded, and building one kernel with it.

It is TVM's own S-TIR pipeline without common-subexpression elimination, with asynchronous copies enabled, with
FoldWeights just before host and device code are split, and without simplification after it: simplifying or scanning
the long chains of single assignments that folding leaves takes hours. Passes for Hexagon are left out too, one of which
took a fifth of the time of lowering a CUDA kernel and changed nothing.
"""

from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import pipeline

from tvm_sparse.codegen.cpu.hoisted_conditions import hoisted_conditions
from tvm_sparse.codegen.cpu.overlapping_vectors import overlapping_vectors
from tvm_sparse.codegen.cpu.prefetched_weights import prefetched_weights
from tvm_sparse.codegen.cpu.shared_tasks import shared_tasks
from tvm_sparse.codegen.cpu.skipped_rows import skipped_rows
from tvm_sparse.codegen.cpu.transposed_columns import transposed_columns
from tvm_sparse.codegen.cuda.cluster_reduction import cluster_reduction
from tvm_sparse.codegen.cuda.dependent_launch import dependent_launch
from tvm_sparse.codegen.cuda.kernel_library import built, launched_libraries
from tvm_sparse.codegen.cuda.multistage_pipeline import multistage_pipeline
from tvm_sparse.codegen.cuda.nvcc import complaint, cuda_compiler
from tvm_sparse.codegen.folding.fma_chains import Deferred
from tvm_sparse.codegen.folding.fold_weights import fold_weights_pass
from tvm_sparse.codegen.tir.bfloat16_vectors import bfloat16_vectors
from tvm_sparse.errors import BuildError
from tvm_sparse.target.resolve import target_json

# Name under which the pipeline is registered with TVM, for `tvm.compile(..., tir_pipeline=PIPELINE)`.
PIPELINE = "tvm_sparse"


def folding_passes(deferred: Deferred | None = None) -> list[tvm.transform.Pass]:
    """The passes up to `FoldWeights`; without `deferred` it writes the multiply-adds of CUDA kernels too."""
    t, s = tirx.transform, s_tir.transform
    return [
        *_blocks_to_loops(),
        *_loops_to_flat_code(),
        # Memory and synchronisation
        t.FP8ComputeLegalize(),
        t.VerifyMemory(),
        t.AnnotateEntryFunc(),
        s.ThreadSync("shared"),
        s.ThreadSync("shared.dyn"),
        s.ThreadSync("warp"),
        cluster_reduction,
        multistage_pipeline,
        t.ConvertSSA(),
        s.InferFragment(),
        s.LowerThreadAllreduce(),
        s.InjectPTXAsyncCopy(),
        s.MergeSharedMemoryAllocations(),
        transposed_columns,
        prefetched_weights,
        # The weights
        fold_weights_pass(deferred),
        shared_tasks,
    ]


def _blocks_to_loops() -> list[tvm.transform.Pass]:
    t, s = tirx.transform, s_tir.transform
    return [
        skipped_rows,
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
    ]


def _loops_to_flat_code() -> list[tvm.transform.Pass]:
    t, s = tirx.transform, s_tir.transform
    return [
        t.FlattenBuffer(),
        t.BF16ComputeLegalize(),
        t.NarrowDataType(32),
        # TVM's FlattenBuffer makes wrong indices of sums of remainders beneath some conditions.
        hoisted_conditions,
        s.LoopPartition(),
        overlapping_vectors,
        t.VectorizeLoop(True),
        s.InjectVirtualThread(),
        s.InjectDoubleBuffer(),
        t.StorageRewrite(),
        s.HoistIfThenElse(),
        t.UnrollLoop(),
        s.RenormalizeSplitPattern(),
        t.StmtSimplify(),
        t.RemoveNoOp(),
        s.RewriteUnsafeSelect(),
    ]


def _device_passes(deferred: Deferred) -> list[tvm.transform.Pass]:
    t = tirx.transform
    return [t.LowerWarpMemory(), t.LowerIntrin(), dependent_launch, deferred.write_pass()]


def register() -> None:
    """Register `PIPELINE` with TVM; calling it again changes nothing."""

    def factory() -> tuple:
        t, deferred = tirx.transform, Deferred()
        split = [
            t.SplitHostDevice(),
            t.MakePackedAPI(),
            t.FP8StorageLegalize(),
            bfloat16_vectors,
            t.BF16StorageLegalize(),
        ]
        lower = tvm.transform.Sequential([*folding_passes(deferred), *split])
        device = _device_passes(deferred)
        return lower, pipeline.finalize_host_passes, lambda: tvm.transform.Sequential(device)

    tirx.register_tir_pipeline(PIPELINE, factory)


def split(func: tirx.PrimFunc, target: tvm.target.Target) -> tuple[tirx.PrimFunc, tvm.IRModule]:
    """A scheduled function for CUDA as its host function, which launches kernels, and these as code is made of them.

    BuildError where it cannot be folded or lowered.
    """
    deferred, t = Deferred(), tirx.transform
    bound = target if target.host is not None else target.with_host(tvm.target.Target("llvm"))
    module = tvm.IRModule.from_expr(func.with_attr("global_symbol", "main"))
    with target:
        first = [t.BindTarget(bound), *folding_passes(deferred), t.SplitHostDevice()]
        module = tvm.transform.Sequential(first)(module)
        host, is_kernel = module["main"], t.Filter(lambda each: "tirx.kernel_launch_params" in each.attrs)
        last = [is_kernel, t.FP8StorageLegalize(), t.BF16StorageLegalize(), *_device_passes(deferred)]
        return host, tvm.transform.Sequential(last)(module)


# What LLVM says of code that its own optimiser broke.
_BROKEN = "Instruction does not dominate all uses"


def compiled(module: tvm.IRModule, target: tvm.target.Target, relax_pipeline: Any = None) -> Any:
    """`tvm.compile` with `PIPELINE`; at LLVM's level 2 where its level 3 breaks the code.

    LLVM 22's SLP vectoriser moves a use before its definition in some dense kernels of strided rows; LLVM's verifier
    finds that, so that nothing wrong is run.
    """
    register()
    libraries = built(launched_libraries(module), target)
    if libraries and relax_pipeline is not None:
        others = module.attrs["external_mods"] if module.attrs and "external_mods" in module.attrs else []
        module = module.with_attr("external_mods", [*others, *libraries])
    options = {} if relax_pipeline is None else {"relax_pipeline": relax_pipeline}

    def attempt(target: tvm.target.Target) -> Any:
        with cuda_compiler(target):
            executable = tvm.compile(module, target, tir_pipeline=PIPELINE, **options)
        if relax_pipeline is None:
            # Relax imports them itself.
            for each in libraries:
                executable.mod.import_module(each)
        return executable

    try:
        return attempt(target)
    except RuntimeError as error:
        if target.kind.name != "llvm" or _BROKEN not in str(error):
            raise
    return attempt(tvm.target.Target({**target_json(target), "opt-level": 2}))


def _unchecked() -> tvm.transform.PassContext:
    """The current context, but without checks of arguments: for a small kernel they are half of what LLVM has to do."""
    now = tvm.transform.PassContext.current()
    options = {**now.config, "tirx.disable_assert": True}
    return tvm.transform.PassContext(now.opt_level, now.required_pass, now.disabled_pass, now.instruments, options)


def build(func: tirx.PrimFunc, target: tvm.target.Target, **others: tirx.PrimFunc) -> tvm.runtime.Module:
    """Compile one scheduled function, whose name is ``main``, into a module, to be called with what it is made for.

    And `others` by their names.

    A model's functions check their arguments; this one does not, which is measured or tested.
    BuildError where there is no CUDA compiler, or it rejects the code; the sentence quotes it.
    """
    try:
        with _unchecked():
            functions = {name: each.with_attr("global_symbol", name) for name, each in others.items()}
            return compiled(tvm.IRModule({"main": func, **functions}), target).mod
    except RuntimeError as error:
        reason = complaint(error)
        if not reason:
            raise
        raise BuildError("CUDA kernel", f"the compiler rejects it: {reason}") from None
