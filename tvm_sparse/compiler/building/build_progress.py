"""What is shown while a model is compiled: how far its CUDA kernels are, and how long it takes."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from tvm_sparse.compiler.building.build_kernels import BuildProgress, OnProgress
from tvm_sparse.display.consoles import watched_console
from tvm_sparse.display.live_line import Interval, LiveLine
from tvm_sparse.display.words import duration


@contextmanager
def told(progress: OnProgress | bool | None) -> Iterator[OnProgress | None]:
    """What to give to a build as `on_progress`: `progress` where it is a function, else as `watched_console` says."""
    if progress is not None and not isinstance(progress, bool):
        yield progress
    elif (console := watched_console(progress)) is None:
        yield None
    else:
        with shown(console) as on_progress:
            yield on_progress


@contextmanager
def shown(console: Console, clock: Callable[[], float] = time.monotonic) -> Iterator[OnProgress]:
    """What to give to a build as `on_progress`: shows a live line, and at the end what was built and how long it took.

    Where `console` cannot renew lines, one about kernels is printed every `PLAIN_INTERVAL_S`.
    """
    start_s, interval = clock(), Interval(clock)
    last: BuildProgress | None = None

    def text() -> str:
        # Before and after its kernels the model is read, lowered and verified.
        if last is None or last.done == last.total:
            return f"compiling  {duration(clock() - start_s)}"
        return line(last)

    live = LiveLine(console, text)

    def on_progress(progress: BuildProgress) -> None:
        nonlocal last
        last = progress
        if not live.is_shown and interval.is_due():
            console.print(Text(line(progress)))

    live.start()
    try:
        yield on_progress
    finally:
        live.stop()
    if last is not None:
        built = f"{last.done - last.found} built in {duration(clock() - start_s)}, " if last.done > last.found else ""
        kernels = "kernel" if last.total == 1 else "kernels"
        console.print(Text(f"{last.total} {kernels}: {built}{last.found} built before"))


def line(progress: BuildProgress) -> str:
    """How far the kernels are, and about how long the rest will take."""
    return f"building kernels  {progress.done}/{progress.total}  about {duration(progress.eta_s)} left"
