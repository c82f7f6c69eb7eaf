"""Processes that stand for that of a row: one dies of a rival and hangs in another; needs no torch."""

import os
import signal
import sys
import time

from benchmarks.models import row_process
from benchmarks.models.row import Rival, Row
from benchmarks.report import model_rows


def row_of(case, failures):
    rivals = [Rival(each, failure=failures.get(each.name, "")) for each in case.ways]
    torch_us = {f"torch_{field}_us": 20.0 for field in model_rows.TORCH}
    return Row(
        *(case.model, case.batch, case.density, case.pattern, "float32", 10.0, torch_us, 1.0, None, None, 9.0, 1e-6),
        *(True, 0, None, rivals, [{"layer": "a", "schedule": "b", "time_us": None}]),
    )


def breaking(pipe, case, failures):
    """Dies of the first way and hangs in the second; a network called ``wrong`` has no row, ``broken`` ends."""
    if case.model == "wrong":
        pipe.send((row_process.FAILED, "wrong: it differs"))
        return
    if case.model == "broken":
        sys.exit(3)
    pipe.send((row_process.BUILT, None))
    pipe.recv()
    for way in case.ways:
        if way.name not in failures:
            pipe.send((row_process.DOING, way.name))
            if way is case.ways[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
    pipe.send((row_process.DOING, ""))
    pipe.send((row_process.ROWS, [row_of(case, failures)]))
