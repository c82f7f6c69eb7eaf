"""The live picture of an optimisation: how fast the model is now, what is being tried, how long it still takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from rich.console import Console
from rich.text import Text

from tvm_sparse.compiler.building import build_progress
from tvm_sparse.compiler.building.build_kernels import OnProgress
from tvm_sparse.display.consoles import progress_console, watched_console
from tvm_sparse.display.live_line import Interval, LiveLine
from tvm_sparse.display.words import duration, times_text
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

    def until(self, end_s: float) -> None:
        """Measuring goes on until then: compiling takes another time than was expected."""

    def trial(self, contest: Contest, entry: Entry) -> None:
        """A trial of a layer has ended."""

    def note(self, text: str) -> None:
        """Something that the user should know."""

    def end(self) -> None:
        """Measuring has ended, or was interrupted."""

    def compiling(self) -> AbstractContextManager[OnProgress | None]:
        """The model is compiled within this context, whose value is told how far its CUDA kernels are."""
        return nullcontext(None)

    def timing(self) -> AbstractContextManager[object]:
        """The finished model is timed within this context."""
        return nullcontext()


class LivePicture(Picture):
    """One live line on `console`; where that cannot renew lines, one now and then."""

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic):
        self.console, self._clock = console or progress_console(), clock
        self._layers, self._trials, self._end_s, self._line, self._sums = 0, 0, 0.0, "", ""
        self._live, self._interval = LiveLine(self.console, lambda: self._line), Interval(clock)

    def start(self, layers: int, end_s: float) -> None:
        """Measuring begins."""
        self._layers, self._end_s = layers, end_s
        self._line = f"0 of {layers} layers measured: the first is on its way"
        self._live.start()

    def until(self, end_s: float) -> None:
        """Measuring goes on until then."""
        self._end_s = end_s

    def trial(self, contest: Contest, entry: Entry) -> None:
        """A trial of a layer has ended."""
        self._trials += 1
        self._line, self._sums = self._text(contest, entry), self._sums_of(contest)
        if not self._live.is_shown and self._interval.is_due():
            self.console.print(Text(self._line))

    def _text(self, contest: Contest, entry: Entry) -> str:
        left_s = max(0.0, self._end_s - self._clock())
        return f"{self._sums_of(contest)}; now {entry.task.names[0]}; {left_s:.0f} s of measuring left"

    def _sums_of(self, contest: Contest) -> str:
        """Of the layers that were measured, on both sides."""
        measured, (ours, dense) = sum(each.layers for each in contest.compared), (contest.model_us, contest.dense_us)
        times = f": {times_text(dense, ours)}, {dense / ours:.2f}x" if ours else ""
        return f"{measured} of {self._layers} layers measured{times}; {self._trials} trials"

    def note(self, text: str) -> None:
        """Something that the user should know."""
        self.console.print(Text(text))

    def end(self) -> None:
        """Measuring has ended: what it has shown stays."""
        self._live.stop()
        if self._trials:
            self.console.print(Text(self._sums))

    def compiling(self) -> AbstractContextManager[OnProgress | None]:
        """A line while the model is compiled."""
        return build_progress.shown(self.console, self._clock)

    @contextmanager
    def timing(self) -> Iterator[None]:
        """A line while the model is timed."""
        start_s = self._clock()
        live = LiveLine(self.console, lambda: f"timing beside dense models  {duration(self._clock() - start_s)}")
        live.start()
        try:
            yield
        finally:
            live.stop()
