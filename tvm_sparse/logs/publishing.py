"""Folders of published logs, written: any static server can serve one, and `published` reads it."""

import json
from collections import defaultdict
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from tvm_sparse.errors import LogError
from tvm_sparse.files import publish as files
from tvm_sparse.files.locks import open_locked
from tvm_sparse.files.staging import Staging, sweep
from tvm_sparse.logs.distill import distill
from tvm_sparse.logs.log_file import as_log_error
from tvm_sparse.logs.matching import sum_of
from tvm_sparse.logs.published import FORMAT, INDEX, MACHINE_KEYS, MAX_PART_BYTES, VERSION, part, part_path, read_index
from tvm_sparse.logs.record import TuningRecord


def publish(folder: Path, records: Iterable[TuningRecord], keep: int = 1) -> int:
    """Add the `keep` fastest verified records of each weight, schedule and machine to a folder; returns how many.

    What the folder holds stays in it, unless `records` hold something faster. The index is written last: whoever reads
    meanwhile finds the old one and its parts, or the new one and its parts.

    LogError where the folder cannot be written, or what it holds cannot be read.
    """
    with as_log_error(folder):
        (folder / "parts").mkdir(parents=True, exist_ok=True)
        with open_locked(folder / ".lock"):
            sweep(folder)
            with Staging(folder) as stage:
                return _publish(folder, stage, records, keep)


def _publish(folder: Path, stage: Path, records: Iterable[TuningRecord], keep: int) -> int:
    index: dict[tuple[str, ...], dict[str, str]] = {}
    if (folder / INDEX).exists():
        index = {tuple(each.fingerprint[key] for key in MACHINE_KEYS): each.parts for each in read_index(str(folder))}
    groups: dict[tuple[tuple[str, ...], str], list[TuningRecord]] = defaultdict(list)
    for record in records:
        machine = tuple(str(record.fingerprint.get(key, "")) for key in MACHINE_KEYS)
        groups[machine, sum_of(record.spec).key].append(record)
    count = 0
    for (machine, key), new in groups.items():
        parts = index.setdefault(machine, {})
        old = part(str(folder), parts[key]).decode().splitlines() if key in parts else []
        kept = distill([*map(TuningRecord.from_line, old), *new], keep)
        if kept:
            parts[key] = _write(folder, stage, sorted({record.to_line() for record in kept}))
            count += len(kept)
    machines = [
        {"machine": dict(zip(MACHINE_KEYS, machine, strict=True)), "parts": parts}
        for machine, parts in sorted(index.items())
        if parts
    ]
    text = json.dumps({"format": FORMAT, "version": VERSION, "machines": machines}, indent=1, sort_keys=True)
    files.write(folder / INDEX, f"{text}\n".encode())
    return count


def _write(folder: Path, stage: Path, lines: list[str]) -> str:
    """Write a part; returns its SHA-256, by which a reader knows one that is damaged."""
    data = "".join(f"{line}\n" for line in lines).encode()
    if len(data) > MAX_PART_BYTES:
        allowed = f"{MAX_PART_BYTES} a convolution and machine"
        raise LogError(str(folder), "too many records of a convolution", f"{len(data)} bytes", allowed, "keep fewer")
    digest = sha256(data).hexdigest()
    path = part_path(folder, digest)
    if not path.exists() or path.read_bytes() != data:
        new = stage / path.name
        new.write_bytes(data)
        new.replace(path)
    return digest
