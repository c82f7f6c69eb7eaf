"""The process of one contender: ``python -m tvm_sparse.verdict.worker``.

A contender has a process of its own, as threads that wait busily for more work would take the cores of the others. Only
names of files and numbers travel.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.storage import is_half
from tvm_sparse.measure import timing
from tvm_sparse.measure.serve import serve

# Threads are taken to be asleep where the process has less than this share of one core for so long; after the longest
# time the next contender is timed anyway.
ASLEEP_SHARE, LOOK_S, MOST_WAIT_S = 0.2, 0.02, 0.5
_opened: list[Callable[[], Any]] = []


def open_contender(request: dict[str, Any]) -> dict[str, Any]:
    """Load a contender, run it once and write its ``outputs``; the answer is how long a call then takes.

    Every answer says for how long the process has run on cores.
    """
    # TVM is imported within `serve`, which hides torch from it.
    from tvm_sparse.verdict.engines import ENGINES

    call = ENGINES[request["engine"]](request)
    outputs = [each.numpy() if hasattr(each, "numpy") else np.asarray(each) for each in call()]
    # A file of arrays knows no bfloat16.
    np.savez(request["outputs"], *(each.astype(FLOAT32) if is_half(each.dtype.name) else each for each in outputs))
    _opened[:] = [call]
    found_us = min(timing.time_us(call, 1) for _ in range(2))
    _fall_asleep()
    return {"time_us": found_us, "cpu_s": time.process_time()}


def time_contender(request: dict[str, Any]) -> dict[str, Any]:
    """The mean time of ``number`` calls, after a quarter as many that do not count; threads sleep when it answers."""
    (call,) = _opened
    timing.time_us(call, max(1, request["number"] // 4))
    found_us = timing.time_us(call, request["number"])
    _fall_asleep()
    return {"time_us": found_us, "cpu_s": time.process_time()}


def _fall_asleep() -> None:
    """Wait until no thread of this process waits busily."""
    end_s = time.monotonic() + MOST_WAIT_S
    while time.monotonic() < end_s:
        before_s = time.process_time()
        time.sleep(LOOK_S)
        if time.process_time() - before_s < ASLEEP_SHARE * LOOK_S:
            return


if __name__ == "__main__":
    serve({"open": open_contender, "time": time_contender})
