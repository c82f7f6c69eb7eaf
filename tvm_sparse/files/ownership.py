"""Who could change a file. Code is loaded from where nobody but this user and root can put any."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
from pathlib import Path


def exposed(path: str | Path) -> str:
    """How somebody beside this user and root could change what is at `path`, or put something else there; empty: not.

    Folders above it are looked at too, and the links that lead there. A group counts as nobody else where it is a
    user's own: it has the name of this user or of root, is that user's primary group, and has no other members. Where
    new files are writable for the group (umask 002), that is how groups are made.
    """
    path = Path(path).absolute()
    real = path.resolve()
    places = dict.fromkeys((real, path, *real.parents, *path.parents))
    return next(filter(None, (_exposed(each, each not in (path, real)) for each in places)), "")


def make_private(folder: Path) -> bool:
    """Make `folder` where it does not exist yet; whether nobody else can put files, or links to files, there."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return is_own and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _exposed(path: Path, is_above: bool) -> str:
    owners = {os.getuid(), 0}
    if is_above:
        owners |= _strangers_to_namespace()
    for found in (path.lstat(), path.stat()):
        if found.st_uid not in owners:
            return f"{path} belongs to {_user(found.st_uid)}"
        # The mode of a link says nothing. In a folder with the sticky bit, as /tmp, only owners move what is theirs.
        if stat.S_ISLNK(found.st_mode) or (stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX):
            continue
        if found.st_mode & stat.S_IWOTH:
            return f"everybody may write to {path}"
        if found.st_mode & stat.S_IWGRP and not _is_private(found.st_gid):
            return f"group {_group(found.st_gid)} may write to {path}"
    return ""


def _is_private(gid: int) -> bool:
    try:
        group = grp.getgrgid(gid)
        user = pwd.getpwnam(group.gr_name)
    except KeyError:
        return False
    return user.pw_uid in (os.getuid(), 0) and user.pw_gid == gid and set(group.gr_mem) <= {user.pw_name}


def _strangers_to_namespace() -> set[int]:
    """The owner that all others seem to be to a process in a user namespace, as in containers without root.

    The system's folders, root's outside, are theirs; none outside of such a namespace.
    """
    try:
        owner = int(Path("/proc/sys/kernel/overflowuid").read_text())
        mapped = [list(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    except (OSError, ValueError):
        return set()
    return set() if any(first <= owner < first + count for first, _, count in mapped) else {owner}


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
