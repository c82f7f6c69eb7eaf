"""`optimize`: from what is known to a faster model, within a time.

Decisions start from the logs and from predictions (`compiler.plan`); the time goes to the layers from which
the model gains most (`contest`); whatever was measured is in the user's log, and the next run goes on from there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from tvm_sparse.autotune.options import TuneOptions
from tvm_sparse.autotune.session import Progress, tasks_of
from tvm_sparse.compiler.build_model import Compilation, comparing, finished
from tvm_sparse.compiler.building.kernel_store import KernelRequest
from tvm_sparse.compiler.comparison.compare import Source
from tvm_sparse.compiler.plan.plan import Plan
from tvm_sparse.compiler.plan.pooled_layers import pooled_space
from tvm_sparse.compiler.variants import joined
from tvm_sparse.errors import UsageError
from tvm_sparse.frontend.prepare import PreparedModel
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.optimizer.contest import Contest
from tvm_sparse.optimizer.picture import Picture, picture_of
from tvm_sparse.optimizer.stop_signals import StopSignals
from tvm_sparse.request.options import CompileOptions, takes
from tvm_sparse.request.request import Request
from tvm_sparse.request.variant import Variant
from tvm_sparse.runtime.compiled_model import CompiledModel
from tvm_sparse.runtime.multi_shape_model import AnyModel
from tvm_sparse.schedules.lookup import family_of
from tvm_sparse.target.compatibility import require_first, why_not_here
from tvm_sparse.target.cpu import compiler_count
from tvm_sparse.verdict import torch_compile
from tvm_sparse.verdict.measured import verdict_on

if TYPE_CHECKING:
    from tvm.target import Target
    from typing_extensions import Unpack

DEFAULT_MINUTES = 5.0
# Seconds that compiling takes: a model, a layer, which is verified too, and a non-zero that LLVM has as code. What a
# CUDA kernel takes is `KernelRequest.build_s`.
MODEL_S, LAYER_S, CODE_S = 1.0, 0.4, 5e-5
# Seconds for the rounds in which the finished model is timed, and all that this takes beside its dense twin.
ROUNDS_S, TIMING_S = 3.0, 8.0
# The same for torch.compile beside it: five networks took 8 to 19 s on an H200.
TORCH_S = 20.0
# How often the time for compiling is estimated, each time with the kernels that were found until then.
LOOKS = 3
# Trials of a layer that one search makes, those that are known not counted, and at a time; of dense kernels few.
# When a layer has had enough is the contest's to say.
OPTIONS = TuneOptions(trials=32, batch=4, dense_trials=2, patience=None)


class _Notes(Progress):
    """Tells a picture what a search has to say."""

    def __init__(self, picture: Picture):
        self._picture = picture

    def note(self, text: str) -> None:
        self._picture.note(text.strip())


@takes(CompileOptions)
def optimize(
    source: Any,
    example_inputs: Any = None,
    *,
    minutes: float = DEFAULT_MINUTES,
    progress: Picture | bool | None = None,
    compare: bool | None = None,
    stop: threading.Event | None = None,
    **options: Unpack[CompileOptions],
) -> AnyModel:
    """Make a model as fast as `minutes` allow, and compile it.

    Ctrl-C ends the measuring; the best so far is compiled and returned. A second Ctrl-C ends that too, with
    KeyboardInterrupt; the log has what was measured.

    Parameters
    ----------
    source, example_inputs
        The model, as `tvm_sparse.compile` takes it.
    minutes
        How long it may take, compilation included, within 10% or one trial if the time for compiling was foreseen.
        With 0 nothing is measured, and layers that no log knows get predicted kernels.
    progress
        What is told how far it is: a `Picture` of yours; True, a line on standard error; False, nobody; None, that line
        where standard error is a terminal or Jupyter runs.
    stop
        Ends the measuring when it is set, from any thread. None: Ctrl-C does, in a main thread in which it has Python's
        own handler, and which gets that back.
    compare
        As `tvm_sparse.compile` takes it.
    **options
        Of `CompileOptions`. Trials are added to `log`, and all known logs are read too. Several batches or sizes share
        the time. With `strict_nonfinite`, which leaves dense kernels alone, or for a target that does not run here,
        nothing is measured.

    Raises
    ------
    KeyboardInterrupt
        Ctrl-C came twice.
    UsageError
        `minutes` is below 0, or the target is unknown.
    ModelError, LogError, BuildError, VerificationError
        The model or a log cannot be used, or the model cannot be compiled, or not to what computes the same.
    """
    if not 0 <= minutes < float("inf"):
        raise UsageError("minutes", "is no time to spend", minutes, "0 or more")
    start_s = time.monotonic()
    with ExitStack() as stack:
        stop = stop or stack.enter_context(StopSignals()).stop
        request, picture = Request.of(source, example_inputs, **options).with_known_logs(), picture_of(progress)
        require_first(request.device_index)
        # The log is opened before the model is read, which may take long.
        target, log, models = request.resolved, request.opened, dict(request.models())
        is_timed = partial(_is_timed, minutes, stop, target)
        if is_timed() and not request.strict_nonfinite:
            stop_s = partial(_stop_s, request, models.values(), start_s, start_s + 60 * minutes)
            improve(list(models.values()), target, log, stop_s, picture, stop)
        compiled = partial(_compiled, request, picture, compare, is_timed)
        return joined({variant: compiled(variant, prepared) for variant, prepared in models.items()})


def _is_timed(minutes: float, stop: threading.Event, target: Target) -> bool:
    """Whether there is time to measure, and something to measure on."""
    return minutes > 0 and not stop.is_set() and not why_not_here(target)


def _compiled(
    request: Request,
    picture: Picture,
    compare: bool | None,
    is_timed: Callable[[], bool],
    variant: Variant,
    prepared: PreparedModel,
) -> CompiledModel:
    """One variant, compared with its source, and timed where there is time for that."""
    compilation = Compilation.of(request, prepared)
    with picture.compiling() as on_progress, comparing(request, variant, compare) as comparison:
        comparison.expect(prepared)
        model = finished(request, compilation.build(on_progress), prepared, comparison)
    if is_timed():
        with picture.timing():
            model.verdict = verdict_on(model, compilation, ROUNDS_S, Source.of(request, variant))
    return model


def _stop_s(request: Request, models: Collection[PreparedModel], start_s: float, end_s: float) -> float:
    """When measuring ends, so that models are compiled, and timed beside torch's, by `end_s`."""
    plans = [Compilation.of(request, each).plan for each in models]
    # A model that takes long to compile is measured nevertheless.
    torch_s = len(models) * TORCH_S if torch_compile.serves(request.source, request.resolved) else 0.0
    return max(end_s - compile_seconds(plans, request.resolved) - torch_s, (start_s + end_s) / 2)


def compile_seconds(plans: Sequence[Plan], target: Any) -> float:
    """About how long compiling models as planned and timing them takes, if nothing of them was built before."""
    seconds = 0.0
    for plan in plans:
        requests = [KernelRequest.of(*each) for each in plan.pairs]
        if target.kind.name == "cuda":
            distinct = {(each.schedule, each.pattern.value_digest): each.build_s for each in requests}
            kernels_s = sum(distinct.values()) / compiler_count()
        else:
            kernels_s = sum(CODE_S * each.pattern.nnz for each in requests if family_of(each.schedule).is_folded)
        # The dense twin has the same layers, of which none needs to be verified.
        seconds += 2 * MODEL_S + LAYER_S * len(plan.layers) + kernels_s + TIMING_S
    return seconds


def improve(
    models: Sequence[PreparedModel],
    target: Any,
    log: TuningLog,
    stop_s: Callable[[], float],
    picture: Picture,
    stop: threading.Event,
) -> None:
    """Measure into `log` until the clock shows `stop_s`, nothing more is to be had, or `stop` is set.

    `stop_s` is asked again when its time has come: what was measured may be compiled faster than what was expected.
    """
    tasks = [task for prepared in models for task in tasks_of(prepared.layers)]
    pooled = [each for prepared in models for each in prepared.layers if pooled_space(each, target) is not None]
    end_s = stop_s()
    picture.start(sum(len(prepared.layers) for prepared in models), end_s)
    try:
        with Contest(tasks, target, log, OPTIONS, _Notes(picture), tasks_of(pooled), stop) as contest:
            for _ in range(LOOKS):
                contest.run(end_s, lambda entry: picture.trial(contest, entry))
                end_s = stop_s()
                picture.until(end_s)
    except KeyboardInterrupt:
        picture.note("interrupted: compiling the best that was found")
    finally:
        picture.end()
