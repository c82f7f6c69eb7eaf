"""A worker whose kernels are not built and whose times follow from their decisions, for `kill_tuner`."""

import json
import os
import time
import zlib
from pathlib import Path
from typing import Any

from tvm_sparse.measure import worker_main
from tvm_sparse.measure.serve import serve

# Environment variable with the file in which finished trials are noted.
EVENTS = "FAKE_KERNELS_EVENTS"
# Seconds that a build and a run take.
BUILD_S, RUN_S = 0.02, 0.03


def build(request: dict[str, Any]) -> dict[str, Any]:
    """A worker's build that takes a moment: the library holds only what it is a kernel of."""
    time.sleep(BUILD_S)
    trial = [request["spec"], request["schedule"], request["decisions"]]
    Path(request["library"]).write_text(json.dumps(trial, sort_keys=True))
    return {}


def run(request: dict[str, Any]) -> dict[str, Any]:
    """A worker's run: times that follow from the kernel; one in nine fails."""
    trial = Path(request["library"]).read_text()
    number = zlib.crc32(trial.encode())
    time.sleep(RUN_S)
    with Path(os.environ[EVENTS]).open("a") as events:
        events.write(trial + "\n")
    if number % 9 == 0 and '"dense' not in trial:
        raise RuntimeError("CUDA: an illegal memory access was encountered")
    times_us = [10 + number % 1000 / 100] * request["repeats"]
    dense_times_us = [30.0] * request["repeats"] * bool(request["baseline"])
    return {"error": 0.25, "times_us": times_us, "dense_times_us": dense_times_us}


if __name__ == "__main__":
    serve({**worker_main.ACTIONS, "build": build, "run": run})
