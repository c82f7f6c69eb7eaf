"""Kill a tuner at random moments, start it again, and count what was lost.

A tuner tunes a model of two convolutions. Its search, its log and its worker processes are the real ones; only the
kernels are those of `fake_kernels`, whose times do not vary, and which are noted in a file as they end. The tuner is
killed (SIGKILL, to it alone) at random: while it starts, searches, builds, runs or writes, half of the time just after
a trial has ended. Of every kill it is checked that

* at most one finished trial is missing in the log,
* no trial that was in the log is run again,
* no process and no file is left behind;

and of every log, once it is finished, that its records are those of a tuner that nobody killed: equal in order and in
every field but the time stamp, so the best kernels are the same.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import psutil
from fake_kernels import EVENTS

from benchmarks.onnx_graph import GraphBuilder
from tvm_sparse.autotune.options import TuneOptions
from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.frontend.optional_imports import without_torch
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.measure.worker import Worker

FAKE_KERNELS = Path(__file__).with_name("fake_kernels.py")
# A worker notices within a second that its tuner is gone.
ORPHAN_S = 5.0


def make_model(path: Path, seed: int) -> None:
    """Write a model of two small convolutions."""
    graph = GraphBuilder("two", (1, 8, 12, 12))
    x = "x"
    for name, k in (("first", 8), ("second", 16)):
        weight = normal_weight(ConvSpec(1, 8, 12, 12, k, 3, 3), 0.2, (seed, k))
        x = graph.conv(name, x, weight, padding=1)
    onnx.save(graph.model(x, (1, 16, 12, 12), "y"), path)


def tune(model: Path, log: Path, trials: int, seed: int) -> None:
    """The tuner that is killed; like the command line, it starts without torch."""
    with without_torch():
        from tvm_sparse.autotune import session

    Worker.command = (sys.executable, str(FAKE_KERNELS))
    options = TuneOptions(seed=seed, batch=4)
    session.tune(model, None, target='{"kind":"llvm","num-cores":1}', log=log, trials=trials, options=options)


class Chain:
    """A log that is tuned by one tuner after the other until it is finished, and what came of it."""

    def __init__(self, folder: Path, model: Path, arguments: argparse.Namespace):
        folder.mkdir()
        self.folder, self.log, self.events = folder, folder / "log.jsonl", folder / "events"
        self.events.touch()
        words = (__file__, "--tune", model, self.log, "--trials", arguments.trials, "--seed", arguments.seed)
        self.command = [sys.executable, *map(str, words)]
        self.repeated = self.torn = self.orphans = 0

    def start(self) -> psutil.Popen:
        """A tuner whose temporary files are in the chain's folder."""
        return psutil.Popen(self.command, env={**os.environ, "TMPDIR": str(self.folder), EVENTS: str(self.events)})

    def kill_once(self, rng: random.Random, usual_s: float) -> int | None:
        """Start a tuner and kill it: how many finished trials are lost, None where it ended before that."""
        logged, ended = self.trials(), self.finished()
        tuner = self.start()
        self._wait(tuner, rng, usual_s, len(ended))
        workers = tuner.children(recursive=True) if tuner.is_running() else []
        with contextlib.suppress(psutil.NoSuchProcess):
            tuner.send_signal(signal.SIGKILL)
        is_killed = tuner.wait() == -signal.SIGKILL
        _, left = psutil.wait_procs(workers, ORPHAN_S)
        self.orphans += len(left)
        new = self.finished()[len(ended) :]
        self.torn += len(TuningLog(self.log).rejected)
        self.repeated += sum((Counter(new) & Counter(logged)).values())
        return len(new) - (len(self.trials()) - len(logged)) if is_killed else None

    def _wait(self, tuner: psutil.Popen, rng: random.Random, usual_s: float, ended: int) -> None:
        """Until the moment of the kill: any moment, or just after a trial."""
        if rng.random() < 0.5:
            end_s = time.monotonic() + rng.uniform(0, usual_s)
            while tuner.poll() is None and time.monotonic() < end_s:
                time.sleep(0.01)
            return
        wanted = ended + rng.randint(1, 6)
        while tuner.poll() is None and len(self.finished()) < wanted:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.02))

    def trials(self) -> list[str]:
        """The trials in the log, in its order, as workers note them."""
        trials = ([record.spec.to_json(), record.schedule, record.chosen] for record in self.records())
        return [json.dumps(trial, sort_keys=True) for trial in trials]

    def records(self) -> list[TuningRecord]:
        """The records in the log, without their time stamps."""
        return [replace(record, timestamp="2000-01-01T00:00:00+00:00") for record in TuningLog(self.log).records]

    def finished(self) -> list[str]:
        """The trials that workers have finished, in all runs."""
        text = self.events.read_text()
        return text[: text.rfind("\n") + 1].splitlines()

    def leftovers(self) -> list[str]:
        """Names of temporary files and folders that are still there; locks, which are for the next tuner, are none."""
        kept = ("log.jsonl", "events", "log.jsonl.rejected", "tvm-sparse-locks")
        return [path.name for path in self.folder.iterdir() if not path.name.startswith(kept)]


def experiment(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All kills, and what was found."""
    model, rng = folder / "two.onnx", random.Random(arguments.seed)
    make_model(model, arguments.seed)
    unbroken = Chain(folder / "unbroken", model, arguments)
    start_s = time.monotonic()
    unbroken.start().wait()
    usual_s = time.monotonic() - start_s
    expected = unbroken.records()
    assert expected, "the tuner that nobody kills finds nothing"
    chains, lost = list[Chain](), list[int]()
    while len(lost) < arguments.kills:
        chains.append(chain := Chain(folder / f"chain{len(chains)}", model, arguments))
        while len(lost) < arguments.kills and (count := chain.kill_once(rng, usual_s)) is not None:
            lost.append(count)
            print(f"kill {len(lost)}, {len(chain.trials())} records", flush=True)
        chain.start().wait()
    return {
        "kills": len(lost),
        "logs": len(chains),
        "records_a_log": len(expected),
        "failed_trials_a_log": sum(record.status != "ok" for record in expected),
        "trials_lost_by_a_kill": dict(sorted(Counter(lost).items())),
        "torn_lines": sum(chain.torn for chain in chains),
        "known_trials_run_again": sum(chain.repeated for chain in chains),
        "processes_left": sum(chain.orphans for chain in chains),
        "files_left": [name for chain in chains for name in chain.leftovers()],
        "logs_equal_to_the_unbroken": sum(chain.records() == expected for chain in chains),
        "unbroken_seconds": round(usual_s, 1),
    }


def is_good(found: dict[str, Any]) -> bool:
    """Whether all is as promised."""
    lost = max(found["trials_lost_by_a_kill"], default=0) <= 1 and min(found["trials_lost_by_a_kill"], default=0) >= 0
    nothing = not (found["known_trials_run_again"] or found["processes_left"] or found["files_left"])
    return lost and nothing and found["logs_equal_to_the_unbroken"] == found["logs"]


def main() -> int:
    """Print the figures as JSON; 1 where a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--trials", type=int, default=16, help="of each of the two convolutions (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the kills, the model and the search")
    parser.add_argument("--tune", nargs=2, type=Path, metavar=("MODEL", "LOG"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.tune:
        tune(*arguments.tune, arguments.trials, arguments.seed)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        found = experiment(arguments, Path(folder))
    print(json.dumps(found, indent=2))
    return 0 if is_good(found) else 1


if __name__ == "__main__":
    sys.exit(main())
