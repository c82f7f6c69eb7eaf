"""A device's tuner whose kernels are those of `faulty_worker`: not built, and of times that do not vary.

As a program it takes the place of `tvm_sparse.autotune.device_tuner`. Where the environment variable FAULTS has
``"tuner"``, ``{"tuner": N}``, its process kills itself before its Nth trial.
"""

import json
import os
import signal
import sys
from pathlib import Path

from tvm_sparse.autotune.device_tuner import DeviceTuner
from tvm_sparse.measure import worker_main
from tvm_sparse.measure.worker import Worker

FAULTY_WORKER = str(Path(__file__).with_name("faulty_worker.py"))


class FaultyTuner(DeviceTuner):
    """Dies before a trial of some number."""

    def __init__(self, trials=None):
        super().__init__()
        self.trials = trials

    def answer(self, request):
        if request["action"] == "advance" and self.trials is not None:
            self.trials -= 1
            if self.trials < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().answer(request)


if __name__ == "__main__":
    Worker.command = (sys.executable, FAULTY_WORKER)
    tuner = FaultyTuner(json.loads(os.environ.get("FAULTS", "{}")).get("tuner"))
    worker_main.serve(dict.fromkeys(("hello", "begin", "advance", "end"), tuner.answer))
