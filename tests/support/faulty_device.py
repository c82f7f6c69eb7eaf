"""A device's tuner whose kernels are those of `faulty_worker`: not built, and of times that do not vary.

As a program it takes the place of `tvm_sparse.autotune.fleet.device_tuner`, of a CPU, or of a GPU that the environment
variable FAKE_GPUS names: JSON from what CUDA_VISIBLE_DEVICES says to a name. Where DIES has JSON such as ``{"1": 5}``,
the process whose CUDA_VISIBLE_DEVICES is 1 kills itself before its fifth trial; where there is STARTED, a folder, it
leaves an empty file there for each layer that it begins, called by its process and its device.
"""

import json
import os
import signal
import sys
from pathlib import Path

from tvm_sparse.frontend.optional_imports import of_all_life, without_torch
from tvm_sparse.measure.serve import serve
from tvm_sparse.measure.worker import Worker

with without_torch(), of_all_life():
    from tvm_sparse.autotune.fleet import device_tuner

FAULTY_WORKER = str(Path(__file__).with_name("faulty_worker.py"))
VISIBLE = os.environ.get("CUDA_VISIBLE_DEVICES", "")


class FaultyTuner(device_tuner.DeviceTuner):
    """Dies before a trial of some number, if any."""

    def __init__(self):
        super().__init__()
        self.trials = json.loads(os.environ.get("DIES", "{}")).get(VISIBLE)

    def answer(self, request):
        if request["action"] == "begin" and "STARTED" in os.environ:
            started = Path(os.environ["STARTED"])
            (started / f"{os.getpid()}-{VISIBLE}-{len(list(started.iterdir()))}").touch()
        if request["action"] == "advance" and self.trials is not None:
            self.trials -= 1
            if self.trials <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().answer(request)


def be_gpu(name):
    """Let this process see one GPU, of the project's first architecture, or none."""
    device_tuner.gpu_arch = lambda: name and "sm_90"
    device_tuner.gpu_model = lambda: name


if __name__ == "__main__":
    Worker.command = (sys.executable, FAULTY_WORKER)
    be_gpu(json.loads(os.environ.get("FAKE_GPUS", "{}")).get(VISIBLE))
    tuner = FaultyTuner()
    serve(dict.fromkeys(("hello", "begin", "advance", "end"), tuner.answer))
