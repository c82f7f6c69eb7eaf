"""Damage logs at random and count what is lost, what is wrongly believed, and what crashes.

Three experiments on records of the logs that are shared with the package:

* *files*: a log is damaged (bits flipped, cut, bytes inserted, removed, repeated, zeroed, lines joined, swapped, or
  replaced by nonsense), read, searched, appended to, cleaned by `quarantine` and read again. Every line that the damage
  left alone must be found, nothing else may be believed, and the bad lines must be in ``*.rejected`` as they were.
* *decisions*: the decisions or the trace of a sound record are damaged, as by somebody who computes checksums; they
  must be refused, or be others that fit.
* *writers*: eight processes append records to one log at once; it must hold exactly these.

All of it runs in other processes. One that dies is counted as a crash, and the next one goes on after its case.
"""

from __future__ import annotations

import argparse
import functools
import json
import lzma
import random
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from damage import damage, damage_list

from tvm_sparse.errors import BuildError, LogError
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.logs.tuning_log import TuningLog, merge

RECORDS = 12


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
    json.dumps([log.stats(), len(log.best()), len(log.distill(2))])
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


def decisions_case(seed: str, records: list[TuningRecord], _folder: Path) -> Counter[str]:
    """Damaged decisions, or a damaged trace; the process dies if TVM is given one that it crashes on."""
    from tvm.target import Target

    from tvm_sparse.schedules import find_space

    rng = random.Random(seed)
    record = rng.choice(records)
    # Damaged as lists, so that values are swapped between names too.
    chosen = json.loads(json.dumps(record.chosen))
    parts = [chosen] if isinstance(chosen, list) else [list(chosen), list(chosen.values())]
    for _ in range(rng.randint(1, 2)):
        # Decisions are few among instructions, and what is valid in form is most likely among them.
        damage_list(rng.choice([*parts, *(part for part in parts[0] if isinstance(part, list))]), rng)
    damaged = parts[0] if isinstance(chosen, list) else dict(zip(map(str, parts[0]), parts[1], strict=False))
    target = Target(record.target)
    each = find_space(record.schedule, record.spec, record.pattern, target)
    try:
        replay().scheduled(each, record.spec, record.pattern, target, damaged)
    except BuildError as error:
        return Counter(cases=1, refused=1, refused_by_a_crash="killed by" in str(error))
    return Counter(cases=1, replayed=1)


@functools.cache
def replay() -> Any:
    """The one `SafeReplay` of this process; its worker ends with it."""
    from tvm_sparse.measure.safe_replay import SafeReplay

    return SafeReplay()


def write_records(path: Path, first: int, count: int) -> None:
    """Append `count` records, told apart by their seeds from `first` on."""
    record = shared_records()[0]
    log = TuningLog(path)
    for seed in range(first, first + count):
        log.append(replace(record, seed=seed))


CASES = {"files": file_case, "decisions": decisions_case}
# What is counted, zeros included.
FIGURES = {
    "files": (
        "cases",
        "packed_cases",
        "packed_read",
        "sound_lines",
        "lost",
        "believed",
        "bad_lines",
        "bad_lines_not_moved",
    ),
    "decisions": ("cases", "refused", "refused_by_a_crash", "replayed"),
}


def serve(kind: str, seed: int, first: int, count: int) -> None:
    """The process in which cases run; one line of JSON a case."""
    records = shared_records()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(first, count):
            print(json.dumps(CASES[kind](f"{seed}-{number}", records, Path(folder))), flush=True)


def run_cases(kind: str, seed: int, count: int) -> dict[str, Any]:
    """All cases of one kind, whatever happens to the process that runs them."""
    total, done, crashes = Counter[str](), 0, []
    while done < count:
        command = [sys.executable, __file__, "--serve", kind, str(seed), str(done), str(count)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                total += Counter(json.loads(line))
                done += 1
        if process.returncode:
            crashes.append({"case": f"{seed}-{done}", "exit_code": process.returncode})
            done += 1
    return {"crashes": crashes, **dict.fromkeys(FIGURES[kind], 0), **total}


def run_writers(writers: int, count: int) -> dict[str, Any]:
    """`writers` processes that append `count` records each to one log."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        processes = [
            subprocess.Popen([sys.executable, __file__, "--write", path, str(index * count), str(count)])
            for index in range(writers)
        ]
        failed = sum(process.wait() != 0 for process in processes)
        log = TuningLog(path)
        seeds = Counter(record.seed for record in log.records)
    wanted = Counter(range(writers * count))
    return {
        "writers": writers,
        "records_each": count,
        "failed_writers": failed,
        "lost": sum((wanted - seeds).values()),
        "too_many": sum((seeds - wanted).values()),
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
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--write", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        kind, *numbers = arguments.serve
        serve(kind, *map(int, numbers))
        return 0
    if arguments.write:
        path, *numbers = arguments.write
        write_records(Path(path), *map(int, numbers))
        return 0
    found = {
        "files": run_cases("files", arguments.seed, arguments.cases),
        "decisions": run_cases("decisions", arguments.seed, arguments.decisions),
        "writers": run_writers(arguments.writers, arguments.records),
    }
    print(json.dumps(found, indent=2))
    broken = [found["files"].get(key) for key in ("crashes", "lost", "believed", "bad_lines_not_moved")]
    broken += [found["decisions"]["crashes"]]
    broken += [found["writers"][key] for key in ("failed_writers", "lost", "too_many", "bad_lines")]
    return 1 if any(broken) else 0


if __name__ == "__main__":
    sys.exit(main())
