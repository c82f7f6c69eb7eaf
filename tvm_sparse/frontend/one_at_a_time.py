"""Importing and building models, by one thread of the process at a time.

`torch.export` and TVM's builder of Relax functions keep what they work on in variables of the process.
"""

import functools
import os
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tvm_sparse.errors import UsageError

P = ParamSpec("P")
T = TypeVar("T")

# Re-entrant: a comparison that finds a difference compiles operators alone.
_TURN = threading.RLock()
_CUT_OFF = threading.Event()


def one_at_a_time(function: Callable[P, T]) -> Callable[P, T]:
    """`function`, which waits until no other thread is in one of those that went through here.

    It raises UsageError in a process that was forked while another thread was in one: what that thread left half done
    stays so.
    """

    @functools.wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> T:
        if _CUT_OFF.is_set():
            hint = "fork before or after, or start processes by multiprocessing's method spawn"
            raise UsageError("compile", "another thread was compiling when this process was forked", hint=hint)
        with _TURN:
            return function(*args, **kwargs)

    return alone


def _after_fork() -> None:
    if _TURN.acquire(blocking=False):
        _TURN.release()
    else:
        _CUT_OFF.set()


os.register_at_fork(after_in_child=_after_fork)
