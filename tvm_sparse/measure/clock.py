"""Clocks: the mean time of one call of a kernel, with warm code (it is repeated) or cold (called as in a model)."""

import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from tvm_sparse.measure.call_row import Row
from tvm_sparse.measure.cuda_graph_timer import GraphTimer

# Calls in one CUDA graph, at most: a graph of more takes longer to record than it gains.
MAX_GRAPH_CALLS = 200


class Clock(Protocol):
    """Takes times of one kernel."""

    def time_us(self) -> float:
        """Mean time of one call, over as many as fill a measurement."""

    def close(self) -> None:
        """Free what is held; memory is freed with the object."""


class LoopClock:
    """Repeats a function of a module in TVM's own loop, where one more call, the first, does not count."""

    def __init__(self, module: Any, arguments: Sequence[Any], min_repeat_ms: float, function: str = "main"):
        self._module, self._arguments, self._function, self._number = module, arguments, function, 1
        self.time_us()
        self._number = max(1, round(min_repeat_ms * 1e3 / max(self.time_us(), 0.1)))

    def time_us(self) -> float:
        """Mean time of one call."""
        timer = self._module.time_evaluator(self._function, self._arguments[0].device, number=self._number, repeat=1)
        return float(timer(*self._arguments).mean) * 1e6

    def close(self) -> None:
        """Nothing is held."""


class RowTimer:
    """Makes the calls of a row from here; for a CPU, and calls that take much longer than to be made."""

    def __init__(self, row: Row):
        self.calls, self._row = len(row.calls), row

    def time_us(self) -> float:
        """Mean time of one call."""
        for source, to in self._row.copies:
            source.copyto(to)
        start_ns = time.perf_counter_ns()
        for call in self._row.calls:
            call()
        return (time.perf_counter_ns() - start_ns) / self.calls / 1e3

    def close(self) -> None:
        """Nothing is held."""


class RowClock:
    """Runs a row so often that its calls fill `min_repeat_ms`.

    The first run of each time does not count: others had the caches, and a GPU is given a graph when it is first
    launched.
    """

    def __init__(self, timer: RowTimer | GraphTimer, min_repeat_ms: float):
        self._timer = timer
        timer.time_us()
        self._runs = max(1, math.ceil(min_repeat_ms * 1e3 / max(timer.time_us() * timer.calls, 0.1)))

    def time_us(self) -> float:
        """Mean time of one call."""
        self._timer.time_us()
        return sum(self._timer.time_us() for _ in range(self._runs)) / self._runs

    def close(self) -> None:
        """Free what the timer holds."""
        self._timer.close()


def warm_clock(module: Any, arguments: Sequence[Any], min_repeat_ms: float, function: str = "main") -> Clock:
    """Times a function of a module by repeating it with the same arguments."""
    device = arguments[0].device
    if device.type != "cuda":
        return LoopClock(module, arguments, min_repeat_ms, function)
    # Its time with launches, which a graph does without.
    launched_us = LoopClock(module, arguments, 0, function).time_us()
    calls = min(max(1, round(min_repeat_ms * 1e3 / max(launched_us, 0.1))), MAX_GRAPH_CALLS)
    return RowClock(GraphTimer(device, Row([partial(module[function], *arguments)] * calls)), min_repeat_ms)


def cold_clock(row: Row, device: Any, min_repeat_ms: float) -> Clock:
    """Times a row whose calls are those of a model; see `call_row`."""
    return RowClock(GraphTimer(device, row) if device.type == "cuda" else RowTimer(row), min_repeat_ms)


def in_turns(clocks: Mapping[Any, Clock], repeats: int) -> dict[Any, list[float]]:
    """`repeats` times of each clock, taken in turns, so that what disturbs the machine disturbs all alike."""
    times: dict[Any, list[float]] = {name: [] for name in clocks}
    for _ in range(repeats):
        for name, clock in clocks.items():
            times[name].append(clock.time_us())
    return times
