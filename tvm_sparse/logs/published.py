"""Logs that others have published: a folder, here or on a server, with an index by machine and convolution.

Nothing in it is trusted. Its records are checked as any log's, and no more than candidates: a search tries them first,
and what it measures here counts. Where something is wrong with the folder, one warning says so, and all goes on as if
there were none.

::

    index.json                          {"format": "tvm-sparse logs", "version": 1, "machines": [
                                          {"machine": {"kind": "llvm", "arch": "znver4", ...},
                                           "parts": {"n1c64h56w56-k64r3s3-...": SHA-256 of a part, ...}}, ...]}
    parts/<SHA-256>.jsonl               records of one convolution and machine
"""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import LogError, typed
from tvm_sparse.files import publish
from tvm_sparse.files.user_folders import cache_folder
from tvm_sparse.logs import log_file
from tvm_sparse.logs.fetching import fetch, is_url, shown
from tvm_sparse.logs.log_file import Rejected
from tvm_sparse.logs.matching import is_near, sum_of
from tvm_sparse.logs.record import FINGERPRINT_KEYS, TuningRecord
from tvm_sparse.untrusted.json_text import loads
from tvm_sparse.untrusted.regular_file import read_regular

INDEX, FORMAT, VERSION = "index.json", "tvm-sparse logs", 1
# Of 100,000 records of 10,000 convolutions the index has 2 MB, and a part 13 KB.
MAX_INDEX_BYTES, MAX_PART_BYTES = 1 << 26, 1 << 22
# What a machine is told by, `FINGERPRINT_KEYS` and what `is_near` asks for.
MACHINE_KEYS = (*FINGERPRINT_KEYS, "system")
_DIGEST = re.compile("[0-9a-f]{64}")

logger = logging.getLogger(__name__)


class Machine(NamedTuple):
    """What is published of a machine: SHA-256 of each part, by the key of its convolution without an epilogue."""

    fingerprint: dict[str, str]
    parts: dict[str, str]


class Published:
    """A folder of published logs, by path or URL; UsageError where the package that fetches such a URL is missing."""

    def __init__(self, place: str):
        self.place = place
        self._machines: list[Machine] = []
        try:
            self._machines = read_index(place)
        except LogError as error:
            self._give_up(error)

    def records(self, spec: ConvSpec, fingerprint: dict[str, Any]) -> list[TuningRecord]:
        """Those of a convolution, with whatever epilogue, that machines like that of `fingerprint` made."""
        sums = sum_of(spec)
        found: list[TuningRecord] = []
        try:
            for machine in self._machines:
                if sums.key in machine.parts and is_near(machine.fingerprint, fingerprint):
                    found += self._part(machine.parts[sums.key])
        except LogError as error:
            self._give_up(error)
        return [record for record in found if sum_of(record.spec) == sums]

    def _give_up(self, error: LogError) -> None:
        """A server that is down is not asked again for each layer."""
        logger.warning("%s; the records published there are not used", error)
        self._machines = []

    def _part(self, digest: str) -> list[TuningRecord]:
        path = part_path(self.place, digest)
        lines = log_file.parsed(path, self._content(digest))
        if bad := [line for line in lines if isinstance(line, Rejected)]:
            logger.warning("%s: %d line(s) skipped of %s: %s", shown(self.place), len(bad), path.name, bad[0].reason)
        return [line for line in lines if isinstance(line, TuningRecord)]

    def _content(self, digest: str) -> bytes:
        """The bytes of a part, a server's from the cache where they are there."""
        if not is_url(self.place):
            return part(self.place, digest)
        path = cache_folder() / "published" / f"{digest}.jsonl"
        # Whatever is wrong there, the server has the part.
        with suppress(OSError):
            cached = read_regular(path, MAX_PART_BYTES)
            if _digest_of(cached) == digest:
                return cached
        data = part(self.place, digest)
        with log_file.as_log_error(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            publish.write(path, data)
        return data


def part_path(folder: str | Path, digest: str) -> Path:
    """Where a part is in a folder of this machine."""
    return Path(folder, "parts", f"{digest}.jsonl")


def read_index(place: str) -> list[Machine]:
    """What a folder of published logs says it has.

    LogError where it cannot be read, or is no index; UsageError as `fetch`.
    """
    where = f"{shown(place)}, {INDEX}"
    try:
        index = loads(fetch(place, INDEX, MAX_INDEX_BYTES))
        if not isinstance(index, dict) or index.get("format") != FORMAT:
            raise ValueError(f"it lacks the format {FORMAT!r}")
        if index.get("version") != VERSION:
            found = str(index.get("version"))
            raise LogError(where, "it has another version of the index", found, str(VERSION), "update tvm-sparse")
        return [_machine(each) for each in _of(list, index.get("machines"))]
    except ValueError as error:
        hint = f"make it with: {typed('logs publish')}"
        raise LogError(where, f"it is no index of published logs: {error}", hint=hint) from None


def _machine(value: Any) -> Machine:
    fields = _of(dict, value)
    machine = Machine(_of(dict, fields.get("machine")), _of(dict, fields.get("parts")))
    if not all(isinstance(machine.fingerprint.get(key), str) for key in MACHINE_KEYS):
        raise ValueError(f"a machine is not told by {', '.join(MACHINE_KEYS)}")
    if not all(isinstance(each, str) and _DIGEST.fullmatch(each) for each in machine.parts.values()):
        raise ValueError("a part is not named by 64 hex digits")
    return machine


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{type(value).__name__} stands where a {kind.__name__} should")
    return value


def part(place: str, digest: str) -> bytes:
    """The bytes of a part, which are those that the index means; LogError where they are not."""
    data = fetch(place, f"parts/{digest}.jsonl", MAX_PART_BYTES)
    if _digest_of(data) != digest:
        raise _damaged(place, digest)
    return data


def _damaged(place: str, digest: str) -> LogError:
    return LogError(f"{shown(place)}, parts/{digest}.jsonl", "its SHA-256 is not that of its name")


def _digest_of(data: bytes) -> str:
    return sha256(data).hexdigest()
