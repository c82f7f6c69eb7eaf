"""Locks are kept where nobody but their user can put anything."""

import os
import tempfile

import pytest

from tvm_sparse.errors import UsageError
from tvm_sparse.measure import device_lock


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the locks will be."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"tvm-sparse-locks-{os.getuid()}"


def test_the_folder_is_made_for_this_user_alone(folder):
    for _ in range(2):
        with device_lock.alone("cpu"):
            assert folder.stat().st_mode & 0o777 == 0o700
            assert [path.name for path in folder.iterdir()] == ["cpu.lock"]


def foreign(folder):
    folder.mkdir()
    if os.getuid() == 0:
        os.chown(folder, 12345, -1)
    else:
        folder.chmod(0o777)


def writable(folder):
    folder.mkdir()
    folder.chmod(0o770)


def link(folder):
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "elsewhere")


@pytest.mark.parametrize("make", [foreign, writable, link, lambda folder: folder.symlink_to("nowhere")])
def test_what_others_may_have_made_is_refused(folder, make):
    make(folder)
    with pytest.raises(UsageError, match="not this user's alone; remove it, or set TMPDIR"), device_lock.alone("cpu"):
        pass
    assert not (folder.parent / "elsewhere" / "cpu.lock").exists()
