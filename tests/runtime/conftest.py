"""Fixtures of artifacts."""

import pytest


@pytest.fixture
def saved(master, tmp_path):
    """A copy, to be damaged, of the artifact `master`, which a module's tests share."""
    copy = tmp_path / "net"
    copy.mkdir()
    for path in master.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy
