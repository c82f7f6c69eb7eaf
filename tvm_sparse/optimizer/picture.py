"""The live picture of an optimisation: how fast the model is now, what is being tried, how long it still takes."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tvm_sparse.compiler.build_kernels import BuildProgress
from tvm_sparse.optimizer.contest import Contest, Entry

# Seconds between two lines where the output is no terminal.
PLAIN_INTERVAL_S = 30.0


class Picture:
    """What a display is told while a model is optimised; this one shows nothing."""

    def start(self, layers: int, end_s: float) -> None:
        """Measuring begins: of so many layers, until the clock (`time.monotonic`) shows `end_s`."""

    def trial(self, contest: Contest, entry: Entry) -> None:
        """A trial of a layer has ended."""

    def note(self, text: str) -> None:
        """Something that the user should know."""

    def building(self, progress: BuildProgress) -> None:
        """CUDA kernels of the model are being built."""

    def end(self) -> None:
        """Measuring has ended, or was interrupted; the model is compiled."""


class LivePicture(Picture):
    """One live line on `console`; where that is no terminal and no notebook, a line every `PLAIN_INTERVAL_S`."""

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic):
        self.console, self._clock = console or Console(stderr=True), clock
        self._live: Live | None = None
        self._layers, self._trials, self._end_s, self._line = 0, 0, 0.0, ""
        self._shown_s = clock()

    def start(self, layers: int, end_s: float) -> None:
        """Measuring begins."""
        self._layers, self._end_s = layers, end_s
        if self.console.is_terminal or self.console.is_jupyter:
            self._live = Live(console=self.console, get_renderable=lambda: Text(self._line, style="cyan"))
            self._live.start()

    def trial(self, contest: Contest, entry: Entry) -> None:
        """A trial of a layer has ended."""
        self._trials += 1
        self._show(self._text(contest, entry))

    def _show(self, line: str) -> None:
        self._line = line
        if self._live is None and self._clock() - self._shown_s >= PLAIN_INTERVAL_S:
            self._shown_s = self._clock()
            self.console.print(Text(line))

    def _text(self, contest: Contest, entry: Entry) -> str:
        measured = sum(each.layers for each in contest.entries if each.time_us < float("inf"))
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

    def building(self, progress: BuildProgress) -> None:
        """CUDA kernels are being built."""
        self._show(f"building kernels {progress.done}/{progress.total}, about {progress.eta_s:.0f} s left")

    def end(self) -> None:
        """Measuring has ended: the last line stays."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        elif self._line:
            self.console.print(Text(self._line))
