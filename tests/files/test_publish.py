"""Files and folders take their place whole, or what was there stays as it was."""

import os
from types import SimpleNamespace

import pytest
from killed import is_killed_at, leave_staging
from limits import largest_file

from tvm_sparse.files import publish


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_made_and_replaced(tmp_path):
    """Its mode stays, and what killed writers have left goes."""
    path = tmp_path / "file"
    publish.write(path, b"old")
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()
    path.chmod(0o640)
    leave_staging(tmp_path)
    publish.write(path, b"new")
    assert path.read_bytes() == b"new" and path.stat().st_mode & 0o777 == 0o640
    assert names(tmp_path) == ["file"]


def test_what_a_link_leads_to_is_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to("folder/file")
    publish.write(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "folder" / "file").read_bytes() == b"new"
    assert names(tmp_path / "folder") == ["file"]


def test_an_error_changes_nothing(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), publish.replaced(path) as file:
        file.write(b"half")
        raise RuntimeError
    with largest_file(1000), pytest.raises(OSError, match="File too large"):
        publish.write(path, bytes(2000))
    assert path.read_bytes() == b"old" and names(tmp_path) == ["file"]


def test_what_is_no_file_stays(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path):
        with pytest.raises(OSError, match="it is no regular file"):
            publish.write(path, b"text")
    assert (tmp_path / "fifo").is_fifo()


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.conformance)])
def test_a_kill_at_any_step_leaves_a_whole_file(tmp_path, stride):
    path, seen, step = tmp_path / "file", set(), 1
    path.write_bytes(b"old")
    while is_killed_at(step, lambda: publish.write(path, b"the new one")):
        seen.add(path.read_bytes())
        publish.write(path, b"old")
        assert names(tmp_path) == ["file"]
        step += stride
    assert seen == {b"old", b"the new one"}


def test_room_is_asked_for(tmp_path, monkeypatch):
    """On the disk, and of a limit for files; not of a file system that does not say how large it is."""
    publish.require_room(tmp_path, 1000)
    with largest_file(1000), pytest.raises(OSError, match="File too large"):
        publish.require_room(tmp_path, 1001)
    found = SimpleNamespace(f_blocks=100, f_bavail=10, f_frsize=100)
    monkeypatch.setattr(os, "statvfs", lambda _: found)
    publish.require_room(tmp_path, 1000)
    with pytest.raises(OSError, match="No space left"):
        publish.require_room(tmp_path, 1001)
    found.f_blocks = 0
    publish.require_room(tmp_path, 1001)


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask
