"""Files, JSON and numbers from outside: what is good is read, all else is an error with a reason, at once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hostile_files import device, fifo, folder_of_files, holes, loop

from tvm_sparse.untrusted.json_text import loads
from tvm_sparse.untrusted.regular_file import read_regular, sha256_of
from tvm_sparse.untrusted.whole_number import whole_number

MOST = 1 << 20


def test_a_regular_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    (tmp_path / "link").symlink_to(path)
    for each in (path, tmp_path / "link"):
        assert read_regular(each, len(b"content")) == b"content"
        assert sha256_of(each, MOST) == hashlib.sha256(b"content").hexdigest()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (fifo, "it is no regular file"),
        (device, "it is no regular file"),
        (folder_of_files, "Is a directory"),
        (holes, f"it has {200 << 30} bytes, more than {MOST}"),
        (loop, "Too many levels of symbolic links"),
        (lambda path: None, "No such file or directory"),
    ],
)
def test_nothing_else_is(make: Callable[[Path], None], reason: str, tmp_path: Path) -> None:
    make(tmp_path / "file")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for read in (read_regular, sha256_of):
        with pytest.raises(OSError) as caught:
            read(tmp_path / "file", MOST)
        assert caught.value.strerror == reason
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_path_that_is_none() -> None:
    with pytest.raises(OSError, match="null"):
        read_regular("a\0b", MOST)


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "1e999", "[" * 10**5, "9" * 5000, "{", b"\xff", '"\\ud8"'])
def test_what_is_no_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        loads(text)


def test_json_is_read() -> None:
    assert loads('{"a": [1, 2.5, null, "\\u00e4"]}') == {"a": [1, 2.5, None, "ä"]}


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("12", 12), ("9" * 18, 10**18 - 1)])
def test_whole_numbers(text: str, number: int) -> None:
    assert whole_number(text) == number


@pytest.mark.parametrize("text", ["", "-1", "1.0", "x", " 1", "9" * 19, "9" * 5000, "²"])
def test_no_whole_numbers(text: str) -> None:
    assert whole_number(text) is None
