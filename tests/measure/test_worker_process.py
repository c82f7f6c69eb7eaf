"""A worker process is talked to whatever the number of its descriptors."""

import os
import resource
import sys

import pytest

from tvm_sparse.measure.worker_process import Channel

ECHO = "import sys\nfor line in sys.stdin: print(line.strip(), flush=True)"


@pytest.fixture
def many_descriptors():
    """Every descriptor below 1100 is taken."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip(f"this process may open {hard} files at most")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    taken = []
    while not taken or taken[-1] < 1100:
        taken.append(os.open(os.devnull, os.O_RDONLY))
    yield
    for descriptor in taken:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_descriptors_above_1023(many_descriptors):
    channel = Channel([sys.executable, "-c", ECHO], {})
    try:
        assert min(channel._in, channel._out) > 1023
        # More than a pipe holds, so that both directions wait for each other.
        request = {"text": "x" * 300_000}
        assert channel.ask(request, 60) == request
        assert not channel.is_broken
    finally:
        channel.close()
