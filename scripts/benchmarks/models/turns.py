"""Calls timed in turns, on a GPU by its own clock, and the kernels of one call by the profiler."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch

from benchmarks.gpu.model_profile import profile, spans_us
from benchmarks.models.rivals import Call
from tvm_sparse.measure import timing

ROUNDS, MIN_ROUND_MS = 12, 20.0


def in_turns(calls: Mapping[Any, Call], on_gpu: bool) -> dict[Any, list[float]]:
    """Microseconds a call in each round; each round calls every contender as often as fills `MIN_ROUND_MS`."""
    time_us = _on_gpu_us if on_gpu else timing.time_us
    numbers = {}
    for name, call in calls.items():
        time_us(call, 3)
        numbers[name] = max(3, round(MIN_ROUND_MS * 1e3 / time_us(call, 5)))
    found: dict[Any, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            # The first call after another contender's finds its data and code displaced, the GPU's clock changed.
            time_us(call, 1)
            found[name].append(time_us(call, numbers[name]))
    return found


def _on_gpu_us(call: Call, number: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(number):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / number


def kernel_times_us(call: Call, calls: int = 10) -> list[dict[str, Any]]:
    """Kernels of one call by the profiler: name, times it ran, microseconds of all of these together.

    A kernel that starts early counts from the end of the one that it waits for.
    """
    totals: dict[str, list[float]] = defaultdict(list)
    for name, us in spans_us(profile(call, calls, as_graph=False)):
        totals[name].append(us)
    rows = [{"kernel": name, "number": len(us) / calls, "us": sum(us) / calls} for name, us in totals.items()]
    return sorted(rows, key=lambda row: -row["us"])
