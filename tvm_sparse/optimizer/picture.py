"""The live picture of an optimisation: how fast the model is now, what is being tried, how long it still takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from rich.console import Console
from rich.text import Text

from tvm_sparse.compiler.building import build_progress
from tvm_sparse.compiler.building.build_kernels import OnProgress
from tvm_sparse.display.consoles import progress_console, watched_console
from tvm_sparse.display.live_line import Interval, LiveLine
from tvm_sparse.optimizer.contest import Contest, Entry


def picture_of(progress: Picture | bool | None) -> Picture:
    """What `optimize` tells: `progress` where it is an object; else as `watched_console` says."""
    if progress is not None and not isinstance(progress, bool):
        return progress
    console = watched_console(progress)
    return Picture() if console is None else LivePicture(console)


class Picture:
    """What a display is told while a model is optimised; this one shows nothing."""

    def start(self, layers: int, end_s: float) -> None:
        """Measuring begins: of so many layers, until the clock (`time.monotonic`) shows `end_s`."""

    def trial(self, contest: Contest, entry: Entry) -> None:
        """A trial of a layer has ended."""

    def note(self, text: str) -> None:
        """Something that the user should know."""

    def end(self) -> None:
        """Measuring has ended, or was interrupted."""

    def compiling(self) -> AbstractContextManager[OnProgress | None]:
        """The model is compiled within this context, whose value is told how far its CUDA kernels are."""
        return nullcontext(None)


class LivePicture(Picture):
    """One live line on `console`; where that cannot renew lines, one now and then."""

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic):
        self.console, self._clock = console or progress_console(), clock
        self._layers, self._trials, self._end_s, self._line = 0, 0, 0.0, ""
        self._live, self._interval = LiveLine(self.console, lambda: self._line), Interval(clock)

    def start(self, layers: int, end_s: float) -> None:
        """Measuring begins."""
        self._layers, self._end_s = layers, end_s
        self._line = f"layers 0/{layers}: the first is being measured"
        self._live.start()

    def trial(self, contest: Contest, entry: Entry) -> None:
        """A trial of a layer has ended."""
        self._trials += 1
        self._line = self._text(contest, entry)
        if not self._live.is_shown and self._interval.is_due():
            self.console.print(Text(self._line))

    def _text(self, contest: Contest, entry: Entry) -> str:
        measured = sum(each.layers for each in contest.measured)
        ours, dense = contest.model_us / 1e3, contest.dense_us / 1e3
        ratio = f", {dense / ours:.2f}x" if ours and dense else ""
        left_s = max(0.0, self._end_s - self._clock())
        return (
            f"layers {measured}/{self._layers}: {ours:.3g} ms, dense {dense:.3g} ms{ratio}; "
            f"{self._trials} trials, now {entry.task.names[0]}; {left_s:.0f} s left"
        )

    def note(self, text: str) -> None:
        """Something that the user should know."""
        self.console.print(Text(text))

    def end(self) -> None:
        """Measuring has ended: the last line stays."""
        self._live.stop()
        if self._trials:
            self.console.print(Text(self._line))

    def compiling(self) -> AbstractContextManager[OnProgress | None]:
        """A line while the model is compiled."""
        return build_progress.shown(self.console, self._clock)
