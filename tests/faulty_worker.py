"""A worker whose kernels misbehave, to be run in place of `tvm_sparse.worker`.

A candidate's schedule says what it does: ``build exits``, ``run hangs``; any other builds and runs well. No kernel is
built and TVM is not imported, so a worker starts at once.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tvm_sparse import worker


def misbehave(how):
    """Do what `how` says; what does not end the process returns."""
    if how.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, how))
    elif how == "exits":
        print("the last words", file=sys.stderr, flush=True)
        os._exit(7)
    elif how == "hangs":
        time.sleep(600)
    elif how == "raises":
        raise RuntimeError("out of registers")
    elif how == "crashes":
        raise AssertionError("not an error that the worker expects")
    elif how == "prints":
        print('{"failure": "this is not an answer"}', flush=True)
    elif how.startswith("leaves a compiler"):
        compiler = subprocess.Popen(["sleep", "600"])
        Path(how.split("=")[1]).write_text(str(compiler.pid))
        time.sleep(600)


def build(request):
    """Misbehave, or write the schedule's name as the library."""
    if request["schedule"].startswith("build "):
        misbehave(request["schedule"].removeprefix("build "))
    for path in (request["library"], worker.constants_path(request["library"])):
        Path(path).write_text(request["schedule"])
    return {}


def run(request):
    """Misbehave as the library says, or report an error in bounds and times of 10 us and 20 us for the rival."""
    how = Path(request["library"]).read_text().removeprefix("run ")
    misbehave(how)
    error = {"is wrong": 3.5, "writes nothing": float("inf"), "is undefined": float("nan")}.get(how, 0.25)
    repeats = request["repeats"] if error <= 1 else 0
    return {"error": error, "times_us": [10.0] * repeats, "rival_times_us": [20.0] * repeats * bool(request["rival"])}


if __name__ == "__main__":
    worker._ACTIONS.update(build=build, run=run)
    worker.main()
