"""What `bench_gpu.py` measures, as dataclasses and as JSON.

A document is a list of runs; a run is one machine's cases; a case is one operator and batch, whose contenders were
verified and timed in turns. Ratios are taken within a case only. Documents merge by putting their runs side by side.
"""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Iterable
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from benchmarks import operators
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import LogError
from tvm_sparse.files import publish
from tvm_sparse.logs.log_file import PACKED

SCHEMA = 1
# Family of our kernels that a log or default decisions give; "tvm-sparse <schedule>" are those of one schedule.
OURS = "tvm-sparse"
Status = Literal["ok", "wrong", "failed", "not served"]
# Of times.
Kind = Literal["cold", "warm", "cold_code"]


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One contender in one case.

    Parameters
    ----------
    family, variant
        Method, and name within it; the best variant stands for its family.
    density
        Of the weight; None where zeros make no difference, so that the contender ran once for all densities.
    exact, tolerance, error
        Whether it is float32 throughout; the declared error as a fraction of the largest value (None: the element-wise
        bound holds); the error found, as a fraction of what is allowed.
    status, cause
        Whether it was timed, and why not.
    cold_us, warm_us, cold_code_us
        Microseconds a call, by round; `final` where it took part in all rounds, else it was only compared within its
        family. Cold: inputs and outputs rotate and nothing of them is in the L2 cache; warm: the same ones again. Cold
        code: as cold, and the code is in no instruction cache.
    weight_bytes, code_bytes
        Of the weight as it is kept, and of GPU code made for this weight (None: not found out).
    detail
        The schedule or the launch parameters.
    predicted_us
        What a model of the machine predicts, where there is one.
    """

    family: str
    variant: str
    density: float | None
    exact: bool
    tolerance: float | None
    status: Status
    cause: str = ""
    error: float | None = None
    cold_us: tuple[float, ...] = ()
    warm_us: tuple[float, ...] = ()
    cold_code_us: tuple[float, ...] = ()
    final: bool = False
    weight_bytes: int = 0
    code_bytes: int | None = None
    detail: str = ""
    predicted_us: float | None = None

    @property
    def name(self) -> str:
        """Unique within a case."""
        density = "" if self.density is None else f" {self.density:g}"
        return f"{self.family} {self.variant}".strip() + density

    def times_us(self, kind: Kind) -> tuple[float, ...]:
        """Times of a kind; none where it was not timed so."""
        times: tuple[float, ...] = getattr(self, f"{kind}_us")
        return times


@dataclass(frozen=True, kw_only=True)
class Case:
    """One operator, batch and type of tensors.

    `calls` of a cold replay at most, `seed` of everything random, `seconds` it took.
    """

    operator: int
    batch: int
    seed: int
    calls: int
    contenders: tuple[Contender, ...]
    seconds: float
    dtype: str = FLOAT32

    @property
    def spec(self) -> ConvSpec:
        """The convolution."""
        return operators.spec(self.operator, self.batch, self.dtype)

    @property
    def densities(self) -> list[float]:
        """At which something was timed, descending."""
        return sorted({c.density for c in self.contenders if c.density is not None}, reverse=True)


@dataclass(frozen=True, kw_only=True)
class Device:
    """The GPU; zeros where the driver's tool does not say. `clock_mhz` is the highest of its multiprocessors."""

    name: str
    arch: str
    multiprocessors: int = 0
    clock_mhz: float = 0
    l2_bytes: int = 0
    driver: str = ""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of the benchmark."""

    command: str
    started: str
    device: Device
    versions: dict[str, str]
    rounds: int
    cases: tuple[Case, ...]


@dataclass(frozen=True, kw_only=True)
class TuningCurve:
    """How one layer's search went: best time after each trial (None before the first success), and seconds it took.

    `label` says how candidates were chosen, such as ``XGBoost`` or ``random``.
    """

    label: str
    operator: int
    batch: int
    density: float
    best_us: tuple[float | None, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Document:
    """Everything that a report is made from."""

    runs: tuple[Run, ...]
    tuning: tuple[TuningCurve, ...] = ()
    schema: int = SCHEMA

    @property
    def cases(self) -> list[Case]:
        """Those of all runs."""
        return [case for run in self.runs for case in run.cases]

    def save(self, path: Path) -> None:
        """Write JSON, compressed where the name ends in ``.xz``, all at once."""
        data = f"{json.dumps(asdict(self), allow_nan=False, separators=(',', ':'))}\n".encode()
        publish.write(path, lzma.compress(data, filters=PACKED) if path.suffix == ".xz" else data)

    @classmethod
    def load(cls, path: Path) -> Document:
        """Read what `save` wrote.

        Raises
        ------
        LogError
            The file cannot be read, is damaged or of another schema.
        """
        try:
            data = path.read_bytes()
            document = json.loads(lzma.decompress(data) if path.suffix == ".xz" else data)
        except (OSError, ValueError, lzma.LZMAError) as error:
            raise LogError(str(path), f"is no result of bench_gpu.py ({error})") from None
        schema = document.get("schema") if isinstance(document, dict) else None
        if schema != SCHEMA:
            raise LogError(str(path), "is of another schema", schema, str(SCHEMA), "run bench_gpu.py again")
        return _decode(str(path), document, cls)

    @classmethod
    def merge(cls, documents: Iterable[Document]) -> Document:
        """All runs and curves, equal ones once."""
        runs: dict[str, Run] = {}
        tuning: dict[TuningCurve, None] = {}
        for document in documents:
            runs |= {repr(run): run for run in document.runs}
            tuning |= dict.fromkeys(document.tuning)
        return cls(runs=tuple(runs.values()), tuning=tuple(tuning))


def rounded(values: Iterable[float]) -> tuple[float, ...]:
    """Times with four digits: more would be noise and bytes."""
    return tuple(float(f"{value:.4g}") for value in values if math.isfinite(value))


def _decode(where: str, data: Any, cls: Any) -> Any:
    """A dataclass of dataclasses, tuples and plain values from its JSON object.

    Results of before a field existed lack it, and have its default.
    """
    if get_origin(cls) is tuple:
        return tuple(_decode(where, each, get_args(cls)[0]) for each in data)
    if not is_dataclass(cls):
        return data
    hints = get_type_hints(cls)
    needed = {each.name for each in fields(cls) if each.default is MISSING}
    if not isinstance(data, dict) or not needed <= set(data) <= set(hints):
        found = sorted(set(hints) ^ set(data)) if isinstance(data, dict) else type(data).__name__
        raise LogError(where, f"is damaged: {getattr(cls, '__name__', cls)} has other fields", found)
    return cls(**{name: _decode(where, value, hints[name]) for name, value in data.items()})  # type: ignore[operator]
