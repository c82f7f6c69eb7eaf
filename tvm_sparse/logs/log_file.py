"""Files of tuning records, one JSON line each: the only code that reads or writes them.

Every append is one write under a lock, then synced: a killed writer leaves at most one unfinished line,
and several writers never mix theirs. Reading changes nothing and never stops at a bad line.
"""

import json
import lzma
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from io import BytesIO, FileIO
from pathlib import Path
from typing import NamedTuple

from tvm_sparse.errors import LogError
from tvm_sparse.files import publish
from tvm_sparse.files.locks import open_locked
from tvm_sparse.files.staging import sweep
from tvm_sparse.logs.record import WHERE, TuningRecord
from tvm_sparse.logs.record_codec import NewerSchemaError
from tvm_sparse.untrusted.regular_file import read_regular

# A file may be larger than a machine's memory, and so may what a few kilobytes of xz unpack to, or need to be unpacked.
MAX_BYTES, MAX_UNPACKING_BYTES = 1 << 28, 1 << 28
# Each bad line is kept, with its reason. Of what is no log at all these are millions.
MAX_BAD_LINES = 10_000
# Lines of JSON are aligned to nothing: a twentieth smaller than by default.
PACKED = [{"id": lzma.FILTER_LZMA2, "preset": 6 | lzma.PRESET_EXTREME, "lc": 1, "pb": 0}]


class Rejected(NamedTuple):
    """A line that is no record, and why; numbers begin with 1. `newer`: a newer tvm-sparse can read it."""

    line_number: int
    reason: str
    text: str
    path: Path
    newer: bool = False


def parse(path: Path) -> Iterator[tuple[bytes, TuningRecord | Rejected]]:
    """Each line of a file, and what it holds. Of damaged compressed data nothing is believed: it is one bad line.

    LogError where the file cannot be read.
    """
    yield from _lines(path, content(path))


def content(path: Path) -> bytes:
    """The bytes of a file of records, up to `MAX_BYTES`; LogError where it cannot be read."""
    with as_log_error(path):
        return read_regular(path, MAX_BYTES)


def _lines(path: Path, data: bytes) -> Iterator[tuple[bytes, TuningRecord | Rejected]]:
    if path.suffix == ".xz":
        try:
            data = _unpacked(data)
        except (lzma.LZMAError, EOFError) as error:
            yield b"", Rejected(1, str(LogError(str(path), f"the xz data is damaged ({error})")), "", path)
            return
    bad = 0
    for number, raw in enumerate(BytesIO(data), 1):
        found: TuningRecord | Rejected
        try:
            found = _record(raw)
        except LogError as error:
            text = raw.decode(errors="backslashreplace").rstrip("\n")
            found = Rejected(number, str(error), text, path, isinstance(error, NewerSchemaError))
            bad += 1
            if bad > MAX_BAD_LINES:
                hint = "is it a tuning log?"
                raise LogError(str(path), f"more than {MAX_BAD_LINES} of its lines are no records", hint=hint) from None
        yield raw, found


def parsed(path: Path, data: bytes | None = None) -> tuple[TuningRecord | Rejected, ...]:
    """What each line of a file holds, as `parse` finds it; of the same content it is found once.

    `data` is its content, where that was read before. LogError where the file cannot be read.
    """
    data = content(path) if data is None else data
    key = path, sha256(data).digest()
    if key not in _PARSED:
        while len(_PARSED) >= _MOST_PARSED:
            _PARSED.pop(next(iter(_PARSED)))
        _PARSED[key] = tuple(found for _, found in _lines(path, data))
    return _PARSED[key]


_PARSED: dict[tuple[Path, bytes], tuple[TuningRecord | Rejected, ...]] = {}
_MOST_PARSED = 64


def _unpacked(data: bytes) -> bytes:
    found = bytearray()
    # A file may be several, one after the other.
    while data:
        unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_UNPACKING_BYTES)
        found += unpacker.decompress(data, MAX_BYTES - len(found) + 1)
        if len(found) > MAX_BYTES:
            raise lzma.LZMAError(f"it unpacks to more than {MAX_BYTES >> 20} MiB")
        if not unpacker.eof:
            raise EOFError("it ends too early")
        # Zeros pad a file to a multiple of four bytes.
        data = unpacker.unused_data.lstrip(b"\0")
    return bytes(found)


def append(path: Path, line: bytes) -> None:
    """Add one line, newline included, and return when it is on the disk; creates the file and its folders.

    LogError where the file is compressed or cannot be written; then it is as before.
    """
    with _locked(path) as file:
        size = os.fstat(file.fileno()).st_size
        # A writer that was killed may have left an unfinished line: it must not swallow this one.
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
            line = b"\n" + line
        if file.write(line) != len(line):
            file.truncate(size)
            raise LogError(str(path), "the disk is full", hint="free some space and run again")
        os.fsync(file.fileno())
        if not size:
            publish.sync(path.parent)


def quarantine(path: Path) -> int:
    """Move the bad lines of a log to ``<path>.rejected``; see `TuningLog.quarantine`."""
    if not path.exists():
        return 0
    with _locked(path):
        sweep(Path(os.path.realpath(path)).parent)
        bad, kept = [], []
        for raw, found in parse(path):
            if isinstance(found, Rejected) and not found.newer:
                bad.append(found)
            else:
                kept.append(raw.rstrip(b"\n") + b"\n")
        if bad:
            with path.with_name(f"{path.name}.rejected").open("a", encoding="utf-8") as target:
                for line in bad:
                    row = {"line": line.line_number, "reason": line.reason, "text": line.text}
                    target.write(json.dumps(row) + "\n")
                target.flush()
                os.fsync(target.fileno())
            publish.write(path, b"".join(kept))
    return len(bad)


def create(path: Path, lines: Iterable[str]) -> None:
    """Write a new file of `lines`, compressed where the name ends in ``.xz``; it appears whole or not at all.

    LogError where the file exists (it could be some tuner's log), or cannot be written.
    """
    if path.exists():
        raise LogError(str(path), "the file exists already", hint="choose another name or delete it first")
    data = "".join(f"{line}\n" for line in lines).encode()
    with as_log_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        publish.write(path, lzma.compress(data, filters=PACKED) if path.suffix == ".xz" else data)


def _record(raw: bytes) -> TuningRecord:
    try:
        return TuningRecord.from_line(raw.decode())
    except UnicodeDecodeError as error:
        raise LogError(WHERE, f"the line is not UTF-8 ({error.reason})") from error


@contextmanager
def as_log_error(path: Path) -> Iterator[None]:
    """What the system says of a file or folder as LogError."""
    try:
        yield
    except OSError as error:
        raise LogError(
            str(path), f"the file cannot be used ({error.strerror})", hint="check path and rights"
        ) from error


@contextmanager
def _locked(path: Path) -> Iterator[FileIO]:
    """The file, opened to append, unbuffered, while no other process writes to it."""
    if path.suffix == ".xz":
        raise LogError(str(path), "compressed logs are read-only", hint="append to a .jsonl file, or merge into one")
    with as_log_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_locked(path) as file:
            yield file
