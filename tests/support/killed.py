"""Processes that are killed at a moment that a test names."""

import os
import signal
import sys
from pathlib import Path

from tvm_sparse.files.staging import PREFIX, Staging

# What Python tells of before it does it: the steps between which a killed writer may stop.
STEPS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.scandir", "fcntl.flock"}


def is_killed_at(step: int, action) -> bool:
    """Run `action` in a fork that dies, as of kill -9, before the given one of its `STEPS`; whether it had so many."""
    child = os.fork()
    if not child:
        try:
            _die_at(step)
            action()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), "the action failed"
    return code != 0


def leave_staging(place):
    """The folder with half a file that a writer leaves in `place` who is killed."""
    child = os.fork()
    if not child:
        Path(Staging(place).name, "half").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    (left,) = place.glob(f"{PREFIX}*")
    return left


def _die_at(step: int) -> None:
    steps = iter(range(1, step + 1))

    def hook(event, _arguments):
        if event in STEPS and next(steps, step) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
