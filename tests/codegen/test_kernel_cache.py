"""What is kept of built kernels: found again, never half, never more than its limit, and never somebody else's."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from unittest.mock import Mock

import pytest
from killed import leave_staging
from limits import largest_file, with_tmpfs

from tvm_sparse.codegen import kernel_cache
from tvm_sparse.codegen.kernel_cache import LIMIT, KernelCache, content_key
from tvm_sparse.errors import UsageError
from tvm_sparse.files.staging import Staging
from tvm_sparse.files.user_folders import HOME, cache_folder

KEYS = [content_key({"number": number}) for number in range(8)]
WRITER = """
import sys
from pathlib import Path
from tvm_sparse.frontend.optional_imports import without_torch
with without_torch():
    from tvm_sparse.codegen.kernel_cache import KernelCache, content_key
cache = KernelCache(Path(sys.argv[1]), 1 << 40)
print("ready", flush=True)
while True:
    for number in range(8):
        cache.write(content_key({"number": number}), bytes([number]) * 3_000_000)
"""


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    """An empty one, practically without limit."""
    return KernelCache(tmp_path, 1 << 40)


def files(folder: Path) -> list[Path]:
    """Its files, the oldest first."""
    return sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)


def test_what_is_written_is_read(cache: KernelCache) -> None:
    """Also by another process, also nothing, also in the place of something else."""
    assert cache.read(KEYS[0]) is None
    for content in (b"code", b"", b"other code" * 1000):
        cache.write(KEYS[0], content)
        assert cache.read(KEYS[0]) == content
        assert KernelCache(cache.folder, 1).read(KEYS[0]) == content
    assert len(files(cache.folder)) == 1
    assert files(cache.folder)[0].stat().st_mode & 0o077 == 0


def test_keys_depend_on_the_content_and_on_what_makes_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the values, not on their order; on versions and on our own code."""
    key = content_key({"a": 1, "b": [2, "x"]})
    assert key == content_key({"b": [2, "x"], "a": 1})
    assert len({key, content_key({"a": 2, "b": [2, "x"]}), content_key({"a": 1, "b": ["x", 2]})}) == 3
    versions = kernel_cache._versions()
    assert set(versions) == {"tvm-sparse", "code", "apache-tvm", "apache-tvm-ffi"}
    for name in versions:
        monkeypatch.setattr(kernel_cache, "_versions", lambda name=name: {**versions, name: "other"})
        assert content_key({"a": 1, "b": [2, "x"]}) != key


def test_a_change_of_our_code_changes_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any package that decides what a kernel becomes; they are all there."""
    root = Path(kernel_cache.__file__).parents[1]
    assert all(list((root / package).rglob("*.py")) for package in kernel_cache._DECIDING)
    (tmp_path / "codegen").mkdir()
    monkeypatch.setattr(kernel_cache, "__file__", str(tmp_path / "codegen" / "kernel_cache.py"))
    codes = set()
    for name, text in (("a.py", "1"), ("a.py", "2"), ("b.py", "1")):
        (tmp_path / "codegen" / name).write_text(text)
        kernel_cache.code_digest.cache_clear()
        codes.add(kernel_cache._versions.__wrapped__()["code"])
    kernel_cache.code_digest.cache_clear()
    assert len(codes) == 3


DAMAGES = {
    "cut": lambda data: data[:-1],
    "empty": lambda data: b"",
    "digest": lambda data: data[:30] + bytes([data[30] ^ 1]) + data[31:],
    "content": lambda data: data[:-5] + bytes([data[-5] ^ 1]) + data[-4:],
    "longer": lambda data: data + b"!",
    "nonsense": lambda data: b"nonsense",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_counts_as_none(cache: KernelCache, damage: object) -> None:
    """It is removed; writing it again works."""
    cache.write(KEYS[0], b"some code")
    path = cache.folder / KEYS[0]
    path.write_bytes(damage(path.read_bytes()))
    assert cache.read(KEYS[0]) is None
    assert not path.exists()
    cache.write(KEYS[0], b"some code")
    assert cache.read(KEYS[0]) == b"some code"


def test_the_files_used_longest_ago_go_first(tmp_path: Path) -> None:
    """Reading is using."""
    cache = KernelCache(tmp_path, 350)
    for number, key in enumerate(KEYS[:3]):
        cache.write(key, bytes(40))
        os.utime(tmp_path / key, (number, number))
    assert cache.read(KEYS[0]) is not None
    for key in KEYS[3:5]:
        cache.write(key, bytes(40))
    kept = {key for key in KEYS if (tmp_path / key).exists()}
    assert KEYS[0] in kept and KEYS[1] not in kept and KEYS[4] in kept
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 350


def test_what_killed_writers_leave_is_removed(tmp_path: Path) -> None:
    """Not while they are still writing."""
    killed = leave_staging(tmp_path)
    with Staging(tmp_path) as living:
        KernelCache(tmp_path, 1 << 20).write(KEYS[0], b"code")
        assert living.exists() and not killed.exists()
    assert [path.name for path in tmp_path.iterdir()] == [KEYS[0]]


def test_a_date_in_the_future_keeps_no_file(tmp_path: Path) -> None:
    """Of a clock that was wrong; nor is what is no file of the cache counted or removed."""
    (tmp_path / "notes.txt").write_bytes(bytes(1000))
    cache = KernelCache(tmp_path, 350)
    for days, key in enumerate(KEYS[:5], 1):
        cache.write(key, bytes(40))
        os.utime(tmp_path / key, (time.time() + days * 86_400,) * 2)
    cache.write(KEYS[5], bytes(40))
    assert (tmp_path / KEYS[5]).exists() and (tmp_path / "notes.txt").exists()
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 1350


def test_two_writers_and_a_kill_leave_no_half(tmp_path: Path) -> None:
    """Whatever is found is whole, while two processes write the same files and after both are killed."""
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    for writer in writers:
        assert writer.stdout.readline() == b"ready\n"
    cache, found = KernelCache(tmp_path, 1 << 40), dict.fromkeys(KEYS, 0)
    end_s = time.monotonic() + 120
    while min(found.values()) < 5 and time.monotonic() < end_s:
        for number, key in enumerate(KEYS):
            content = cache.read(key)
            assert content is None or content == bytes([number]) * 3_000_000
            found[key] += content is not None
    for writer in writers:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
    assert min(found.values()) >= 5
    for number, key in enumerate(KEYS):
        assert cache.read(key) == bytes([number]) * 3_000_000


def test_a_link_or_a_stranger_s_file_is_not_read(cache: KernelCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine code comes from nobody else."""
    cache.write(KEYS[0], b"code")
    (cache.folder / KEYS[1]).symlink_to(cache.folder / KEYS[0])
    with pytest.warns(UserWarning, match="built kernels cannot be kept"):
        assert cache.read(KEYS[1]) is None
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert cache.read(KEYS[0]) is None


def test_where_the_user_s_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """$TVM_SPARSE_HOME, $XDG_CACHE_HOME, the home folder, in this order; relative ones are ignored."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv(HOME, str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "own"
    found = KernelCache.of_user()
    assert found.folder == tmp_path / "own" / "kernels" and found.folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv(HOME, "relative")
    assert cache_folder() == tmp_path / "xdg" / "tvm-sparse"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == tmp_path / "home" / ".cache" / "tvm-sparse"


def test_the_limit_is_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """0 is off, and touches nothing; nonsense is named."""
    monkeypatch.setenv(HOME, str(tmp_path))
    monkeypatch.setenv(LIMIT, "3")
    assert KernelCache.of_user().limit_bytes == 3 << 20
    monkeypatch.setenv(HOME, str(tmp_path / "other"))
    monkeypatch.setenv(LIMIT, "0")
    assert KernelCache.of_user() is None and not (tmp_path / "other").exists()
    monkeypatch.setenv(LIMIT, "much")
    with pytest.raises(UsageError, match=r"TVM_SPARSE_CACHE_MIB: not a number of MiB, found much; allowed: 0 or more"):
        KernelCache.of_user()


@pytest.mark.parametrize(
    ("folder", "mode", "message"),
    [
        ("home/kernels", 0o777, "home/kernels is not this user's alone; set TVM_SPARSE_CACHE_MIB=0 to keep none"),
        ("home", 0o777, "everybody may write to .*home; set"),
        (".", 0o777, "everybody may write to .*; set"),
        (".", 0o1777, None),
    ],
)
def test_a_folder_that_others_can_write_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, mode: int, message: str | None
) -> None:
    """They could put code there, or another folder in its place. Compiling goes on."""
    monkeypatch.setenv(HOME, str(tmp_path / "home"))
    (tmp_path / "home" / "kernels").mkdir(parents=True)
    (tmp_path / folder).chmod(mode)
    with pytest.warns(UserWarning, match=f"cannot be kept: .*{message}") if message else contextlib.nullcontext():
        assert (KernelCache.of_user() is None) == bool(message)


def test_links_on_the_way_to_the_cache_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody else could change them: a home on another disk is common."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "home").symlink_to("disk")
    monkeypatch.setenv(HOME, str(tmp_path / "home"))
    KernelCache.of_user().write(KEYS[0], b"code")
    assert (tmp_path / "disk" / "kernels" / KEYS[0]).exists()
    (tmp_path / "disk").chmod(0o777)
    with pytest.warns(UserWarning, match="everybody may write to .*disk"):
        assert KernelCache.of_user() is None


READ_ONLY = """
import os, subprocess, sys, warnings
from pathlib import Path
from tvm_sparse.frontend.optional_imports import without_torch
with without_torch():
    from tvm_sparse.codegen.kernel_cache import KernelCache, content_key
disk, full = map(Path, sys.argv[1:])
os.environ["TVM_SPARSE_HOME"] = str(disk)
KernelCache.of_user().write("a" * 64, b"code")
subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("default")
    cache = KernelCache.of_user()
    for key in ("b" * 64, "c" * 64):
        assert cache.read("a" * 64) == b"code" and cache.read(key) is None
        cache.write(key, b"more")
        cache.remove("a" * 64)
        KernelCache(full, 1 << 30).write(key, bytes(100_000))
print(*(each.message for each in found), sep="\\n")
"""


def test_disks_that_are_read_only_or_full(tmp_path: Path) -> None:
    """What is there is used; that nothing is kept is said once."""
    read_only, full = tmp_path / "read-only", tmp_path / "full"
    lines = with_tmpfs({read_only: "rw", full: "size=8k"}, READ_ONLY, read_only, full).splitlines()
    assert lines == [
        f"built kernels cannot be kept: {folder}: {why}; set TVM_SPARSE_CACHE_MIB=0 to keep none"
        for folder, why in ((read_only / "kernels", "Read-only file system"), (full, "No space left on device"))
    ]


def test_larger_files_than_allowed_are_not_kept(tmp_path: Path) -> None:
    """With a limit for files, as of a quota; what is there stays."""
    cache = KernelCache(tmp_path, 1 << 30)
    cache.write(KEYS[0], b"code")
    with largest_file(1000), pytest.warns(UserWarning, match=r"cannot be kept: .*: File too large"):
        cache.write(KEYS[0], bytes(2000))
    assert cache.read(KEYS[0]) == b"code" and len(files(tmp_path)) == 1


def test_without_a_home_there_is_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among temporary files: of a container that is run as a user whom it does not know."""
    for name in (HOME, "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", Mock(side_effect=RuntimeError("no home")))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert cache_folder() == tmp_path / f"tvm-sparse-{os.getuid()}"
    assert KernelCache.of_user() is not None
    cache_folder().chmod(0o777)
    with pytest.raises(
        UsageError, match="a user without a home is not this user's alone; remove it, or set TVM_SPARSE"
    ):
        cache_folder()


def test_without_a_place_nothing_is_kept_and_nothing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning says so: of the folder that cannot be made, and of the file that cannot be written."""
    (tmp_path / "file").touch()
    monkeypatch.setenv(HOME, str(tmp_path / "file"))
    with pytest.warns(UserWarning, match=r"built kernels cannot be kept: .*set TVM_SPARSE_CACHE_MIB=0"):
        assert KernelCache.of_user() is None
    cache = KernelCache(tmp_path / "removed", 1000)
    with pytest.warns(UserWarning, match="built kernels cannot be kept"):
        cache.write(KEYS[0], b"code")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.read(KEYS[0]) is None
