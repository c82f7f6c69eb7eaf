"""TuningLog: the records of all trials, and which of them serves a given convolution on a given machine."""

import logging
import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import LogError, typed
from tvm_sparse.logs import log_file
from tvm_sparse.logs.best_match import Match, best_match
from tvm_sparse.logs.log_file import Rejected
from tvm_sparse.logs.matching import counted, is_near, machine, misfit, mismatch, no_trial, sum_of
from tvm_sparse.logs.published import Published
from tvm_sparse.logs.ranking import fastest
from tvm_sparse.logs.record import TuningRecord

logger = logging.getLogger(__name__)

# Batches whose decisions a search at another one tries first.
NEAREST_BATCHES = 2
# The first file of a log that only reads others.
NO_FILE = Path(os.devnull)


class TuningLog:
    """The records of one file, and of read-only layers below it; `append` writes to the first file only.

    Parameters
    ----------
    path
        A ``.jsonl`` or ``.jsonl.xz`` file; it may not exist yet. Compressed files are read-only.
    more
        Further files, read only, which must exist.
    unnamed
        Files like `more` that nobody has asked for; the reasons of decisions say so.
    published
        Folders whose records are `candidates`, and nothing else.

    Raises
    ------
    LogError
        A file cannot be read. Bad lines raise nothing: they are in `rejected`.
    """

    def __init__(
        self,
        path: Path | str,
        *more: Path | str,
        unnamed: Sequence[Path] = (),
        published: Sequence[Published] = (),
    ):
        self.path = Path(path)
        self.published = tuple(published)
        self.layers = tuple(map(Path, more))
        self.named = {self.path, *map(Path, more)}
        self._unnamed = [(path, log_file.parsed(path)) for path in unnamed]
        self.refresh()

    def refresh(self) -> None:
        """Read all files again but those that were not named, which nobody writes to meanwhile."""
        self.rejected: list[Rejected] = []
        self._lines: dict[str, TuningRecord] = {}
        self._paths: dict[str, Path] = {}
        self._by_spec: dict[ConvSpec, list[TuningRecord]] = defaultdict(list)
        self._by_sum: dict[ConvSpec, list[TuningRecord]] = defaultdict(list)
        for path in (self.path, *self.layers):
            if path != self.path or (path != NO_FILE and path.exists()):
                self._read(path, (found for _, found in log_file.parse(path)))
        for path, lines in self._unnamed:
            self._read(path, lines)

    def _read(self, path: Path, lines: Iterable[TuningRecord | Rejected]) -> None:
        for found in lines:
            if isinstance(found, Rejected):
                self.rejected.append(found)
            else:
                self._add(found, path)

    def require_known_schema(self) -> None:
        """Refuse to go on without records that a newer tvm-sparse made: they may be better than those that are read.

        Raises
        ------
        LogError
            A file holds such a record; the sentence names its line.
        """
        for line in self.rejected:
            if line.newer:
                raise LogError(f"{line.path}, line {line.line_number}", line.reason)

    def checked(self) -> "TuningLog":
        """Itself; says which files have lines that are no records, and LogError as `require_known_schema`."""
        self.require_known_schema()
        for path, count in Counter(line.path for line in self.rejected).items():
            logger.warning("%s: %d line(s) skipped, see: %s", path, count, typed(f"logs stats {path}"))
        return self

    def _add(self, record: TuningRecord, path: Path) -> None:
        line = record.to_line()
        if line not in self._lines:
            self._lines[line] = record
            self._paths[line] = path
            self._by_spec[record.spec].append(record)
            self._by_sum[sum_of(record.spec)].append(record)

    def path_of(self, record: TuningRecord) -> Path:
        """The file that one of this log's records was read from, the first of them, or was written to."""
        return self._paths[record.to_line()]

    @property
    def records(self) -> list[TuningRecord]:
        """All records, each once, in the order of the files."""
        return list(self._lines.values())

    def append(self, record: TuningRecord) -> None:
        """Add one record to the file, and return when it is on the disk; creates the file and its folders.

        Raises
        ------
        LogError
            The record is not plain JSON, or the file is compressed or cannot be written; then it is as before.
        """
        log_file.append(self.path, record.to_line().encode() + b"\n")
        self._add(record, self.path)

    def quarantine(self) -> int:
        """Move the bad lines of the first file to ``<file>.rejected``, with reason and line number; returns how many.

        Lines of a newer tvm-sparse stay: they are sound.
        """
        count = log_file.quarantine(self.path)
        self.refresh()
        return count

    def lookup(
        self,
        spec: ConvSpec,
        pattern: SparsityPattern,
        fingerprint: dict[str, Any],
        own: bool = True,
        growth: Callable[[TuningRecord], float] | None = None,
    ) -> Match | None:
        """The best verified record of a sparse kernel for this weight on this machine.

        See `best_match`. Without `own`, those that count as trials of this weight are left out.
        """
        usable = [record for record in self._usable(spec, fingerprint) if _is_sparse(record)]
        if not own:
            usable = [record for record in usable if not record.is_trial_of(spec, pattern, fingerprint)]
        return best_match(usable, pattern, growth)

    def near(
        self, spec: ConvSpec, pattern: SparsityPattern, fingerprint: dict[str, Any], same_threads: bool = False
    ) -> Match | None:
        """As `lookup`, of what was not measured for this convolution here, but whose decisions are good candidates.

        First records of this machine for the convolution with another epilogue, then those of other machines whose
        kernels run on this one and fit it: see `is_near`. Their times say little about this layer, and their decisions
        less where they are for another number of threads; with `same_threads` those are left out. So are kernels that
        somebody has to ask for.
        """
        alike = self._by_sum.get(sum_of(spec), ())
        here = [record for record in alike if record.spec != spec and not mismatch(record, fingerprint)]
        others = [record for record in self._by_spec.get(spec, ()) if mismatch(record, fingerprint)]
        if same_threads:
            others = [record for record in others if record.fingerprint["threads"] == fingerprint["threads"]]
        for near in (here, [record for record in others if is_near(record.fingerprint, fingerprint)]):
            usable = [each for each in near if _is_ok(each) and _is_sparse(each) and not each.family.asked_for_only]
            if match := best_match(usable, pattern):
                return match
        return None

    def candidates(self, spec: ConvSpec, pattern: SparsityPattern, fingerprint: dict[str, Any]) -> list[TuningRecord]:
        """Published records to try first: the best of machines like this one, and the best of those that are near."""
        found = [each for folder in self.published for each in folder.records(spec, fingerprint)]
        found = [record for record in found if _is_ok(record) and _is_sparse(record)]
        here = [record for record in found if not mismatch(record, fingerprint)]
        others = [record for record in found if mismatch(record, fingerprint)]
        return [match.record for match in (best_match(here, pattern), best_match(others, pattern)) if match]

    def pooled(self, spec: ConvSpec, pattern: SparsityPattern, fingerprint: dict[str, Any]) -> Match | None:
        """As `lookup`, of kernels that compute the max pool behind this convolution too."""
        return best_match([record for record in self._usable(spec, fingerprint) if record.is_pooled], pattern)

    def bottleneck(self, last: ConvSpec, fingerprint: dict[str, Any]) -> TuningRecord | None:
        """The fastest verified record of a kernel that computes what is in front of this convolution too, if any."""
        found = [record for record in self._usable(last, fingerprint) if record.family.computes_before]
        return fastest(found) if found else None

    def dense(
        self, spec: ConvSpec, fingerprint: dict[str, Any], is_allowed: Callable[[str], bool] | None = None
    ) -> TuningRecord | None:
        """The fastest verified dense record of this convolution on this machine whose schedule is allowed.

        By default any exact one is.
        """
        dense = [record for record in self._usable(spec, fingerprint) if record.is_dense]
        dense = [record for record in dense if (is_allowed(record.schedule) if is_allowed else record.is_exact)]
        return fastest(dense) if dense else None

    def of_schedule(self, spec: ConvSpec, fingerprint: dict[str, Any], schedule: str) -> list[TuningRecord]:
        """The verified records of this convolution on this machine whose kernels are of a schedule."""
        return [record for record in self._usable(spec, fingerprint) if record.schedule == schedule]

    def has_family(self, spec: ConvSpec, fingerprint: dict[str, Any], family: str) -> bool:
        """Whether a kernel of a family was verified for this convolution on this machine."""
        return any(record.family.name == family for record in self._usable(spec, fingerprint))

    def of_other_batches(
        self, spec: ConvSpec, pattern: SparsityPattern, fingerprint: dict[str, Any]
    ) -> list[TuningRecord]:
        """The best records of sparse kernels for this layer at the nearest other batches, the nearest first."""
        others = [each for each in self._by_spec if each.n != spec.n and replace(each, n=spec.n) == spec]
        others.sort(key=lambda each: (abs(math.log(each.n / spec.n)), each.n))
        matches = (self.lookup(each, pattern, fingerprint) for each in others)
        return [match.record for match in islice(filter(None, matches), NEAREST_BATCHES)]

    def ignored(self, spec: ConvSpec, pattern: SparsityPattern, fingerprint: dict[str, Any]) -> list[str]:
        """Why verified records of this convolution do not serve this weight here: one counted sentence per reason."""
        verified = [record for record in self._of_kind(spec, fingerprint) if _is_ok(record)]
        return counted(spec, (mismatch(record, fingerprint) or misfit(record, pattern) for record in verified))

    def ignored_trials(self, spec: ConvSpec, pattern: SparsityPattern, fingerprint: dict[str, Any]) -> list[str]:
        """Why trials of this convolution do not count for this weight here: one counted sentence per reason.

        Of the files that somebody named: what is shipped for other machines is nobody's loss.
        """
        records = [record for record in self._of_kind(spec, fingerprint) if self.path_of(record) in self.named]
        others = [record for record in records if not record.is_trial_of(spec, pattern, fingerprint)]
        return counted(spec, (mismatch(record, fingerprint) or no_trial(record, pattern) for record in others))

    def trials(self, spec: ConvSpec, pattern: SparsityPattern, fingerprint: dict[str, Any]) -> list[TuningRecord]:
        """What need not be tried again for this weight on this machine, failures included."""
        records = self._by_spec.get(spec, ())
        return [each for each in records if each.is_known and each.is_trial_of(spec, pattern, fingerprint)]

    def stats(self) -> dict[str, Any]:
        """Counts, as JSON: records, rejected lines, convolutions, weights, and records by status, schedule, machine."""
        records = self.records
        return {
            "records": len(records),
            "rejected": len(self.rejected),
            "convolutions": len(self._by_spec),
            "weights": len({(record.spec, record.pattern.value_digest) for record in records}),
            "status": dict(Counter(record.status for record in records)),
            "schedules": dict(Counter(record.schedule for record in records)),
            "machines": dict(Counter(" ".join(machine(record)) for record in records)),
        }

    def _of_kind(self, spec: ConvSpec, fingerprint: dict[str, Any]) -> list[TuningRecord]:
        """Records for the kind of target; nobody expects others to serve this machine."""
        return [each for each in self._by_spec.get(spec, ()) if each.fingerprint["kind"] == fingerprint["kind"]]

    def _usable(self, spec: ConvSpec, fingerprint: dict[str, Any]) -> list[TuningRecord]:
        records = self._by_spec.get(spec, ())
        return [record for record in records if _is_ok(record) and not mismatch(record, fingerprint)]


def _is_ok(record: TuningRecord) -> bool:
    """Whether it can be built from: it was verified, and this version has its schedule."""
    return record.status == "ok" and record.is_known


def _is_sparse(record: TuningRecord) -> bool:
    return not record.is_dense and not record.family.computes_more
