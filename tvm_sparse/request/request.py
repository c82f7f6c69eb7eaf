"""A model and what is asked of it, as users give both."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm_sparse.conv.dtypes import INT8
from tvm_sparse.errors import UsageError
from tvm_sparse.frontend.prepare import PreparedModel, prepare
from tvm_sparse.logs.known_logs import known_log, open_log
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.request.quantised import quantised_file
from tvm_sparse.request.turns import in_turns
from tvm_sparse.request.variant import Shapes, Variant, variants_of
from tvm_sparse.target.compatibility import require_alike
from tvm_sparse.target.resolve import device_index, resolve_target

if TYPE_CHECKING:
    from tvm.target import Target


@dataclass(frozen=True)
class Request:
    """A model and options; `tvm_sparse.compile` says what each means, and what errors come of looking at them."""

    source: Any
    example_inputs: Any = None
    target: str | dict[str, Any] | Target | None = None
    threads: int | None = None
    log: TuningLog | Path | str | Sequence[Path | str] | None = None
    shapes: Mapping[str, Shapes] | None = None
    batch: int | Sequence[int] | None = None
    dtype: str | None = None
    samples: Any = None
    allow_tf32: bool = False
    strict_nonfinite: bool = False
    predict: bool = True
    unquantised: Path | None = None

    @classmethod
    def of(cls, source: Any, example_inputs: Any = None, **options: Any) -> Request:
        """As public functions are given it; with dtype int8 the source is the file of `unquantised` in eight bits."""
        asked = cls(source, example_inputs, **options)
        if asked.dtype == INT8:
            # Samples are of one size.
            path = quantised_file(source, asked.samples, asked.variants[0].shapes)
            return replace(asked, source=path, dtype=None, samples=None, unquantised=Path(source))
        if asked.samples is not None:
            raise UsageError("samples", "are of no use with this dtype", asked.dtype, INT8, "leave them out")
        return asked

    @cached_property
    def _place(self) -> str | dict[str, Any] | Target | None:
        return _home_of(self.source) if self.target is None else self.target

    @cached_property
    def resolved(self) -> Target:
        """The target that is meant: without one where the parameters of a torch module are, else this CPU."""
        require_alike(self.device_index)
        return resolve_target(self._place, self.threads)

    @property
    def device_index(self) -> int:
        """The number of the GPU that runs the model."""
        return device_index(self._place)

    @cached_property
    def opened(self) -> TuningLog:
        """The log that is meant; see `opened_for`."""
        return self.opened_for(self.resolved)

    def opened_for(self, target: Target) -> TuningLog:
        """A log as it is; what names mean; without a file all known ones, of which the user's own is written."""
        log = self.log
        if not isinstance(log, TuningLog):
            log = open_log(target, *_names(log))
        return log.checked()

    def with_known_logs(self) -> Request:
        """The same, where paths are the first of all known logs."""
        if self.log is None or isinstance(self.log, TuningLog):
            return self
        return replace(self, log=known_log(self.resolved, *_names(self.log)))

    @cached_property
    def variants(self) -> list[Variant]:
        """The batches and sizes that are asked for."""
        return variants_of(self.shapes, self.batch)

    def prepared(self, variant: Variant, in_parts: bool = True) -> PreparedModel:
        """The model of one batch and size; `in_parts`: of a batch in turns, where that is faster, for one of these."""
        prepared = prepare(self.source, self.example_inputs, variant.shapes, variant.batch, self.dtype)
        return in_turns(prepared, self.resolved) if in_parts else prepared

    def models(self) -> Iterator[tuple[Variant, PreparedModel]]:
        """The model of each variant, read when it is asked for."""
        return ((variant, self.prepared(variant)) for variant in self.variants)


def _names(log: Path | str | Sequence[Path | str] | None) -> Sequence[Path | str]:
    if log is None:
        return ()
    return [log] if isinstance(log, Path | str) else log


def _home_of(source: Any) -> str | None:
    """Where the parameters of a torch module or program are, as a target; None of others."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(source, torch.nn.Module | torch.export.ExportedProgram):
        return None
    devices = (each.device for each in source.parameters())
    return next((str(each) for each in devices if each.type in ("cpu", "cuda")), None)
