"""`bench`: a model that is compiled, or an artifact, timed beside dense ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from tvm_sparse.compiler.build_model import Compilation, file_of
from tvm_sparse.compiler.building.build_progress import told
from tvm_sparse.compiler.comparison.compare import Source
from tvm_sparse.display import tables
from tvm_sparse.display.live_line import steps
from tvm_sparse.frontend.prepare import PreparedModel
from tvm_sparse.reports.report import Part, Report, of_variants
from tvm_sparse.request.options import CompileOptions, refuse_for_compiled, takes
from tvm_sparse.request.request import Request
from tvm_sparse.request.variant import Variant
from tvm_sparse.runtime import artifact
from tvm_sparse.runtime.compiled_model import CompiledModel
from tvm_sparse.runtime.model_file import ModelFile
from tvm_sparse.runtime.multi_shape_model import MultiShapeModel
from tvm_sparse.runtime.verdict import Verdict
from tvm_sparse.target.compatibility import require_first
from tvm_sparse.verdict.measured import Built, measured

if TYPE_CHECKING:
    from typing_extensions import Unpack

BASELINE = "this is the baseline"


class Benchmark(Report):
    """What `bench` found: the times of each contender, and the verdict."""

    def _parts(self, document: dict[str, Any]) -> Iterator[Part]:
        title = f"{document['model']}: {document['threads']} thread(s), {document['rounds']} rounds in turns"
        yield tables.times(title, document["times"])
        yield from map(Text, document["notes"])
        yield Text(document["verdict"]["line"], style="bold")


@takes(CompileOptions)
def bench(
    source: Any,
    example_inputs: Any = None,
    *,
    repeat: int = 20,
    seed: int = 0,
    trust: bool = False,
    progress: bool | None = None,
    **options: Unpack[CompileOptions],
) -> Benchmark:
    """Time a model, compiled as `compile` does it, in turns with dense kernels and what else runs its source here.

    That is ONNX Runtime for an .onnx file on a CPU, where it is installed, and `torch.compile` for a model of torch on
    a GPU. Each runs in a process of its own, and outputs are compared first.

    Parameters
    ----------
    source
        A model as `tvm_sparse.compile` takes it, what that returned, or the folder of an artifact. Of the last two, the
        model that they hold is timed, with its largest inputs, beside the file that it was made of; alone where that is
        gone or was changed. Of the options these take `log` only.
    example_inputs
        As `tvm_sparse.compile` takes them.
    repeat
        Rounds of timing.
    seed
        Of random inputs.
    trust
        As `tvm_sparse.load` takes it.
    progress
        Whether to show how far it is; None: where standard error is a terminal or Jupyter runs.
    **options
        Of `CompileOptions`.

    Raises
    ------
    ModelError, UsageError, LogError, ArtifactError, BuildError
        The model, an option, the log or the artifact cannot be used, or something does not build or run.
    VerificationError
        The outputs differ.
    """
    request = Request.of(source, example_inputs, **options)
    timed = partial(_timed, seed=seed, repeat=repeat, progress=progress)
    is_folder = isinstance(source, str | Path) and Path(source).is_dir()
    if is_folder or isinstance(source, CompiledModel | MultiShapeModel):
        name = str(source) if is_folder else type(source).__name__
        refuse_for_compiled(name, options, "log")
        ours = Built(artifact.load(source, trust=trust), Path(source), trust) if is_folder else Built(source)
        found = timed(name, _of_built(ours, request, progress))
        if isinstance(ours.model, MultiShapeModel):
            names = [*ours.model.models]
            found["notes"].insert(0, f"compiled for: {'; '.join(names)}; timed with {names[-1]}")
        return Benchmark(found)
    require_first(request.device_index)

    def of_one(name: str, variant: Variant, prepared: PreparedModel) -> dict[str, Any]:
        return timed(name, _of_model(request, prepared, progress), Source.of(request, variant))

    return Benchmark(of_variants(request, progress, of_one))


Contenders = tuple[Built, CompiledModel | None, ModelFile | None, str]


def _timed(
    name: str, contenders: Contenders, source: Source | None = None, *, seed: int, repeat: int, progress: bool | None
) -> dict[str, Any]:
    """The document of a model whose contenders are timed in turns."""
    ours, dense, file, note = contenders
    with steps(progress) as say:
        say("timing")
        times = measured(ours, dense, file, seed, repeat, source=source)
    verdict = times.verdict(ours.model.verdict or Verdict.unknown(len(ours.model.report())))
    return {
        "model": name,
        "threads": times.threads,
        "rounds": times.rounds,
        "times": times.rows(),
        "notes": [*([note] if note else []), *times.notes],
        "verdict": replace(verdict, note="").to_json(),
    }


def _of_built(ours: Built, request: Request, progress: bool | None) -> Contenders:
    """What was compiled before, beside the model that it was made of, if that is still there."""
    model, file = ours.model, ours.model.file
    obstacle = "it was compiled from no file" if file is None else file.obstacle()
    if file is None or obstacle:
        return ours, None, None, f"timed alone: {obstacle}"
    given = {"target": model.target, "log": request.log, "allow_tf32": file.allow_tf32}
    of_file = Request(file.path, None, dtype=file.dtype, **given)
    inputs = model.signature.inputs
    batch = inputs[0].shape[0] if isinstance(model, MultiShapeModel) and model.has_batches else None
    with told(progress) as on_progress:
        prepared = of_file.prepared(Variant("", batch, {spec.name: spec.shape for spec in inputs}))
        dense = Compilation.of(of_file, prepared).build_dense(BASELINE, on_progress)
    return ours, dense, file, ""


def _of_model(request: Request, prepared: PreparedModel, progress: bool | None) -> Contenders:
    """What is compiled of a model, beside it."""
    compilation = Compilation.of(request, prepared)
    with told(progress) as on_progress:
        ours = compilation.build(on_progress)
    with told(progress) as on_progress:
        dense = compilation.build_dense(BASELINE, on_progress)
    return Built(ours), dense, file_of(request, prepared), ""
