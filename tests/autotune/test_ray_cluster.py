"""Tuning on real Ray nodes of this machine, some of which are killed, and sentences where there is no cluster."""

import json
import socket
import sys
from pathlib import Path

import pytest
from test_fleet import CPU, OPTIONS, TASKS, Notes, keys

from tvm_sparse.autotune import session
from tvm_sparse.autotune.fleet import ray_cluster
from tvm_sparse.autotune.fleet.device_tuner import versions
from tvm_sparse.autotune.fleet.job import Job
from tvm_sparse.autotune.fleet.open_fleet import open_fleet
from tvm_sparse.errors import BuildError, UsageError
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.measure.worker import Worker
from tvm_sparse.target.resolve import target_json

SUPPORT = Path(__file__).parents[1] / "support"
NO_RAY = "Ray is not installed: pip install 'tvm-sparse[ray]'"


@pytest.fixture(scope="class")
def nodes(request):
    """A cluster and two nodes of it; tests in a class share them, as their start takes ten seconds."""
    pytest.importorskip("ray", reason=NO_RAY)
    from two_nodes import cluster_of_two

    with pytest.MonkeyPatch.context() as patch:
        # Sockets of Ray have paths of 107 characters at most.
        patch.delenv("TMPDIR")
        with cluster_of_two(getattr(request, "param", False)) as found:
            yield found


@pytest.fixture
def cluster(nodes, monkeypatch):
    """`nodes`, which kernels of `faulty_worker` are tuned on."""
    from faulty_actor import FaultyActor

    monkeypatch.setattr(ray_cluster, "TunerActor", FaultyActor)
    return nodes


class KillAfter(Notes):
    """Kills a node after each of some numbers of trials."""

    def __init__(self, cluster, trials):
        super().__init__()
        self.cluster, self.nodes = cluster[0], list(cluster[1])
        self.trials, self.count = trials, 0

    def trial(self, record):
        from two_nodes import kill

        self.count += 1
        if self.count in self.trials:
            kill(self.cluster, self.nodes.pop())


def tune(cluster, log, progress):
    with ray_cluster.ray_fleet(cluster[0].address, CPU) as fleet:
        assert len(fleet.devices) == 2 and fleet.notes == []
        session.tune_tasks(TASKS, fleet.target, log, OPTIONS, progress, fleet)


@pytest.mark.slow
class TestSharedNodes:
    """On the same nodes, one of which is killed at last."""

    def test_nodes_without_a_gpu_are_told(self, cluster):
        with pytest.raises(BuildError, match=r"ray: no node has a GPU for Ray to give away"):
            ray_cluster.ray_fleet(cluster[0].address, "cuda")

    def test_a_killed_node_costs_only_what_it_was_measuring(self, cluster, tmp_path, monkeypatch):
        log, unbroken = (TuningLog(tmp_path / name / "log.jsonl") for name in ("killed", "unbroken"))
        progress = KillAfter(cluster, [7])
        tune(cluster, log, progress)
        (note,) = progress.notes
        assert "is lost, another goes on with its layer: The actor " in note
        monkeypatch.setattr(Worker, "command", (sys.executable, str(SUPPORT / "faulty_worker.py")))
        session.tune_tasks(TASKS, CPU, unbroken, OPTIONS, session.Progress())
        assert keys(TuningLog(log.path)) == keys(unbroken)
        assert progress.count == len(log.records) == len(unbroken.records), "each trial counts once"


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("nodes", [True], indirect=True, ids=["beside an idle head"])
def test_when_all_nodes_are_killed_a_sentence_says_so(cluster, tmp_path):
    log = TuningLog(tmp_path / "log.jsonl")
    progress = KillAfter(cluster, [4, 6])
    with pytest.raises(BuildError, match=r"devices: all are lost, the last, .*: The actor .*; what was measured is in"):
        tune(cluster, log, progress)
    assert len(TuningLog(log.path).records) == progress.count >= 6


def test_without_ray_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"^ray: the package is not installed; run: pip install 'tvm-sparse\[ray\]'$"):
        ray_cluster.ray_fleet("auto", None)


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_no_cluster_answers(scheme):
    pytest.importorskip("ray", reason=NO_RAY)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        place = f"{scheme}127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(UsageError, match=rf"^Ray cluster {place}: none answers \(Connection refused\); start one"):
            ray_cluster.ray_fleet(place, None)


def test_a_cluster_that_refuses_may_want_a_token(monkeypatch):
    ray = pytest.importorskip("ray", reason=NO_RAY)

    def refuse(**_settings):
        raise ConnectionError("Failed to connect to Ray cluster at 127.0.0.1")

    monkeypatch.setattr(ray, "init", refuse)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        with pytest.raises(UsageError, match=r"cannot be joined: Failed to connect .*; where the cluster asks for a"):
            ray_cluster.ray_fleet(f"127.0.0.1:{server.getsockname()[1]}", None)


@pytest.mark.parametrize("address", ["nonsense", ":1", "host:port", "host:99999", "ray://"])
def test_what_is_no_address(address):
    pytest.importorskip("ray", reason=NO_RAY)
    with pytest.raises(UsageError, match=rf"no address of one, found {address}; allowed: auto, local, host:port"):
        ray_cluster.ray_fleet(address, None)


def test_this_machine_s_devices_or_a_cluster_s():
    with pytest.raises(UsageError, match=r"are this machine's, and Ray finds its own; give --devices or --ray"):
        open_fleet(["cpu"], "auto", None, OPTIONS)


def test_a_lost_head_is_told(monkeypatch):
    """Before Ray ends the process; a moment without an answer is none."""
    clock = iter(range(0, 100, 4))
    monkeypatch.setattr(ray_cluster.time, "monotonic", lambda: next(clock))
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        watch = ray_cluster._HeadWatch(server.getsockname())
        watch.check()
        port = server.getsockname()[1]
    watch.check()
    with pytest.raises(BuildError, match=r"^Ray cluster: its head node is lost \(.*refused\); what was measured is in"):
        watch.check()
    assert ray_cluster._host_and_port(f"ray://[::1]:{port}") == ("::1", port)


def test_an_actor_is_told_text_and_numbers_and_answers_text(monkeypatch, tmp_path):
    """Nothing that Ray unpickles could be a user's object. This is a whole search, with no Ray around it."""
    monkeypatch.setattr(Worker, "command", (sys.executable, str(SUPPORT / "faulty_worker.py")))
    actor = ray_cluster.TunerActor()

    def ask(weight=None, **request):
        return json.loads(actor.answer(json.dumps(request), weight))

    assert set(ask(action="hello", target="llvm", versions={})) == {"versions"}
    assert ask(action="hello", target=target_json(CPU), versions=versions())["fingerprint"]["kind"] == "llvm"
    job = Job(TASKS[0].spec, TASKS[0].weight, OPTIONS)
    assert ask(job.weight, action="begin", job=job.to_json(), builders=1, tuners=1) == {}
    answers = [ask(action="advance") for _ in range(OPTIONS.trials + 1)]
    assert all(TuningRecord.from_line(answer["record"]).status == "ok" for answer in answers[:-1])
    assert answers[-1] == {"out_of_time": False, "ended_early": None} and ask(action="end") == {}
