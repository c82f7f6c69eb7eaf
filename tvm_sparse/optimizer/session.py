"""`optimize`: from what is known to a faster model, within a time.

Decisions start from the logs and from predictions (`compiler.kernel_selection`); the time goes to the layers from which
the model gains most (`contest`); whatever was measured is in the user's log, and the next run goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tvm_sparse.autotune.options import TuneOptions
from tvm_sparse.autotune.session import Progress, tasks_of
from tvm_sparse.compiler.build_model import build
from tvm_sparse.compiler.kernel_selection import decide
from tvm_sparse.errors import UsageError
from tvm_sparse.frontend.prepare import PreparedModel, prepare
from tvm_sparse.logs.known_logs import known_log
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.optimizer.contest import Contest
from tvm_sparse.optimizer.picture import LivePicture, Picture
from tvm_sparse.runtime.compiled_model import CompiledModel
from tvm_sparse.target.resolve import resolve_target

DEFAULT_MINUTES = 5.0
# Seconds that are kept for the compilation: a layer, and a non-zero, which may be folded.
LAYER_S, NON_ZERO_S = 0.5, 2e-5
# Trials of a layer that one search makes, those that are known not counted, and at a time; of dense kernels few.
OPTIONS = TuneOptions(trials=32, batch=4, dense_trials=2)


class _Notes(Progress):
    """Tells a picture what a search has to say."""

    def __init__(self, picture: Picture):
        self._picture = picture

    def note(self, text: str) -> None:
        self._picture.note(text.strip())


def optimize(
    source: Any,
    example_inputs: Any = None,
    minutes: float = DEFAULT_MINUTES,
    target: Any = None,
    log: TuningLog | Path | str | None = None,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    allow_tf32: bool = False,
    picture: Picture | None = None,
) -> CompiledModel:
    """Make a model as fast as `minutes` allow, compilation included, and compile it.

    Ctrl-C ends the measuring; what is best until then is compiled. A second one ends that too.

    Parameters
    ----------
    source, example_inputs, shapes, target, allow_tf32
        As `tvm_sparse.compile` takes them.
    minutes
        How long it may take, about; with 0 nothing is measured, and layers that no log knows get predicted kernels.
    log
        Where trials are kept, and looked up first; without one the user's own (`known_logs`). Known logs are read too.
    picture
        What shows how far it is; None: `LivePicture`, a line on standard error or in a notebook.

    Raises
    ------
    UsageError
        `minutes` is below 0, or the target is unknown.
    ModelError, LogError, BuildError
        The model or a log cannot be used, or the model cannot be compiled.
    """
    if not 0 <= minutes < float("inf"):
        raise UsageError("minutes", "is no time to spend", minutes, "0 or more")
    end_s = time.monotonic() + 60 * minutes
    resolved, picture = resolve_target(target), picture or LivePicture()
    log = log if isinstance(log, TuningLog) else known_log(resolved, None if log is None else Path(log))
    log.require_known_schema()
    prepared = prepare(source, example_inputs, shapes)
    compile_s = sum(LAYER_S + NON_ZERO_S * layer.pattern.nnz for layer in prepared.layers)
    end_s -= min(compile_s, 60 * minutes / 2)
    if minutes:
        improve(prepared, resolved, log, end_s, picture)
    decisions = decide(prepared.layers, resolved, log, allow_tf32, predict=True)
    return build(prepared, decisions, resolved, picture.building)


def improve(prepared: PreparedModel, target: Any, log: TuningLog, end_s: float, picture: Picture) -> None:
    """Measure into `log` until the clock shows `end_s`, nothing more is to be had, or Ctrl-C."""
    tasks = tasks_of(prepared.layers)
    picture.start(len(prepared.layers), end_s)
    try:
        with Contest(tasks, target, log, OPTIONS, _Notes(picture)) as contest:
            contest.run(end_s, lambda entry: picture.trial(contest, entry))
    except KeyboardInterrupt:
        picture.note("interrupted: compiling the best that was found; press Ctrl-C again to stop")
    finally:
        picture.end()
