"""A compiled model timed in turns with its dense twin, ONNX Runtime and torch.compile, and the verdict on that."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from tvm.target import Target

from tvm_sparse.compiler.build_model import Compilation
from tvm_sparse.compiler.building.dense_products import IN_TF32
from tvm_sparse.compiler.checking import onnx_session
from tvm_sparse.compiler.comparison.compare import Source
from tvm_sparse.conv.dtypes import INT8
from tvm_sparse.conv.storage import is_half
from tvm_sparse.errors import BuildError, ModelError, TvmSparseError
from tvm_sparse.measure import timing
from tvm_sparse.measure.quartiles import Quartiles
from tvm_sparse.runtime import artifact
from tvm_sparse.runtime.compiled_model import CompiledModel
from tvm_sparse.runtime.model_file import ModelFile
from tvm_sparse.runtime.multi_shape_model import AnyModel
from tvm_sparse.runtime.verdict import Verdict
from tvm_sparse.target.cpu import cpu_flags
from tvm_sparse.target.resolve import thread_count
from tvm_sparse.verdict import torch_compile
from tvm_sparse.verdict.agreement import check_agreement, schedules_of
from tvm_sparse.verdict.machine_load import MachineLoad, why_unreliable
from tvm_sparse.verdict.turns import MIN_ROUND_MS, Contender, Inputs, Running, Turns

OURS, DENSE, ONNX_RUNTIME, TORCH = "tvm-sparse", "dense, same compiler", "onnxruntime", "torch.compile"
# What a verdict calls these, and whose version it tells.
_TITLES = {DENSE: ("same compiler", ""), ONNX_RUNTIME: ("ONNX Runtime", "onnxruntime"), TORCH: (TORCH, "torch")}
# Of a CPU with tiles of its own: 10.8 to 14.9 ms for ResNet-50, ours with 90% zeros 20 (docs/lab/cpu-sparse.md).
BY_AMX = (
    "OpenVINO runs float32 files in bfloat16 on this CPU (AMX), about twice as fast as float32 with 90% zeros: "
    "compare it where bfloat16's accuracy is enough"
)


@dataclass(frozen=True)
class Built:
    """A model, and the folder that it was saved to, if it was; `trust` as `load` takes it."""

    model: AnyModel
    folder: Path | None = None
    trust: bool = False


@dataclass(frozen=True)
class Times:
    """Microseconds of a call in each round, by the name of the contender, ours first.

    `notes` say who was left out, `load` what else the machine did meanwhile.
    """

    threads: int
    times_us: dict[str, tuple[float, ...]]
    notes: tuple[str, ...] = ()
    load: MachineLoad | None = None

    @property
    def rounds(self) -> int:
        """How many there were."""
        return min(map(len, self.times_us.values()))

    def rows(self) -> list[dict[str, Any]]:
        """One object a contender."""
        return compared(self.times_us)

    def verdict(self, expected: Verdict) -> Verdict:
        """What was `expected`, as it was found; the fastest dense contender counts."""
        ours, *others = self.times_us
        medians = {name: Quartiles.of(values).median for name, values in self.times_us.items()}
        best = min(others, key=lambda name: medians[name], default=None)
        machine = self.load.to_json() if self.load is not None else None
        found = replace(
            expected,
            kind="measured",
            sparse_us=medians[ours],
            unreliable=why_unreliable(self.load, self.threads, self.times_us),
            note="; ".join(self.notes),
            details={"threads": self.threads, "rounds": self.rounds, "times": self.rows(), "machine": machine},
        )
        if best is None:
            return replace(found, speedup=None, dense_us=None, dense_name="", error=0.0)
        ratio = timing.speedup(self.times_us[ours], self.times_us[best])
        return replace(
            found,
            speedup=medians[best] / medians[ours],
            dense_us=medians[best],
            dense_name=_title(best),
            error=(ratio.high - ratio.low) / 2 / ratio.median,
        )


def measured(
    ours: Built,
    dense: CompiledModel | None,
    file: ModelFile | None,
    seed: int = 0,
    rounds: int = 5,
    limit_s: float = math.inf,
    source: Source | None = None,
) -> Times:
    """Time a model in turns with its dense twin, ONNX Runtime for an ONNX file on a CPU, torch for its own on a GPU.

    Outputs are compared first. `limit_s` is for the rounds after the first few. `source` is what the model was compiled
    from, where that is no `file`. BuildError where the model or its twin cannot be loaded or run. VerificationError
    where their outputs differ.
    """
    model, notes = ours.model, []
    threads = thread_count(model.target)
    source = source or (None if file is None else Source(file.path, None, None))
    with Turns(Inputs(model.signature, seed)) as turns:
        running = turns.add(_contender(OURS, ours, turns.folder))
        others = [] if dense is None else [turns.add(_contender(DENSE, Built(dense), turns.folder))]
        for rival in _rivals(model, file, source, turns.folder):
            try:
                others.append(turns.add(rival()))
            except (BuildError, ModelError) as error:
                notes.append(str(error))
        allow_tf32 = file is not None and file.allow_tf32
        schedules = [each for one in (model, dense) if one is not None for each in schedules_of(one, allow_tf32)]
        dtypes = {spec.dtype for spec in (*model.signature.inputs, *model.signature.outputs)}
        if file is not None and file.is_quantised:
            dtypes.add(INT8)
        _require_agreement(running, others, schedules, dtypes)
        times_us = turns.times_us(rounds, MIN_ROUND_MS, limit_s)
        return Times(threads, times_us, (*notes, *_advice(times_us, model.target)), turns.load)


def _rivals(
    model: AnyModel, file: ModelFile | None, source: Source | None, folder: Path
) -> Iterator[Callable[[], Contender]]:
    """What else runs a model's source here; each raises BuildError or ModelError where it cannot."""
    if file is not None and model.target.kind.name == "llvm" and onnx_session.serves(file.path):
        options = {"threads": thread_count(model.target), "dtypes": list(file.inputs)}
        yield lambda: Contender(ONNX_RUNTIME, "onnx", file.path, options)
    if source is not None and torch_compile.serves(source.model, model.target):
        half = next((spec.dtype for spec in model.signature.inputs if is_half(spec.dtype)), None)
        given = {"dtype": half, "device": "cuda"}
        yield lambda: Contender(TORCH, "torch", torch_compile.program_file(source, folder), given)


def _advice(times_us: Mapping[str, Sequence[float]], target: Target) -> list[str]:
    """To use `torch.compile` where that is faster, and what multiplies at less than float32's accuracy."""
    found = [BY_AMX] if target.kind.name == "llvm" and "amxbf16" in cpu_flags() else []
    if TORCH in times_us:
        ratio = Quartiles.of(times_us[OURS]).median / Quartiles.of(times_us[TORCH]).median
        found += [f"{TORCH} is {ratio:.3g} times as fast: run the dense model with it"] if ratio > 1 else []
    return found


def verdict_on(model: CompiledModel, compilation: Compilation, limit_s: float, source: Source | None = None) -> Verdict:
    """The verdict of a clock on what `compilation` has built; the prediction, with a note, where it cannot be timed.

    `source` is what the model was compiled from.
    """
    expected = model.verdict or Verdict.unknown(len(model.decisions))
    try:
        dense = compilation.build_dense("this is the baseline")
        return measured(Built(model), dense, model.file, limit_s=limit_s, source=source).verdict(expected)
    except (TvmSparseError, OSError) as error:
        return replace(expected, note=f"not measured: {error}")


def _contender(name: str, built: Built, folder: Path) -> Contender:
    path = built.folder or artifact.save(built.model, folder / name.replace(" ", "-"))
    return Contender(name, "artifact", path, {"trust": built.trust})


def _require_agreement(
    ours: Running, others: Sequence[Running], schedules: Sequence[str], dtypes: Collection[str]
) -> None:
    for each in others:
        used = [*schedules, *([IN_TF32] if each.name == TORCH else [])]
        check_agreement(f"the model beside {each.name}", ours.outputs, each.outputs, used, dtypes)


def compared(times_us: Mapping[str, tuple[float, ...]]) -> list[dict[str, Any]]:
    """One object a contender: its times, and how many times faster the first one is."""
    ours = next(iter(times_us.values()))
    rows = []
    for name, values in times_us.items():
        row = {"name": name, "time_us": Quartiles.of(values).to_json(), "speedup": None, "verdict": None}
        if values is not ours:
            ratio = timing.speedup(ours, values)
            row |= {"speedup": ratio.to_json(), "verdict": timing.verdict(ratio)}
        rows.append(row)
    return rows


def _title(name: str) -> str:
    title, package = _TITLES.get(name, (name, ""))
    return f"{title} {'.'.join(metadata.version(package).split('.')[:2])}" if package else title
