"""A compiled model timed in turns with its dense twin and ONNX Runtime, and the verdict on that."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from tvm_sparse.compiler.build_model import Compilation
from tvm_sparse.compiler.checking import onnx_runtime
from tvm_sparse.conv.dtypes import INT8
from tvm_sparse.errors import BuildError, TvmSparseError
from tvm_sparse.measure import timing
from tvm_sparse.measure.quartiles import Quartiles
from tvm_sparse.runtime.artifacts import artifact
from tvm_sparse.runtime.batched_model import AnyModel
from tvm_sparse.runtime.compiled_model import CompiledModel
from tvm_sparse.runtime.model_file import ModelFile
from tvm_sparse.runtime.verdict import Verdict
from tvm_sparse.target.resolve import thread_count
from tvm_sparse.verdict.agreement import check_agreement, schedules_of
from tvm_sparse.verdict.machine_load import MachineLoad, why_unreliable
from tvm_sparse.verdict.turns import MIN_ROUND_MS, Contender, Inputs, Running, Turns

OURS, DENSE, ONNX_RUNTIME = "tvm-sparse", "dense, same compiler", "onnxruntime"
# What a verdict calls these.
_TITLES = {DENSE: "same compiler"}


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
) -> Times:
    """Time a model in turns with its dense twin and, of an ONNX file on a CPU, ONNX Runtime.

    Outputs are compared first. `limit_s` is for the rounds after the first few. BuildError where the model or its twin
    cannot be loaded or run. VerificationError where their outputs differ.
    """
    model, notes = ours.model, []
    threads = thread_count(model.target)
    with Turns(Inputs(model.signature, seed)) as turns:
        running = turns.add(_contender(OURS, ours, turns.folder))
        others = [] if dense is None else [turns.add(_contender(DENSE, Built(dense), turns.folder))]
        if file is not None and model.target.kind.name == "llvm" and onnx_runtime.serves(file.path):
            options = {"threads": threads, "dtypes": list(file.inputs)}
            try:
                others.append(turns.add(Contender(ONNX_RUNTIME, "onnx", file.path, options)))
            except BuildError as error:
                notes.append(str(error))
        allow_tf32 = file is not None and file.allow_tf32
        schedules = [each for one in (model, dense) if one is not None for each in schedules_of(one, allow_tf32)]
        dtypes = {spec.dtype for spec in (*model.signature.inputs, *model.signature.outputs)}
        if file is not None and file.is_quantised:
            dtypes.add(INT8)
        _require_agreement(running, others, schedules, dtypes)
        return Times(threads, turns.times_us(rounds, MIN_ROUND_MS, limit_s), tuple(notes), turns.load)


def verdict_on(model: CompiledModel, compilation: Compilation, limit_s: float) -> Verdict:
    """The verdict of a clock on what `compilation` has built; the prediction, with a note, where it cannot be timed."""
    expected = model.verdict or Verdict.unknown(len(model.decisions))
    try:
        dense = compilation.build_dense("this is the baseline")
        return measured(Built(model), dense, model.file, limit_s=limit_s).verdict(expected)
    except (TvmSparseError, OSError) as error:
        return replace(expected, note=f"not measured: {error}")


def _contender(name: str, built: Built, folder: Path) -> Contender:
    path = built.folder or artifact.save(built.model, folder / name.replace(" ", "-"))
    return Contender(name, "artifact", path, {"trust": built.trust})


def _require_agreement(
    ours: Running, others: Sequence[Running], schedules: Sequence[str], dtypes: Collection[str]
) -> None:
    for each in others:
        check_agreement(f"the model beside {each.name}", ours.outputs, each.outputs, schedules, dtypes)


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
    if name == ONNX_RUNTIME:
        major, minor = metadata.version("onnxruntime").split(".")[:2]
        return f"ONNX Runtime {major}.{minor}"
    return _TITLES.get(name, name)
