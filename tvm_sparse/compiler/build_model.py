"""Model -> compiled model: import, fold, choose a kernel for each convolution, and build that plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from tvm.target import Target

from tvm_sparse.compiler.build_plan import build_plan
from tvm_sparse.compiler.building.build_kernels import OnProgress
from tvm_sparse.compiler.building.build_progress import told
from tvm_sparse.compiler.comparison.compare import Comparing, Source
from tvm_sparse.compiler.layouts.blocked_layers import with_blocks
from tvm_sparse.compiler.pipeline import Options, dense, planned
from tvm_sparse.compiler.plan.decision import Decision
from tvm_sparse.compiler.plan.dense_fallback import to_dense
from tvm_sparse.compiler.plan.expected_gain import times_of, verdict_of
from tvm_sparse.compiler.plan.plan import Plan
from tvm_sparse.compiler.variants import joined
from tvm_sparse.frontend.prepare import PreparedModel
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.request.options import CompileOptions, takes
from tvm_sparse.request.request import Request
from tvm_sparse.request.variant import Variant
from tvm_sparse.runtime.compiled_model import CompiledModel
from tvm_sparse.runtime.model_file import ModelFile
from tvm_sparse.runtime.multi_shape_model import AnyModel

if TYPE_CHECKING:
    from typing_extensions import Unpack


@takes(CompileOptions)
def compile(
    source: Any,
    example_inputs: Any = None,
    *,
    progress: OnProgress | bool | None = None,
    compare: bool | None = None,
    **options: Unpack[CompileOptions],
) -> AnyModel:
    """Compile a model with the fastest verified kernels that are known.

    Any thread may compile; one at a time does. A torch module must not be called by other threads meanwhile, as
    `torch.export` traces it where it is.

    Parameters
    ----------
    source
        A path of an .onnx or .pt2 file, a `torch.nn.Module`, or an `ExportedProgram`.
    example_inputs
        Of a module, its inputs: a tensor, or a tuple of them. Others need none.
    progress
        Called with a `BuildProgress` now and then while CUDA kernels are built. True shows a line on standard error,
        False nothing, and None that line where standard error is a terminal or Jupyter runs.
    compare
        Run the compiled model and its source once on a random input, and compare the outputs. An .onnx file runs in
        ONNX Runtime, in a process of its own. None: unless the environment variable TVM_SPARSE_COMPARE is 0.
    **options
        Of `CompileOptions`.

    Returns
    -------
    A `CompiledModel`, or with `batch` or several shapes a `MultiShapeModel`. Its `comparison` says what comparing
    found, or why nothing was compared.

    Raises
    ------
    ModelError
        The model cannot be used, or not with such a batch, or a weight is too large for `dtype`.
    UsageError
        The target or the `dtype` is unknown, or a package that reads the model is missing.
    LogError
        The log cannot be read, or holds records of a newer tvm-sparse.
    BuildError
        TVM cannot compile it.
    VerificationError
        It does not compute what its source does.
    """
    request = Request.of(source, example_inputs, **options)

    def compiled(variant: Variant) -> CompiledModel:
        with told(progress) as on_progress, comparing(request, variant, compare) as comparison:
            prepared = request.prepared(variant)
            comparison.expect(prepared)
            return finished(request, Compilation.of(request, prepared).build(on_progress), prepared, comparison)

    return joined({variant: compiled(variant) for variant in request.variants})


def finished(request: Request, model: CompiledModel, prepared: PreparedModel, comparison: Comparing) -> CompiledModel:
    """`model` of `request`: where that wants it, compared, and with the file that it is of."""
    model.run_on(request.device_index)
    comparison.judge(model)
    if len({variant.batch for variant in request.variants}) == 1:
        # Of several, the models are compared with each other.
        comparison.require_apart()
    model.file = file_of(request, prepared)
    return model


def file_of(request: Request, prepared: PreparedModel) -> ModelFile | None:
    """The file of what is `prepared`, as it was asked for; None of a module."""
    words = (request.source, request.dtype, request.allow_tf32)
    return ModelFile.of(*words, prepared.inputs, prepared.is_quantised)


def comparing(request: Request, variant: Variant, compare: bool | None = None) -> Comparing:
    """The comparison of what is compiled of a request's variant with its source; see `compile`."""
    known = {"target": request.resolved, "log": request.opened, "allow_tf32": request.allow_tf32}
    alone = partial(compile, **known, progress=False, compare=False)
    return Comparing(Source.of(request, variant), request.resolved, alone, request.allow_tf32, compare)


@dataclass(frozen=True)
class Compilation:
    """A prepared model, a target, a log, if any, and what is allowed: what all commands ask of these."""

    prepared: PreparedModel
    target: Target
    log: TuningLog | None
    options: Options = field(default_factory=Options)

    @classmethod
    def of(cls, request: Request, prepared: PreparedModel) -> Compilation:
        """Of one variant of what was asked for."""
        options = Options(request.allow_tf32, request.predict, request.strict_nonfinite)
        return cls(prepared, request.resolved, request.opened, options)

    @cached_property
    def plan(self) -> Plan:
        """What computes each layer, decided when it is first asked for."""
        # Products with zeros are asked for, those of whole filters too.
        prepared = self.prepared.as_given if self.options.strict_nonfinite else self.prepared
        return planned(prepared, self.target, self.log, self.options)

    def build(self, on_progress: OnProgress | None = None) -> CompiledModel:
        """The compiled model; errors as of `compile`."""
        model = build_plan(self.plan, on_progress, self.options.allow_tf32)
        # Of what was built: kernels that were wrong, or could not be verified, have given way to dense ones.
        built = [
            decision if row["schedule"] == decision.schedule else to_dense(decision, self.target, row["reason"])
            for row, decision in zip(model.decisions, self.plan.decisions, strict=True)
        ]
        plan = replace(self.plan, decisions=tuple(built))
        model.verdict = verdict_of(plan, self.options.allow_tf32)
        times = times_of(plan, self.options.allow_tf32)
        model.decisions = [{**row, "speedup": each.speedup} for row, each in zip(model.decisions, times, strict=True)]
        return model

    def build_dense(self, why: str, on_progress: OnProgress | None = None) -> CompiledModel:
        """The same with all filters and channels, by dense kernels alone, the fastest that are known."""
        whole = replace(self, prepared=self.prepared.as_given)
        return build_plan(dense(whole.plan, why), on_progress)


def build(
    prepared: PreparedModel,
    decisions: Sequence[Decision],
    target: Target,
    on_progress: OnProgress | None = None,
    allow_tf32: bool = False,
) -> CompiledModel:
    """Compile `prepared` as `decisions` say, whatever they say of blocks of channels; see `build_plan`."""
    return build_plan(with_blocks(Plan.of(prepared, decisions, target)), on_progress, allow_tf32)
