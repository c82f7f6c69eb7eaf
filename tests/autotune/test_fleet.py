"""Several devices tune into one log: each layer once, as on one device, whatever is lost or goes wrong on the way."""

import json
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from tvm_sparse.autotune import session, task_lock
from tvm_sparse.autotune.fleet.device_tuner import versions
from tvm_sparse.autotune.fleet.devices import Device, DeviceLost, roster
from tvm_sparse.autotune.fleet.fleet import Fleet
from tvm_sparse.autotune.fleet.job import Job
from tvm_sparse.autotune.fleet.local_devices import ProcessDevice, kind_of, local_fleet
from tvm_sparse.autotune.options import TuneOptions
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import BuildError, UsageError
from tvm_sparse.logs.record import decisions_key
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.measure import memory
from tvm_sparse.measure.worker import Worker
from tvm_sparse.target.resolve import resolve_target

SUPPORT = Path(__file__).parents[1] / "support"
CUDA = resolve_target("cuda")
CPU = resolve_target('{"kind":"llvm","num-cores":1}')
OPTIONS = TuneOptions(trials=5)
GPUS = ["cuda:0", "cuda:1"]


def make_task(name, n=1, k=8):
    """A linear layer, which has fewer spaces to search than a convolution."""
    spec = ConvSpec(n, 4, 1, 1, k, 1, 1)
    weight = np.where(np.random.default_rng(len(name)).random(spec.weight_shape) < 0.3, 1.5, 0).astype(np.float32)
    return session.Task((name,), spec, weight, SparsityPattern.of(weight))


# Two layers at two batches, and another weight of the first's convolution.
TASKS = [make_task("a"), make_task("b", k=16), make_task("again"), make_task("a", n=2), make_task("b", n=2, k=16)]


def keys(log):
    """The candidates of each task, in the order in which they were measured."""
    found = {}
    for record in log.records:
        task = record.spec.key, record.pattern.value_digest
        found.setdefault(task, []).append((record.schedule, decisions_key(record.chosen), record.status))
    return found


@pytest.fixture
def gpus(monkeypatch, tmp_path):
    """A machine whose devices 0 and 1 are alike, 2 is another GPU, and 3 is none; kernels are not built."""
    monkeypatch.setattr(ProcessDevice, "command", (sys.executable, str(SUPPORT / "faulty_device.py")))
    monkeypatch.setattr(Worker, "command", (sys.executable, str(SUPPORT / "faulty_worker.py")))
    monkeypatch.setenv("FAKE_GPUS", json.dumps({"0": "GPU A", "1": "GPU A", "2": "GPU B"}))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    started = tmp_path / "started"
    started.mkdir()
    monkeypatch.setenv("STARTED", str(started))
    return started


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """Keys of a run on one device."""
    log = TuningLog(tmp_path_factory.mktemp("unbroken") / "log.jsonl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worker, "command", (sys.executable, str(SUPPORT / "faulty_worker.py")))
        session.tune_tasks(TASKS, CUDA, log, OPTIONS, session.Progress())
    return keys(log)


class Notes(session.Progress):
    """Keeps what is noted; `on_trial` is called after each trial."""

    def __init__(self, on_trial=lambda: None):
        self.notes, self.on_trial = [], on_trial

    def note(self, text):
        if not text.endswith("made for other weights"):
            self.notes.append(text)

    def trial(self, record):
        self.on_trial()


def tune(log, progress=None, tasks=TASKS):
    progress = progress or Notes()
    with local_fleet(GPUS, None, 4) as fleet:
        session.tune_tasks(tasks, fleet.target, log, OPTIONS, progress, fleet)
    return progress.notes


def is_gone(pid):
    """Whether a process ends within the second in which it notices that nobody needs it."""
    end_s = time.monotonic() + 5
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > end_s:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.slow
def test_two_gpus_measure_what_one_would(gpus, tmp_path, unbroken):
    log, progress = TuningLog(tmp_path / "log.jsonl"), Notes()
    with local_fleet(GPUS, None, 4) as fleet:
        session.tune_tasks(TASKS, fleet.target, log, OPTIONS, progress, fleet)
        count, begun = len(log.records), [path.name.split("-")[:2] for path in gpus.iterdir()]
        # Again: all is known, nothing is measured.
        session.tune_tasks(TASKS, fleet.target, log, OPTIONS, progress, fleet)
    assert progress.notes == [] and len(TuningLog(log.path).records) == count
    assert keys(log) == unbroken
    # The third shares the first's dense trial.
    assert [len(keys(log)[task.spec.key, task.pattern.value_digest]) for task in TASKS] == [5, 5, 4, 5, 5]
    assert len(begun) == len(TASKS)
    assert {device for _, device in begun} == {"0", "1"} and len({process for process, _ in begun}) == 2


@pytest.mark.parametrize("dies", [pytest.param({"0": 1}, marks=pytest.mark.exhaustive), {"1": 6}])
def test_another_goes_on_with_the_layer_of_one_that_dies(gpus, tmp_path, monkeypatch, unbroken, dies):
    monkeypatch.setenv("DIES", json.dumps(dies))
    log = TuningLog(tmp_path / "log.jsonl")
    (note,) = tune(log)
    (number,) = dies
    assert note.startswith(f"cuda:{number} is lost, another goes on with its layer: ") and "SIGKILL" in note
    assert keys(log) == unbroken
    assert len(list(gpus.iterdir())) == len(TASKS) + 1


@pytest.mark.slow
def test_when_all_are_lost_the_log_has_what_was_measured(gpus, tmp_path, monkeypatch, unbroken):
    monkeypatch.setenv("DIES", json.dumps({"0": 3, "1": 4}))
    log = TuningLog(tmp_path / "log.jsonl")
    with pytest.raises(BuildError, match=r"devices: all are lost, the last, cuda:\d: .*SIGKILL.*run again to go on$"):
        tune(log)
    assert 2 <= len(TuningLog(log.path).records) <= 5


def test_an_interrupt_ends_both(gpus, tmp_path):
    def fail():
        if len(TuningLog(log.path).records) == 3:
            raise KeyboardInterrupt

    log = TuningLog(tmp_path / "log.jsonl")
    with pytest.raises(KeyboardInterrupt):
        tune(log, Notes(fail))
    processes = {int(path.name.split("-")[0]) for path in gpus.iterdir()}
    assert len(processes) == 2 and all(map(is_gone, processes))
    assert len(TuningLog(log.path).records) == 3


def test_a_search_that_fails_ends_both(gpus, tmp_path, monkeypatch):
    monkeypatch.setenv("FAULTS", json.dumps({"dense_cuda": "build raises"}))
    log = TuningLog(tmp_path / "log.jsonl")
    with pytest.raises(BuildError, match=r"^convolution n1c4.*no dense kernel to compare with: .*out of registers"):
        tune(log)
    assert all(is_gone(int(path.name.split("-")[0])) for path in gpus.iterdir())


def test_layers_that_another_process_tunes_are_waited_for(gpus, tmp_path, monkeypatch, unbroken):
    log, waited = TuningLog(tmp_path / "log.jsonl"), []

    def claim(file, name, wait):
        # Another process has them all until it is waited for.
        waited.append(wait)
        return wait or any(waited[:-1])

    monkeypatch.setattr(task_lock, "_claim", claim)
    notes = tune(log, tasks=TASKS[:2])
    assert notes == ["a: another process is tuning it, waiting"]
    assert len(keys(log)) == 2 and keys(log).items() <= unbroken.items()


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["cuda:0", "cuda:2"], r"cuda:2 is not used: its gpu is GPU B, not GPU A; name those that are alike"),
        (["cuda:3"], r"cuda:3 is not used: target cuda: CUDA sees no such GPU"),
        (["cpu"], r"cpu is of another kind than the target, found cuda; allowed: llvm"),
    ],
)
def test_gpus_that_differ_or_are_not_there_are_refused(gpus, names, sentence):
    with pytest.raises(UsageError, match=sentence):
        local_fleet(names, "cuda", 4)


def test_gpus_are_counted_as_cuda_counts_them(gpus, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1, 0")
    with local_fleet(["cuda:1", "cuda:2"], None, 5) as fleet:
        assert [device.builders for device in fleet.devices] == [2, 2]
    with pytest.raises(UsageError, match=r"no such GPU, found cuda:3; allowed: 3 device\(s\)"):
        local_fleet(["cuda:3"], None, 1)


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["cpu", "cpu"], "cpu is there 2 times, and all cores work for it already"),
        (["cuda:1", "cuda:1"], "cuda:1 is there 2 times, and one kernel at a time is timed on it"),
        (["cuda"], "not a device, found cuda; allowed: cpu, or GPUs"),
        (["cpu", "cuda:0"], "one run tunes for one target, found cpu, cuda:0"),
        ([], "one run tunes for one target, found none"),
    ],
)
def test_names_of_devices(names, sentence):
    with pytest.raises(UsageError, match=sentence):
        kind_of(names)


class Talker(Device):
    """Answers as a function says."""

    def __init__(self, name, answer, builders=1):
        super().__init__(name, builders, 1)
        self.answer, self.is_killed = answer, False

    def ask(self, request, weight=None):
        if self.is_killed:
            raise DeviceLost("killed")
        return self.answer(request)

    def kill(self):
        self.is_killed = True


def hello(device="A", version=None):
    """What a device's tuner answers first."""
    found = {**versions(), **(version or {})}
    target = {"kind": "cuda", "arch": "sm_90"}
    return lambda _request: {"versions": found, "target": target, "fingerprint": {"device": device}}


def lost(_request):
    raise DeviceLost("it burnt down")


def test_those_that_are_alike_are_used_and_others_told():
    answers = [hello("B"), hello(), lost, hello(), hello(version={"apache-tvm": "0.1"})]
    devices = [Talker(f"node{number}", answer) for number, answer in enumerate(answers)]
    found = roster(devices, "cuda")
    assert [device.name for device in found.devices] == ["node1", "node3"]
    assert found.refused == [
        "node0 is not used: its device is B, not A",
        "node2 is not used: it burnt down",
        f"node4 is not used: its apache-tvm is 0.1, not {versions()['apache-tvm']}",
    ]
    assert str(found.target.attrs["arch"]) == "sm_90"
    assert roster([Talker("node", lost)], "cuda").target is None


def test_each_device_has_one_layer_at_a_time_and_kin_come_in_order(tmp_path):
    """Whatever the order in which devices answer."""
    lock, busy, begun = threading.Lock(), Counter(), []

    def device(name):
        def answer(request):
            if request["action"] == "advance":
                time.sleep(0.01)
                with lock:
                    busy[name] -= 1
                return {"out_of_time": name == "two", "ended_early": "no more" if name == "one" else None}
            return {}

        return Talker(name, answer)

    class Ends(session.Progress):
        def __init__(self):
            self.devices = []

        def on(self, device):
            self.devices.append(device)
            return self

        def out_of_time(self):
            assert self.devices[-1] == "two"

        def ended_early(self, sentence):
            assert (sentence, self.devices[-1]) == ("no more", "one")

    class Office:
        progress = Ends()

        def begin(self, task, device):
            with lock:
                busy[device] += 1
                assert max(busy.values()) == 1
            begun.append(task)
            return Job(TASKS[0].spec, TASKS[0].weight, OPTIONS)

    office, tasks = Office(), [f"{kin}{number}" for number in range(5) for kin in "xyz"]
    with task_lock.Claims(tmp_path / "log.jsonl", tasks, str, lambda task: task[0]) as claims:
        Fleet([device("one"), device("two")], CPU).tune(claims, office)
    assert sorted(begun) == sorted(tasks) and len(office.progress.devices) == len(tasks)
    for kin in "xyz":
        assert [task for task in begun if task[0] == kin] == [f"{kin}{number}" for number in range(5)]


def test_claims_of_one_process(tmp_path):
    with task_lock.Claims(tmp_path / "log.jsonl", ["a1", "a2", "b1"], str, lambda item: item[0]) as claims:
        assert [claims.take(), claims.take(), claims.take()] == ["a1", "b1", None]
        claims.free("a1", is_done=False)
        assert claims.left == ["a1", "a2"]
        assert claims.take() == "a1" and claims.take() is None
        claims.free("a1")
        assert claims.take() == "a2"
        claims.free("a2")
        assert claims.left == [] and claims.take() is None


def test_a_job_comes_back_from_json(tmp_path, gpus):
    log = TuningLog(tmp_path / "log.jsonl")
    session.tune_task(TASKS[0], CPU, log, TuneOptions(trials=2), session.Progress())
    options = TuneOptions(trials=7, seconds=3.5, schedules=("csr_cpu",))
    job = Job(TASKS[0].spec, TASKS[0].weight, options, tuple(log.records), tuple(log.records[:1]))
    back = Job.from_json(json.loads(json.dumps(job.to_json())), job.weight)
    assert back == job and len(back.known) == 2
    measure = job.shared(3, 2).options.measure
    assert (measure.builders, measure.memory_bytes) == (3, memory.total_bytes() // 2 // 5)
    assert job.shared(3, 1).options.measure.memory_bytes is None
    limited = replace(job, options=replace(options, measure=replace(options.measure, memory_bytes=99)))
    assert limited.shared(3, 2).options.measure.memory_bytes == 99


def test_a_search_goes_the_same_way_whatever_the_builders():
    fleet = Fleet([Talker("one", hello(), 4), Talker("two", hello(), 20)], CUDA)
    options = replace(OPTIONS, measure=replace(OPTIONS.measure, builders=12))
    assert fleet.options(options).batch == 20
    assert fleet.options(replace(options, batch=3)).batch == 3
    assert replace(fleet, target=CPU).options(options).batch == 8
