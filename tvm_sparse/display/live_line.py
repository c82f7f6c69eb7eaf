"""Lines that are renewed in place where the console can do that, and printed now and then where it cannot."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tvm_sparse.display.consoles import watched_console
from tvm_sparse.display.words import duration

# Seconds between two lines about one thing where they cannot be renewed in place.
PLAIN_INTERVAL_S = 30.0


class LiveLine:
    """Shows what `text` returns, from `start` to `stop`, several times a second, where `console` can renew lines."""

    def __init__(self, console: Console, text: Callable[[], str]):
        self._console, self._text = console, text
        self._live: Live | None = None

    @property
    def is_shown(self) -> bool:
        """Whether the line is on the console now."""
        return self._live is not None

    def start(self) -> None:
        """Show it from now on."""
        if self._live is None and _renews(self._console):
            self._live = Live(console=self._console, get_renderable=self._renderable, transient=True)
            self._live.start()

    def stop(self) -> None:
        """Take it away; what is to stay is printed."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _renderable(self) -> Text:
        return Text(self._text(), style="cyan", no_wrap=True, overflow="ellipsis")


def _renews(console: Console) -> bool:
    """rich renews lines of a notebook through ipywidgets only."""
    return find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal


class Interval:
    """When a line is due where none is renewed: `PLAIN_INTERVAL_S` after the last, or after `restart`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self.restart()

    def restart(self) -> None:
        """Nothing is due for an interval."""
        self._last_s = self._clock()

    def is_due(self) -> bool:
        """Whether an interval is over; then the next begins."""
        if self._clock() - self._last_s < PLAIN_INTERVAL_S:
            return False
        self.restart()
        return True


@contextmanager
def steps(progress: bool | None) -> Iterator[Callable[[str], None]]:
    """A live line with what is being done, as the function that this yields is told, and for how long already.

    `progress` is as `watched_console` takes it.
    """
    console, start_s, step = watched_console(progress), time.monotonic(), ""

    def say(text: str) -> None:
        nonlocal step
        step = text

    live = LiveLine(console, lambda: f"{step}  {duration(time.monotonic() - start_s)}") if console else None
    if live:
        live.start()
    try:
        yield say
    finally:
        if live:
            live.stop()
