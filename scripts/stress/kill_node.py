"""Tune on the nodes of a Ray cluster, kill one at a third of the trials, and count what was lost.

The nodes are real ones, on this machine; a head that runs nothing holds the cluster together. The search, the log and
the worker processes are the real ones too. The kernels are those of `fake_kernels`, whose times do not vary and which
are noted in a file as they end. It is checked that

* every trial in the log was made of another candidate, and was handed over once,
* at most the trials that the node had not handed over are missing of those that had ended,
* the candidates of each layer, in their order, and what became of them are those of a run on this machine alone.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import ray
from fake_kernels import EVENTS
from kill_tuner import FAKE_KERNELS
from ray.cluster_utils import Cluster

from tvm_sparse.autotune import session
from tvm_sparse.autotune.fleet import ray_cluster
from tvm_sparse.autotune.options import TuneOptions
from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.logs.record import TuningRecord, decisions_key
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.measure.worker import Worker
from tvm_sparse.target.resolve import resolve_target

TARGET = resolve_target('{"kind":"llvm","num-cores":1}')
LAYERS = 4
# A batch of candidates at most is measured and not handed over.
BATCH = 4


class FakeActor(ray_cluster.TunerActor):
    """Its kernels are those of `fake_kernels`."""

    def __init__(self) -> None:
        super().__init__()
        Worker.command = (sys.executable, str(FAKE_KERNELS))


def make_tasks(seed: int) -> list[session.Task]:
    """Small convolutions, of 8 filters and more."""
    tasks = []
    for number in range(LAYERS):
        spec = ConvSpec(1, 8, 12, 12, 8 * (number + 1), 3, 3, padding=(1, 1, 1, 1))
        weight = normal_weight(spec, 0.2, (seed, number))
        tasks.append(session.Task((f"layer{number}",), spec, weight, SparsityPattern.of(weight)))
    return tasks


class Killer(session.Progress):
    """Kills a node after `trials` trials, and keeps what is noted and when which device got which layer."""

    def __init__(self, cluster: Any, node: Any, trials: int):
        self.cluster, self.node, self.trials = cluster, node, trials
        self.count, self.told = 0, list[str]()

    def on(self, device: str) -> "Killer":
        self.told.append(device)
        return self

    def task(self, task: session.Task, known: Any) -> None:
        print(f"{self.told[-1]}: {task.names[0]}, {len(known)} trials known", flush=True)

    def note(self, text: str) -> None:
        print(text, flush=True)

    def trial(self, record: TuningRecord) -> None:
        self.count += 1
        if self.count == self.trials:
            print(f"trial {self.count}: a node is killed", flush=True)
            self.cluster.remove_node(self.node, allow_graceful=False)


def candidates(log: TuningLog) -> dict[str, list[tuple[str, str, str]]]:
    """What was tried for each convolution, in order, and what became of it."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for record in log.records:
        trial = record.schedule, decisions_key(record.chosen), record.status
        found.setdefault(record.spec.key, []).append(trial)
    return found


def tune(options: TuneOptions, seed: int, log: TuningLog, trials: int) -> tuple[int, float]:
    """Tune on two nodes and kill one: trials handed over, and seconds."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        start_s = time.monotonic()
        progress = Killer(cluster, nodes[0], trials // 3)
        with ray_cluster.ray_fleet(cluster.address, TARGET) as fleet:
            session.tune_tasks(make_tasks(seed), fleet.target, log, options, progress, fleet)
        return progress.count, time.monotonic() - start_s
    finally:
        ray.shutdown()
        cluster.shutdown()


def experiment(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Both runs, and what was found."""
    events = folder / "events"
    events.touch()
    os.environ[EVENTS] = str(events)
    options = TuneOptions(trials=arguments.trials // LAYERS, seed=arguments.seed, batch=BATCH)
    ray_cluster.TunerActor = FakeActor  # type: ignore[misc]
    Worker.command = (sys.executable, str(FAKE_KERNELS))
    log, unbroken = TuningLog(folder / "log.jsonl"), TuningLog(folder / "unbroken.jsonl")
    count, seconds = tune(options, arguments.seed, log, arguments.trials)
    finished = len(events.read_text().splitlines())
    session.tune_tasks(make_tasks(arguments.seed), TARGET, unbroken, options, session.Progress())
    found, expected = (candidates(TuningLog(each.path)) for each in (log, unbroken))
    return {
        "records": len(log.records),
        "handed_over": count,
        "measured_twice": sum(len(trials) - len(set(trials)) for trials in found.values()),
        "finished_and_lost": finished - sum(record.status in RAN for record in log.records),
        "status": dict(Counter(record.status for record in log.records)),
        "layers": len(expected),
        "layers_equal_to_the_unbroken": sum(found.get(key) == trials for key, trials in expected.items()),
        "seconds": round(seconds, 1),
    }


# Of trials that came to their run.
RAN = ("ok", "run_failed")


def is_good(found: dict[str, Any]) -> bool:
    """Whether all is as promised."""
    is_whole = found["layers"] == found["layers_equal_to_the_unbroken"] == LAYERS
    return is_whole and found["records"] == found["handed_over"] and not found["measured_twice"]


def main() -> int:
    """Print the figures as JSON; 1 where a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100, help="of all layers together (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the layers and the search")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = experiment(arguments, Path(folder))
    print(json.dumps(found, indent=2))
    return 0 if is_good(found) else 1


if __name__ == "__main__":
    sys.exit(main())
