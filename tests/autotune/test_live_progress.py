"""What is shown while layers are tuned, live or line by line."""

import io
from dataclasses import dataclass, replace

import pytest
from factories import SPEC, make_record
from rich.console import Console

from tvm_sparse.autotune import session
from tvm_sparse.autotune.progress import task_progress
from tvm_sparse.autotune.progress.live_progress import LiveProgress
from tvm_sparse.autotune.progress.task_progress import CAUSE_WIDTH, TaskProgress
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.display.consoles import PLAIN_WIDTH


@dataclass(frozen=True)
class Layers:
    """What a display reads of a task."""

    names: tuple[str, ...]
    spec: ConvSpec = SPEC


class Clock:
    """Seconds that pass only when told."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def plain():
    return Console(file=io.StringIO(), width=PLAIN_WIDTH)


@pytest.fixture
def terminal():
    return Console(file=io.StringIO(), width=120, force_terminal=True, _environ={})


def lines(console):
    return console.file.getvalue().splitlines()


def ok(time_us, dense_time_us=None, schedule="folded_cpu"):
    dense = {"dense_times_us": (dense_time_us,), "baseline": "dense_cpu"} if dense_time_us else {}
    return make_record(**{"dense_times_us": (), "baseline": ""} | dense, schedule=schedule, times_us=(time_us,))


def failed(status):
    nothing = {"times_us": (), "dense_times_us": (), "baseline": "", "error": None}
    return make_record(status=status, cause="because", **nothing)


def test_progress_fits_what_a_session_calls():
    methods = [name for name in vars(session.Progress) if not name.startswith("_")]
    assert sorted(methods) == ["end", "ended_early", "note", "on", "out_of_time", "start", "task", "trial"]
    assert set(methods) <= set(vars(LiveProgress))


def test_a_task_knows_its_best_kernel_beside_the_dense_kernel_of_the_same_run():
    task = TaskProgress(["conv"], [ok(30, schedule="dense_cpu"), ok(40, schedule="dense_cpu:wide")])
    assert (task.time_us, task.dense_time_us, task.speedup) == (None, 30, None)
    for record in (ok(20, 36), failed("timeout"), ok(12, 35), failed("timeout"), failed("wrong"), ok(15, 33)):
        task.add(record)
    assert (task.time_us, task.dense_time_us, task.speedup) == (12, 35, 35 / 12)
    assert task.to_json() == {
        "layers": ["conv"],
        "batch": None,
        "trials": 8,
        "new_trials": 6,
        "out_of_time": False,
        "ended_early": False,
        "time_us": 12,
        "dense_time_us": 35,
        "speedup": 35 / 12,
        "failures": {"timeout": 2, "wrong": 1},
        "causes": [
            {"schedule": "folded_cpu", "status": "timeout", "cause": "because", "count": 2},
            {"schedule": "folded_cpu", "status": "wrong", "cause": "because", "count": 1},
        ],
    }


def test_lines_say_the_batch_where_there_are_several(plain):
    progress, tasks = LiveProgress(plain), [Layers(("a",)), Layers(("a",), replace(SPEC, n=8))]
    progress.start(tasks, 9)
    for task in tasks:
        progress.task(task, [ok(30, schedule="dense_cpu")])
    progress.end()
    assert [line.partition("  ")[0] for line in lines(plain)] == ["[1/2] a batch 1", "[2/2] a batch 8"]
    assert [task.to_json()["batch"] for task in progress.tasks] == [1, 8]


def beside_cudnn(time_us):
    """A sparse kernel beside cuDNN."""
    times = {"dense_cudnn:tf32": [time_us * 1.5]}
    return replace(ok(time_us, time_us * 3), baseline="dense_cudnn:fp32", library_times_us=times)


@pytest.mark.parametrize(("allow_tf32", "dense_us"), [(False, 30), (True, 15)])
def test_a_task_is_compared_with_cudnn_in_both_precisions(allow_tf32, dense_us):
    known = [ok(31, schedule="dense_cudnn:fp32"), ok(14, schedule="dense_cudnn:tf32"), ok(60, schedule="dense_cuda")]
    task = TaskProgress(["conv"], known, None, allow_tf32)
    assert task.dense_time_us == (14 if allow_tf32 else 31)
    # No compiler runs for a library's kernels.
    assert (task.done, task.new) == (1, 0)
    task.add(beside_cudnn(10))
    assert (task.done, task.new, task.dense_time_us) == (2, 1, dense_us)
    others = ["cuDNN float32 30 us, 3.00x", "cuDNN TF32 15 us, 1.50x"]
    assert task.line(8) == f"conv  2/8  10 us, {', '.join(others[::-1] if allow_tf32 else others)}"


def test_causes_of_new_failures_are_told(monkeypatch, plain):
    # As where the script is on the path.
    monkeypatch.setattr(task_progress, "typed", "tvm-sparse {}".format)
    progress = LiveProgress(plain)
    progress.start([Layers(("a",))], 9)
    progress.task(Layers(("a",)), [failed("wrong")])
    causes = ["kernel.cu(7):\n  too many registers", "b" * 400 + "1", "b" * 400 + "2", "c", "d", "e", "c"]
    for cause in causes:
        progress.trial(replace(failed("build_failed"), cause=cause))
    progress.note("by the way")
    progress.end()
    assert lines(plain)[2:] == [
        "    2 not built: folded_cpu: " + "b" * CAUSE_WIDTH,
        "    2 not built: folded_cpu: c",
        "    1 not built: folded_cpu: d",
        "    and 2 more causes, see: tvm-sparse logs stats LOG",
    ]
    assert progress.tasks[0].to_json()["causes"][-1]["status"] == "wrong"


def test_the_line_of_a_task():
    task = TaskProgress(["first", "second", "third"], [])
    assert task.line(8) == "first (+2 alike)  0/8"
    task.add(ok(30, schedule="dense_cpu"))
    assert task.line(8) == "first (+2 alike)  1/8  dense 30 us"
    for record in (ok(12, 33), failed("build_failed"), failed("build_failed"), failed("run_failed")):
        task.add(record)
    assert task.line(8) == "first (+2 alike)  5/8  12 us, dense 33 us, 2.75x  2 not built, 1 crashed"


def test_every_failure_has_words():
    for status in ("build_failed", "run_failed", "timeout", "wrong", "rejected"):
        assert "1 " in TaskProgress(["conv"], [failed(status)]).line(1)


def test_without_a_terminal_lines_are_few(plain, clock):
    progress = LiveProgress(plain, clock)
    progress.start([Layers(("a",)), Layers(("b",))], 4)
    progress.task(Layers(("a",)), [])
    for _ in range(4):
        clock.now_s += 20
        progress.trial(ok(12, 33))
    progress.task(Layers(("b",)), [ok(12, 33)] * 4)
    progress.end()
    result = "12 us, dense 33 us, 2.75x"
    assert lines(plain) == [
        f"[1/2] a  2/4  {result}  about 2 min left",
        f"[1/2] a  4/4  {result}  about 80 s left",
        f"[1/2] a  4/4  {result}",
        f"[2/2] b  4/4  {result}",
    ]


def test_a_terminal_shows_the_current_layer_and_keeps_the_others(terminal, clock):
    progress = LiveProgress(terminal, clock)
    progress.start([Layers(("a",)), Layers(("b",))], 2)
    progress.task(Layers(("a",)), [])
    progress.trial(ok(12, 33))
    progress.task(Layers(("b",)), [])
    progress.end()
    text = terminal.file.getvalue()
    assert "[1/2] a  1/2  12 us, dense 33 us, 2.75x" in text
    assert "[2/2] b  0/2" in text
    assert "\x1b[?25h" in text, "the cursor is shown again"


def test_interrupted_before_the_first_layer(plain, terminal):
    for console in (plain, terminal):
        progress = LiveProgress(console)
        progress.start([Layers(("a",))], 2)
        progress.end()


def test_time_left_counts_new_trials_only(plain, clock):
    progress = LiveProgress(plain, clock)
    progress.start([Layers(("a",)), Layers(("b",))], 10)
    progress.task(Layers(("a",)), [ok(12, 33)] * 6)
    assert progress.eta_s() is None
    clock.now_s = 4
    progress.trial(ok(12, 33))
    progress.trial(ok(12, 33))
    assert progress.eta_s() == 2 * (2 + 10)


def test_a_layer_that_ran_out_of_time_says_so(plain):
    progress = LiveProgress(plain)
    progress.start([Layers(("a",)), Layers(("b",))], 4)
    progress.task(Layers(("a",)), [])
    progress.trial(ok(12, 33))
    progress.out_of_time()
    progress.task(Layers(("b",)), [])
    progress.end()
    assert lines(plain) == ["[1/2] a  1/4  12 us, dense 33 us, 2.75x  out of time", "[2/2] b  0/4"]
    assert [task.to_json()["out_of_time"] for task in progress.tasks] == [True, False]


def test_layers_that_ended_early_say_so_and_the_first_says_why(plain):
    progress = LiveProgress(plain)
    progress.start([Layers((name,)) for name in "abc"], 4)
    for name in "abc":
        progress.task(Layers((name,)), [])
        progress.trial(ok(12, 33))
        if name != "b":
            progress.ended_early("nothing more")
    progress.end()
    result = "1/4  12 us, dense 33 us, 2.75x"
    assert lines(plain) == [
        f"[1/3] a  {result}  ended early",
        "    nothing more",
        f"[2/3] b  {result}",
        f"[3/3] c  {result}  ended early",
    ]
    assert [task.to_json()["ended_early"] for task in progress.tasks] == [True, False, True]


def test_time_left_keeps_to_the_limit_of_a_layer(plain, clock):
    progress = LiveProgress(plain, clock, limit_s=10)
    progress.start([Layers(("a",)), Layers(("b",))], 100)
    progress.task(Layers(("a",)), [])
    clock.now_s = 4
    progress.trial(ok(12, 33))
    assert progress.eta_s() == (10 - 4) + 10
    clock.now_s = 12
    assert progress.eta_s() == 10


def test_each_device_has_lines_of_its_own(plain, terminal, clock):
    """What one that is lost had begun is the other's then, not a layer more."""
    for console in (plain, terminal):
        progress = LiveProgress(console, clock)
        progress.start([Layers(("a",)), Layers(("b",)), Layers(("c",))], 4)
        first, second = progress.on("cuda:0"), progress.on("cuda:1")
        first.task(Layers(("a",)), [])
        second.task(Layers(("b",)), [])
        clock.now_s += 6
        for device in (first, second, first):
            device.trial(ok(12, 33))
        # 5 of 8 trials of the two, and 4 of the third, at 2 s each.
        assert progress.eta_s() == 2 * (5 + 4)
        live = progress._live_text()
        second.task(Layers(("c",)), [])
        second.task(Layers(("a",)), [ok(12, 33), ok(12, 33)])
        second.out_of_time()
        progress.end()
        assert live.splitlines() == [
            "[1/3] cuda:0: a  2/4  12 us, dense 33 us, 2.75x  about 18 s left",
            "[2/3] cuda:1: b  1/4  12 us, dense 33 us, 2.75x",
        ]
        assert [(task.names, task.done, task.new) for task in progress.tasks] == [
            (("a",), 2, 2),
            (("b",), 1, 1),
            (("c",), 0, 0),
        ]
    assert lines(plain) == [
        "cuda:0: a",
        "cuda:1: b",
        "[2/3] cuda:1: b  1/4  12 us, dense 33 us, 2.75x",
        "cuda:1: c",
        "[3/3] cuda:1: c  0/4",
        "cuda:1: a",
        "[1/3] cuda:1: a  2/4  12 us, dense 33 us, 2.75x  out of time",
    ]
