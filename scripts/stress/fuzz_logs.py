"""Damage logs at random and count what is lost, what is wrongly believed, and what crashes.

Three experiments on records of the logs that are shared with the package:

* *files*: a log is damaged (bits flipped, cut, bytes inserted, removed, repeated, zeroed, lines joined, swapped, or
  replaced by nonsense), read, searched, appended to, cleaned by `quarantine` and read again. Every line that the damage
  left alone must be found, nothing else may be believed, and the bad lines must be in ``*.rejected`` as they were.
* *decisions*: the decisions or the trace of a sound record are damaged, as by somebody who computes checksums; they
  must be refused, or be others that fit.
* *writers*: eight processes append records to one log at once; it must hold exactly these.

All of it runs in other processes. One that dies is counted as a crash, and another goes on after its case.
"""

import argparse
import functools
import json
import lzma
import random
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from damage import damage, damage_list

from benchmarks.gpu.isolated_process import crew, serving
from tvm_sparse.errors import BuildError, LogError, UsageError
from tvm_sparse.logs.distill import best, distill
from tvm_sparse.logs.merge import merge
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.measure.safe_replay import SafeReplay
from tvm_sparse.measure.serve import Action
from tvm_sparse.schedules.lookup import family_of, find_space
from tvm_sparse.target.resolve import resolve_target

RECORDS = 12
WORKER = serving(__file__)
# That a case may take, or a writer.
TIMEOUT_S = 600


@functools.cache
def shared_records() -> list[TuningRecord]:
    """All records that are shared with the package."""
    folder = Path(str(resources.files("tvm_sparse.tuning_logs")))
    return TuningLog(folder / "none.jsonl", *sorted(folder.rglob("*.jsonl.xz"))).records


def file_case(seed: str, records: list[TuningRecord], folder: Path) -> Counter[str]:
    """One damaged log; what was found."""
    rng = random.Random(seed)
    chosen = rng.sample(records, RECORDS)
    data = bytearray("".join(record.to_line() + "\n" for record in chosen).encode())
    if rng.random() < 0.1:
        return packed_case(rng, data, chosen, folder / f"{seed}.jsonl.xz")
    damage(data, rng)
    path = folder / f"{seed}.jsonl"
    path.write_bytes(data)
    sound = {record.to_line() for record in chosen}
    untouched = {line.decode() for line in data.split(b"\n") if line.decode(errors="replace") in sound}
    found = Counter(cases=1, sound_lines=len(untouched))
    found += compare(use(TuningLog(path), chosen[0]), untouched, sound)
    # A tuner that goes on with this log.
    new = replace(chosen[0], seed=12345)
    TuningLog(path).append(new)
    bad = [line.text for line in TuningLog(path).rejected]
    moved = TuningLog(path).quarantine()
    rejected = path.with_name(f"{path.name}.rejected")
    kept = [json.loads(line)["text"] for line in rejected.read_text().splitlines()] if rejected.exists() else []
    found["bad_lines"] = len(bad)
    found["bad_lines_not_moved"] = abs(len(bad) - moved) + sum((Counter(bad) - Counter(kept)).values())
    log = TuningLog(path)
    found["bad_lines_not_moved"] += len(log.rejected)
    untouched, sound = untouched | {new.to_line()}, sound | {new.to_line()}
    found += compare(log, untouched, sound)
    merge([path, path], folder / f"{seed}.all.jsonl")
    found += compare(TuningLog(folder / f"{seed}.all.jsonl"), untouched, sound)
    for each in folder.glob(f"{seed}.*"):
        each.unlink()
    return found


def packed_case(rng: random.Random, data: bytearray, chosen: list[TuningRecord], path: Path) -> Counter[str]:
    """A damaged compressed log: all of it or nothing, and nothing that was not in it."""
    packed = bytearray(lzma.compress(data))
    damage(packed, rng)
    path.write_bytes(packed)
    log = use(TuningLog(path), chosen[0])
    path.unlink()
    believed = {record.to_line() for record in log.records} - {record.to_line() for record in chosen}
    silent = len(log.records) not in (0, RECORDS) or not (log.records or log.rejected)
    return Counter(cases=1, packed_cases=1, packed_read=bool(log.records), believed=len(believed), lost=silent)


def use(log: TuningLog, record: TuningRecord) -> TuningLog:
    """Ask `log` everything that commands ask."""
    where = record.spec, record.pattern, record.fingerprint
    for ask in (log.lookup, log.ignored, log.ignored_trials, log.trials):
        ask(*where)
    log.dense(record.spec, record.fingerprint)
    json.dumps([log.stats(), len(best(log.records)), len(distill(log.records, 2))])
    try:
        log.require_known_schema()
    except LogError as error:
        raise AssertionError(f"damage was taken for a newer schema: {error}") from error
    return log


def compare(log: TuningLog, untouched: set[str], sound: set[str]) -> Counter[str]:
    """Records that are missing, and records that nobody wrote.

    Damage to the last digit of a time may leave the same number; such a line is read as what was written.
    """
    found = {record.to_line() for record in log.records}
    return Counter(lost=len(untouched - found), believed=len(found - sound))


def decisions_case(seed: str, records: list[TuningRecord]) -> Counter[str]:
    """Damaged decisions, or a damaged trace; the process dies if TVM is given one that it crashes on."""
    rng = random.Random(seed)
    # A library has no decisions; a schedule that needs one cannot be replayed where it is missing.
    here = {
        name
        for name in {each.schedule for each in records}
        if not family_of(name).is_library and not family_of(name).why_not_here()
    }
    record = rng.choice([each for each in records if each.schedule in here])
    # Damaged as lists, so that values are swapped between names too.
    chosen = json.loads(json.dumps(record.chosen))
    parts = [chosen] if isinstance(chosen, list) else [list(chosen), list(chosen.values())]
    for _ in range(rng.randint(1, 2)):
        # Decisions are few among instructions, and what is valid in form is most likely among them.
        damage_list(rng.choice([*parts, *(part for part in parts[0] if isinstance(part, list))]), rng)
    damaged = parts[0] if isinstance(chosen, list) else dict(zip(map(str, parts[0]), parts[1], strict=False))
    target = resolve_target(record.target)
    try:
        # A variant of an earlier version is refused too.
        each = find_space(record.schedule, record.spec, record.pattern, target)
        replay().scheduled(each, record.spec, record.pattern, target, damaged)
    except (BuildError, UsageError) as error:
        return Counter(cases=1, refused=1, refused_by_a_crash="killed by" in str(error))
    return Counter(cases=1, replayed=1)


@functools.cache
def replay() -> SafeReplay:
    """The one of this process; its worker ends with it."""
    return SafeReplay()


def write_records(path: str, first: int, count: int) -> None:
    """Append `count` records, told apart by their seeds from `first` on."""
    record, log = shared_records()[0], TuningLog(path)
    for seed in range(first, first + count):
        log.append(replace(record, seed=seed))


def actions() -> dict[str, Action]:
    """What a worker is asked for."""
    return {
        "files": lambda request: file_case(request["case"], shared_records(), Path(request["folder"])),
        "decisions": lambda request: decisions_case(request["case"], shared_records()),
        "write": lambda request: write_records(*request["arguments"]) or {},
    }


# What is counted, zeros included.
FIGURES = {
    "files": "cases packed_cases packed_read sound_lines lost believed bad_lines bad_lines_not_moved",
    "decisions": "cases refused refused_by_a_crash replayed",
}


def run_cases(kind: str, seed: int, count: int) -> dict[str, Any]:
    """All cases of one kind, whatever happens to the process that runs them."""
    total, crashes = Counter(dict.fromkeys(FIGURES[kind].split(), 0)), []
    with tempfile.TemporaryDirectory() as folder, crew(1, WORKER) as ask:
        for case in (f"{seed}-{number}" for number in range(count)):
            answer = ask({"action": kind, "case": case, "folder": folder}, TIMEOUT_S)
            if answer.keys() & {"failure", "timeout"}:
                crashes.append({"case": case, **answer})
            else:
                total.update(answer)
    return {"crashes": crashes, **total}


def run_writers(writers: int, count: int) -> dict[str, Any]:
    """`writers` processes that append `count` records each to one log."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/log.jsonl"
        requests = [{"action": "write", "arguments": (path, i * count, count)} for i in range(writers)]
        with crew(writers, WORKER) as ask, ThreadPoolExecutor(writers) as threads:
            answers = list(threads.map(lambda request: ask(request, TIMEOUT_S), requests))
        log = TuningLog(path)
        seeds = Counter(record.seed for record in log.records)
    wanted = Counter(range(writers * count))
    return {
        "writers": writers,
        "records_each": count,
        "failed_writers": sum(map(bool, answers)),
        "lost": (wanted - seeds).total(),
        "too_many": (seeds - wanted).total(),
        "bad_lines": len(log.rejected),
    }


def main() -> int:
    """Print the figures as JSON; 1 where a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000, help="damaged files (default: %(default)s)")
    parser.add_argument("--decisions", type=int, default=2_000, help="damaged decisions (default: %(default)s)")
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--records", type=int, default=200, help="of each writer (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    found = {
        "files": run_cases("files", arguments.seed, arguments.cases),
        "decisions": run_cases("decisions", arguments.seed, arguments.decisions),
        "writers": run_writers(arguments.writers, arguments.records),
    }
    print(json.dumps(found, indent=2))
    promises = ("crashes", "lost", "believed", "bad_lines_not_moved", "failed_writers", "too_many")
    broken = [each[name] for each in found.values() for name in promises if name in each]
    return 1 if any(broken) or found["writers"]["bad_lines"] else 0


if __name__ == "__main__":
    sys.exit(main())
