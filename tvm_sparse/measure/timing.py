"""Time several ways to compute the same thing in turns, so that what disturbs the machine disturbs them all alike."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm_sparse.measure.quartiles import Quartiles

# Thread pools wait busily after their work, OpenMP's and TVM's above all; nobody is timed while another's still do.
# TVM's do for 0.15 s: with two threads on two cores, and a pause of 0.05 s, ONNX Runtime took 39 ms beside it for what
# takes it 19 alone.
PAUSE_S = 0.3


def interleave(
    contenders: Mapping[str, Callable[[], Any]], rounds: int = 20, min_round_ms: float = 5.0
) -> dict[str, tuple[float, ...]]:
    """Mean time of one call in each round, microseconds, by the name of the contender.

    A round runs every contender in turn, each as often as fills `min_round_ms`, after a pause and a quarter as many
    calls, one at least, that are not counted: they wake threads and the clock, and fetch what the others have displaced
    from the caches.
    """
    numbers = {name: _calls(call, min_round_ms * 1e3) for name, call in contenders.items()}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, call in contenders.items():
            time.sleep(PAUSE_S)
            time_us(call, max(1, numbers[name] // 4))
            times[name].append(time_us(call, numbers[name]))
    return {name: tuple(values) for name, values in times.items()}


def speedup(times_us: Sequence[float], baseline_times_us: Sequence[float]) -> Quartiles:
    """How many times faster than a baseline, from the ratios of the two times of each round."""
    return Quartiles.of([baseline / own for own, baseline in zip(times_us, baseline_times_us, strict=True)])


def verdict(ratio: Quartiles) -> str:
    """``faster`` or ``slower`` where three quarters of the rounds say so, else ``undecided``."""
    if ratio.low > 1:
        return "faster"
    return "slower" if ratio.high < 1 else "undecided"


def _calls(call: Callable[[], Any], span_us: float) -> int:
    """How many calls fill `span_us`; the first call is not judged by, it may load and allocate."""
    call()
    return max(1, math.ceil(span_us / max(time_us(call, 1), 0.1)))


def time_us(call: Callable[[], Any], number: int) -> float:
    """Mean time of one of so many calls, microseconds."""
    start_ns = time.perf_counter_ns()
    for _ in range(number):
        call()
    return (time.perf_counter_ns() - start_ns) / number / 1e3
