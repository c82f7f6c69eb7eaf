"""What is shown while kernels are built."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tvm_sparse.compiler.building import build_progress
from tvm_sparse.compiler.building.build_kernels import BuildProgress


def shown(events: list[tuple[float, BuildProgress]], is_terminal: bool = False) -> str:
    """What `events`, at their times in seconds, print."""
    out, now_s = io.StringIO(), 0.0
    console = Console(file=out, force_terminal=is_terminal, width=100, highlight=False)
    with build_progress.shown(console, lambda: now_s) as on_progress:
        for now_s, progress in events:  # noqa: B007 - the clock reads it
            on_progress(progress)
    return out.getvalue()


def test_lines_where_the_output_is_no_terminal() -> None:
    """One every 30 seconds, and one at the end."""
    events = [(number, BuildProgress(10 + number // 10, 20, 10, 100.0 - number)) for number in range(0, 101, 5)]
    assert shown(events).splitlines() == [
        "building kernels  13/20  about 70 s left",
        "building kernels  16/20  about 40 s left",
        "building kernels  19/20  about 10 s left",
        "20 kernels: 10 built in 2 min, 10 built before",
    ]


def test_what_was_built_before_is_said_and_nothing_of_no_kernels() -> None:
    """As on a second run, or on a CPU."""
    assert shown([(0, BuildProgress(20, 20, 20, 0.0))]) == "20 kernels: 20 built before\n"
    assert shown([]) == ""


def test_a_live_line_on_a_terminal() -> None:
    """It goes away at the end."""
    text = shown([(0, BuildProgress(1, 20, 0, 200.0)), (2, BuildProgress(19, 20, 0, 9.0))], is_terminal=True)
    assert "building kernels  19/20  about 9 s left" in text
    assert text.endswith("20 kernels: 19 built in 2 s, 0 built before\n")


def test_a_terminal_sees_that_it_compiles() -> None:
    """Also where no kernel is built by itself, as on a CPU; nothing of that stays."""
    text = shown([], is_terminal=True)
    assert "compiling  0 s" in text and text.endswith("\x1b[2K")


def test_a_failure_ends_the_line() -> None:
    """And says no more than the failure."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    with pytest.raises(RuntimeError, match="no"), build_progress.shown(console) as on_progress:
        on_progress(BuildProgress(1, 20, 0, 200.0))
        raise RuntimeError("no")
    assert "kernels:" not in out.getvalue()
    console.print("another", end="")
    assert out.getvalue().endswith("another")
