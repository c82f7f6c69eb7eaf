"""How many threads compiled code runs with: TVM keeps a pool of them for each thread that calls it.

A pool is as large as it was when its thread first called, one thread a physical core if nobody said otherwise, and TVM
then confines the caller to one core, with every thread that it starts later. So it is made here, with all cores, and
bound to none.

It ends with the thread that it was made for, and does not survive a fork: a child of a thread with a pool waits for its
workers in the next call, and when it exits. So only threads of `crew` have one.
"""

import ctypes
import os
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import tvm
import tvm_ffi

# TVM's `ThreadGroup::AffinityMode`: every thread may run on each of the given cores.
_SHARE_ALL_CORES = -3
# How often a worker of a pool looks for work before it sleeps, about 1 us each. TVM's own number, 300,000, keeps cores
# busy for a third of a second after each call; the pauses between the layers of a model are shorter than this one.
_SPIN_COUNT = ("TVM_THREAD_POOL_SPIN_COUNT", "2000")


class _Current(threading.local):
    """The number of threads that the calling thread's pool was last told to use."""

    count = 0


_CURRENT = _Current()


def use_threads(count: int) -> None:
    """Run what the calling thread calls from now on with `count` threads, or with all cores where there are fewer.

    Takes 0.1 us, and 5 us where the number changes.
    """
    if _CURRENT.count != count:
        # TVM reads it once, when the first pool of the process is made.
        os.environ.setdefault(*_SPIN_COUNT)
        cores = [str(core) for core in sorted(os.sched_getaffinity(0))]
        # Mode, threads used, cores, and the size of pools that are made from now on.
        configure = tvm_ffi.get_global_func("runtime.config_threadpool")
        configure(_SHARE_ALL_CORES, min(count, len(cores)), cores, len(cores))
        _CURRENT.count = count


def run_alone(function: Callable[[], Any]) -> Any:
    """What `function` returns, run by the calling thread without others, which gets no pool for it."""
    most, set_most = _concurrency()
    before = most()
    set_most(1)
    try:
        return function()
    finally:
        set_most(before)


@lru_cache(maxsize=1)
def _concurrency() -> tuple[Callable[[], int], Callable[[int], None]]:
    """Get and set how many threads the calling thread may use, which TVM offers to C++ only; where 1, it makes no pool.

    TVM has the names of its libraries there for its users.
    """
    # PyDLL, unlike CDLL, keeps Python's lock, which is more work to take again than these calls are.
    library = ctypes.PyDLL(tvm.base._LOADED_LIBS["tvm_runtime"]._name)
    return library._ZN3tvm7runtime9threading14MaxConcurrencyEv, library._ZN3tvm7runtime9threading17SetMaxConcurrencyEi
