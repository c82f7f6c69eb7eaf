"""Progress of building a model's CUDA kernels."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tvm_sparse.cli.tuning_progress import PLAIN_INTERVAL_S, duration
from tvm_sparse.compiler.build_kernels import BuildProgress, OnProgress


@contextmanager
def shown(console: Console, clock: Callable[[], float] = time.monotonic) -> Iterator[OnProgress]:
    """What to give to a build as `on_progress`: shows a live line, and at the end what was built and how long it took.

    Where `console` is no terminal, a line is printed every `PLAIN_INTERVAL_S`.
    """
    start_s = shown_s = clock()
    last: BuildProgress | None = None
    live = Live(console=console, get_renderable=lambda: _live_text(last), transient=True)

    def on_progress(progress: BuildProgress) -> None:
        nonlocal last, shown_s
        if last is None and console.is_terminal:
            live.start()
        last = progress
        if not console.is_terminal and clock() - shown_s >= PLAIN_INTERVAL_S:
            shown_s = clock()
            console.print(Text(line(progress)))

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


def _live_text(progress: BuildProgress | None) -> Text:
    text = line(progress) if progress is not None else ""
    return Text(text, style="cyan", no_wrap=True, overflow="ellipsis")
