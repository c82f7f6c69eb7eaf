"""A cuDNN that computes on the host in the place of NVIDIA's, also for the schedule, which then serves the host."""

from __future__ import annotations

import cudnn_on_host
import pytest
from fake_cudnn import FakeCudnn, compiled

from tvm_sparse.cudnn import library, packed_function
from tvm_sparse.scheduling.cuda.library import staging


@pytest.fixture(scope="session")
def fake_folder(tmp_path_factory):
    """A folder that CUDNN_PATH may name."""
    folder = tmp_path_factory.mktemp("cudnn")
    compiled(folder / "lib")
    return folder


@pytest.fixture
def fake(fake_folder, monkeypatch):
    """The loaded library, which is the one that is found and that compiled code calls."""
    found = FakeCudnn(fake_folder / "lib" / library.NAME)
    found.reset()
    monkeypatch.setattr(library, "find", lambda: found.library.path)
    monkeypatch.setattr(library, "load", lambda: found.library)
    # What writes an input anew runs on the host too, before it is bound to threads.
    monkeypatch.setattr(staging, "schedule_staged", lambda func, _: func)
    packed_function.register.cache_clear()
    packed_function.register()
    yield found
    found.reset()
    packed_function.register.cache_clear()


@pytest.fixture
def on_host(fake, monkeypatch):
    """Lets the schedule serve targets of the host, where the library computes, and be the first to, as on a GPU."""
    for change in cudnn_on_host.changes():
        monkeypatch.setattr(*change)
    return fake
