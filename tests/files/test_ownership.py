"""Who counts as somebody else who could change a file."""

import grp
import os
import pwd
from pathlib import Path
from types import SimpleNamespace

import pytest

from tvm_sparse.files import ownership
from tvm_sparse.files.ownership import exposed

STRANGER = 54_321


@pytest.fixture
def path(tmp_path):
    """A file in a folder, both this user's alone."""
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o755)
    (folder / "file").touch(mode=0o644)
    return folder / "file"


def test_what_is_this_user_s_alone_is_not_exposed(path):
    """Also where anybody may put files beside it, but not move it."""
    assert exposed(path) == exposed(path.parent) == ""
    path.parent.parent.chmod(0o1777)
    assert exposed(path) == ""


@pytest.mark.parametrize(("name", "of"), [("folder/file", 0o646), ("folder", 0o757), (".", 0o777)])
def test_what_everybody_may_write_is(path, name, of):
    """The file, its folder, and folders above it, where another folder could be put in its place."""
    place = path.parent.parent / name
    place.chmod(of)
    assert exposed(path) == f"everybody may write to {place}"


def user(monkeypatch, name, gid, members=()):
    """Let group 777 be called `name`; its user is this one, whose primary group is `gid`."""
    found = pwd.struct_passwd((name, "", os.getuid(), gid, "", "", ""))
    monkeypatch.setattr(grp, "getgrgid", lambda _: grp.struct_group((name, "", 777, list(members))))
    monkeypatch.setattr(pwd, "getpwnam", lambda _: found)


@pytest.mark.parametrize(
    ("gid", "members", "is_private"),
    [("own", [], True), ("own", ["alice"], True), ("own", ["alice", "bob"], False), (1, [], False)],
)
def test_a_group_of_the_user_alone_is_nobody_else(path, monkeypatch, gid, members, is_private):
    """As where new files are writable for the group, umask 002."""
    path.chmod(0o664)
    user(monkeypatch, "alice", path.stat().st_gid if gid == "own" else gid, members)
    assert exposed(path) == ("" if is_private else f"group alice may write to {path}")


def test_a_group_without_a_user_is_somebody_else(path, monkeypatch):
    path.parent.chmod(0o775)
    monkeypatch.setattr(pwd, "getpwnam", {}.__getitem__)
    assert exposed(path).endswith(f"may write to {path.parent}")
    monkeypatch.setattr(grp, "getgrgid", {}.__getitem__)
    assert exposed(path) == f"group {path.stat().st_gid} may write to {path.parent}"


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("name", ["folder/file", "folder", "."])
def test_what_belongs_to_somebody_else_is_exposed(path, name):
    place = (path.parent.parent / name).resolve()
    os.chown(place, STRANGER, -1)
    assert exposed(path) == f"{place} belongs to user {STRANGER}"


@pytest.mark.skipif(Path("/usr").stat().st_uid != 0, reason="this is a user namespace without root")
def test_root_is_nobody_else(monkeypatch):
    """To any user: what the system installed is loaded."""
    monkeypatch.setattr(os, "getuid", lambda: STRANGER)
    assert exposed("/usr") == ""


def test_links_are_followed_and_looked_at(path, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(path.parent)
    assert exposed(link / "file") == ""
    path.parent.chmod(0o777)
    assert exposed(link / "file") == f"everybody may write to {path.parent}"
    path.parent.chmod(0o755)
    if os.getuid() == 0:
        os.chown(link, STRANGER, -1, follow_symlinks=False)
        assert exposed(link / "file") == f"{link} belongs to user {STRANGER}"


@pytest.mark.parametrize(("uid_map", "is_exposed"), [("0 1000 1\n", False), ("0 0 4294967295\n", True), ("", True)])
def test_a_user_namespace_s_strangers_may_own_the_folders_above(path, monkeypatch, uid_map, is_exposed):
    """Root's are among them there; but not the file itself, nor in any other container."""
    files = {"/proc/sys/kernel/overflowuid": "65534\n", "/proc/self/uid_map": uid_map}

    def read(name):
        if not files[name]:
            raise FileNotFoundError(name)
        return files[name]

    monkeypatch.setattr(ownership, "Path", lambda name: SimpleNamespace(read_text=lambda: read(name)))
    assert ownership._strangers_to_namespace() == (set() if is_exposed else {65_534})
