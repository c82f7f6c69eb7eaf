"""What tests need that not every machine has, and what keeps them apart from others that run at the same time."""

from __future__ import annotations

import faulthandler
import fcntl
import gc
import os
import sys
import tempfile
from pathlib import Path

import native_library
import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import settings

from tvm_sparse.files import user_folders

# Tests start processes of their own, which need what they share too.
TESTS = Path(__file__).parent
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(TESTS / "support"), str(TESTS.parent / "scripts"), *filter(None, [os.environ.get("PYTHONPATH")])]
)
# TVM's searches allocate and free the same megabytes again and again: where these go back to Linux each time, page
# faults are most of their time. The C library reads this as a process starts: a worker of xdist or one of a test's own.
os.environ |= {"MALLOC_MMAP_THRESHOLD_": str(1 << 25), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
# Test processes share the cores: threads that wait busily for each other take longer than the work.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ |= {"OMP_NUM_THREADS": "1", "TVM_THREAD_POOL_SPIN_COUNT": "0"}
# They start Python a hundred times, which then reads modules that were compiled before, however this one was started.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Hundreds of models are compiled, and compared where a test says so, or who runs them.
os.environ.setdefault("TVM_SPARSE_COMPARE", "0")
# Before the folders below take the place of the user's.
os.environ.setdefault(native_library.FOLDER, str(user_folders.cache_folder() / "test-libraries"))
# An example's time says nothing where other tests run beside it.
settings.register_profile("shared_cores", deadline=None)
settings.load_profile("shared_cores")


@pytest.fixture(scope="session", autouse=True)
def own_temporary_folder(tmp_path_factory):
    """Folders for temporary files and built kernels: nothing waits for tuners outside this process, or finds theirs."""
    with pytest.MonkeyPatch.context() as patch:
        folder = str(tmp_path_factory.mktemp("temporary"))
        patch.setenv("TMPDIR", folder)
        patch.setenv("TVM_SPARSE_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(scope="session", autouse=True)
def a_cpu_without_amx():
    """Verdicts say what AMX is good for on CPUs that have it: tests compare words on all machines."""
    from tvm_sparse.verdict import measured

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measured, "cpu_flags", set)
        yield


@pytest.fixture
def unoptimised(monkeypatch):
    """Code for this machine, whose target a test does not name, is made without LLVM's optimiser; see `zoo`."""
    from tvm_sparse.target import resolve

    config = {**resolve._host_config(), "opt-level": 0}
    monkeypatch.setattr(resolve, "_host_config", lambda: config)


@pytest.fixture
def small_populations(monkeypatch):
    """A search proposes the best of a few candidates, not of many."""
    from tvm_sparse.autotune.search import evolutionary_search

    monkeypatch.setattr(evolutionary_search, "POPULATION", 4)


@pytest.fixture
def nothing_built(monkeypatch, small_populations):
    """What is tuned is not built and all as fast."""
    from tvm_sparse.measure.worker import Worker

    worker = Path(__file__).parent / "support" / "faulty_worker.py"
    monkeypatch.setattr(Worker, "command", (sys.executable, str(worker)))


def pytest_configure(config):
    """Let workers take files in the order in which they were collected, not those of the most tests first."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items):
    """Files with slow tests come first, so that no worker has one left when the others are done."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: item.path not in slow)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is imported stays: to look for garbage in it is a tenth of collecting, then a third of a second each time.

    What tests make is looked through a tenth as often as by default: TVM and torch make many objects and few cycles.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(7_000)
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Tests share a GPU but for those that fill its memory or ask how much is free, which have it to themselves."""
    if item.get_closest_marker("gpu") is None:
        return (yield)
    with Path(__file__).open() as locked:
        fcntl.flock(locked, fcntl.LOCK_EX if item.get_closest_marker("whole_gpu") else fcntl.LOCK_SH)
        return (yield)


def pytest_runtest_setup(item):
    """Skip tests marked ``gpu`` where TVM finds no NVIDIA GPU."""
    if item.get_closest_marker("gpu") is None:
        return
    import tvm

    # A crash then says which line of Python it came from, which TVM's own handler does not.
    faulthandler.disable()
    faulthandler.enable(file=item.config.stash[fault_handler_stderr_fd_key])
    if not tvm.cuda(0).exist:
        pytest.skip("needs an NVIDIA GPU that TVM can use, but tvm.cuda(0) does not exist")
