"""The command line: exit codes, one sentence for each mistake, one JSON document, and work that survives Ctrl-C."""

import itertools
import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import tvm
import zoo
from factories import make_record
from fake_cudnn import compiled
from parameters import sampled

import tvm_sparse
from tvm_sparse.autotune.search import trial_runner
from tvm_sparse.cli import demo_data, main
from tvm_sparse.cli.commands import doctor, tune
from tvm_sparse.cli.parser import build_parser
from tvm_sparse.compiler.plan import kernel_selection
from tvm_sparse.conv import reference
from tvm_sparse.conv.reference import AGREEMENT
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.cudnn import library
from tvm_sparse.errors import BuildError, VerificationError, typed
from tvm_sparse.logs.known_logs import user_log
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.measure.worker import Worker
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.resolve import resolve_target

pytestmark = pytest.mark.usefixtures("unoptimised")

COMMANDS = ("inspect", "report", "tune", "compile", "check", "run", "export", "bench", "demo", "doctor", "logs")
SPEC = ConvSpec(n=1, c=8, h=12, w=12, k=16, r=3, s=3, padding=(1, 1, 1, 1), bias=True, relu=True)


def make_arrays():
    """A weight with a quarter of its entries and one filter dead, and a bias."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal(SPEC.weight_shape) * (rng.random(SPEC.weight_shape) < 0.25)
    weight[3] = 0
    return weight.astype(np.float32), rng.standard_normal(SPEC.k).astype(np.float32)


@pytest.fixture
def nothing_predicted(monkeypatch):
    """Whether a small layer is worth a sparse kernel depends on the machine's vectors."""
    monkeypatch.setattr(kernel_selection, "remembered", lambda *_, **__: None)


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Default files land in a fresh folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """The path of a model with one convolution, input ``x`` and output ``y``."""
    path = tmp_path_factory.mktemp("model") / "tiny.onnx"
    weight, bias = make_arrays()
    nodes = [("Conv", ["x", "conv.weight", "b"], ["t"], {"pads": [1, 1, 1, 1]}), ("Relu", ["t"], ["y"], {})]
    shapes = {"x": SPEC.input_shape}, {"y": SPEC.output_shape}
    onnx.save(zoo.onnx_model(nodes, {"conv.weight": weight, "b": bias}, *shapes), path)
    return path


@pytest.fixture(scope="session")
def log(model, tmp_path_factory):
    """The path of a log with six trials of it, of which none was built."""
    path = tmp_path_factory.mktemp("log") / "tiny.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worker, "command", (sys.executable, str(Path(zoo.__file__).with_name("faulty_worker.py"))))
        assert main.main(["tune", str(model), "--trials", "6", "-o", str(path)]) == 0
    return path


@pytest.fixture(scope="session")
def artifact(model, log, tmp_path_factory):
    """The path of the compiled model."""
    path = tmp_path_factory.mktemp("artifact") / "tiny.sparse"
    assert main.main(["compile", str(model), "-o", str(path), "--tuning-records", str(log)]) == 0
    return path


def call(*words):
    return main.main([str(word) for word in words])


def document(capsys, *words):
    """What a command prints with --json."""
    capsys.readouterr()
    assert call(*words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def start(*words):
    """The command in a process of its own, which heeds Ctrl-C even where the tests run in the background."""
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"import sys; {heed}; from tvm_sparse.cli import main as cli; sys.exit(cli.main())"
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def python(code):
    """What a fresh Python prints for `code`."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def loaded_by(code):
    """Packages beyond the standard library, and beyond what every Python here loads, that `code` makes it load."""
    code = f"import sys; usual = set(sys.modules)\n{code}\nprint()\nprint(*set(sys.modules) - usual)"
    names = {name.partition(".")[0] for name in python(code).splitlines()[-1].split()}
    return names - sys.stdlib_module_names


def test_importing_the_package_loads_nothing_else():
    assert loaded_by("import tvm_sparse") == {"tvm_sparse"}


def test_help_loads_nothing_else():
    code = "from tvm_sparse.cli import main as cli\ntry:\n    cli.main(['tune', '--help'])\nexcept SystemExit: pass"
    assert loaded_by(code) == {"tvm_sparse"}


def test_compiling_for_a_gpu_says_what_is_built(model, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TVM_SPARSE_HOME", str(tmp_path / "home"))
    words = ("compile", model, "-o", tmp_path / "a.sparse", "--target", '{"kind":"cuda","arch":"sm_90"}')
    for said in ("1 kernel: 1 built in ", "1 kernel: 1 built before"):
        assert call(*words) == 0
        out, err = capsys.readouterr()
        assert said in err and ("nothing was run or verified here: " in out) != tvm.cuda(0).exist


def test_a_shell_that_asks_for_words_is_answered(monkeypatch):
    asked = []
    monkeypatch.setitem(sys.modules, "argcomplete", SimpleNamespace(autocomplete=asked.append))
    monkeypatch.setenv("_ARGCOMPLETE", "1")
    with pytest.raises(SystemExit):
        call("--version")
    (parser,) = asked
    assert {*COMMANDS} <= {*parser._subparsers._group_actions[0].choices}


@pytest.mark.parametrize(
    ("script", "python", "hint"),
    [
        ("{bin}/tvm-sparse", "{bin}/python", "tvm-sparse doctor"),
        ("/elsewhere/tvm-sparse", "{bin}/python", "python -m tvm_sparse doctor"),
        (None, "/elsewhere/python", "{bin}/python -m tvm_sparse doctor"),
        (None, None, "{bin}/python -m tvm_sparse doctor"),
    ],
)
def test_hints_name_a_command_that_works_here(script, python, hint, monkeypatch):
    folder = "/home/me/.venv/bin"
    found = {"tvm-sparse": script, "python": python}
    monkeypatch.setattr(sys, "executable", f"{folder}/python")
    monkeypatch.setattr(shutil, "which", lambda name: found[name] and found[name].format(bin=folder))
    assert typed("doctor") == hint.format(bin=folder)


def test_public_names():
    assert dir(tvm_sparse) == sorted(tvm_sparse.__all__)
    for name in tvm_sparse.__all__:
        assert getattr(tvm_sparse, name) is not None
    assert set(tvm_sparse.__all__) <= set(dir(tvm_sparse))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        tvm_sparse.nonsense  # noqa: B018


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)], ids=lambda words: words[0] if words else "all")
def test_help_teaches(words, capsys):
    with pytest.raises(SystemExit) as ended:
        call(*words, "--help")
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert f"tvm-sparse {words[0]}" in text.partition("example")[2] if words else all(c in text for c in COMMANDS)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nonsense"],
        ["tune"],
        ["tune", "m.onnx", "--trials", "0"],
        ["tune", "m.onnx", "--timeout", "inf"],
        ["tune", "m.onnx", "--seconds", "0"],
        ["tune", "m.onnx", "--trial", "3"],
        ["tune", "m.onnx", "--seed", "-1"],
        ["tune", "m.onnx", "--seed", "4294967296"],
        ["inspect", "m.onnx", "--input-shape", "1,3,224,224"],
        ["inspect", "m.onnx", "--input-shape", "x:1,-3"],
        ["inspect", "m.onnx", "--batch", "1,0"],
        ["tune", "m.onnx", "--batch", ""],
        ["compile", "m.onnx"],
        ["logs", "nonsense", "a.jsonl"],
    ],
    ids=" ".join,
)
def test_wrong_usage(words):
    with pytest.raises(SystemExit) as ended:
        call(*words)
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("code", "words", "sentence"),
    [
        (3, ["inspect", "missing.onnx"], "missing.onnx: no such file"),
        (3, ["inspect", "text.onnx"], "text.onnx: this is no valid ONNX model"),
        (3, ["inspect", "model.pth"], "model.pth: this is a pickle"),
        (2, ["inspect", "{model}", "--target", "nonsense"], "target nonsense"),
        (3, ["inspect", "{model}", "--input-shape", "z:1,2"], "no such input, found z"),
        (3, ["inspect", "{model}", "--tuning-records", "missing.jsonl"], "missing.jsonl"),
        (3, ["compile", "{model}", "-o", "folder"], "folder: exists and is no artifact"),
        (2, ["tune", "{model}", "--schedules", "nonsense"], "--schedules: unknown, found nonsense"),
        (2, ["tune", "{model}", "--dry-run", "--layers", "nonsense"], "layers: not in the model, found nonsense"),
        (3, ["run", "missing"], "missing: is no artifact"),
        (2, ["run", "missing", "-o", "y.txt"], "--output: has another suffix"),
        (3, ["bench", "missing.onnx"], "missing.onnx: no such file"),
        (3, ["logs", "stats", "missing.jsonl"], "missing.jsonl: no such file"),
        (2, ["logs", "merge", "text.onnx"], "no file to write was given"),
        (2, ["logs", "best", "text.onnx", "-o", "a.jsonl"], "writes no file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistakes_are_one_sentence(code, words, sentence, model, tmp_path, capsys):
    Path("text.onnx").write_text("nonsense")
    Path("model.pth").write_text("nonsense")
    (tmp_path / "folder" / "file").mkdir(parents=True)
    assert call(*(word.format(model=model) for word in words)) == code
    out, err = capsys.readouterr()
    assert out == ""
    message = err.splitlines()[-1]
    assert message.startswith("tvm-sparse: ") and sentence in message
    assert "Traceback" not in err


@pytest.mark.parametrize("allow_tf32", [False, True])
def test_tf32_is_an_option_of_every_command_that_chooses_kernels(model, allow_tf32, monkeypatch, capsys):
    seen = []

    def plan(_prepared, _target, _log, options):
        assert options.predict
        seen.append(options.allow_tf32)
        raise BuildError("model", "enough is known")

    monkeypatch.setattr("tvm_sparse.compiler.build_model.planned", plan)
    words = ["--allow-tf32"] * allow_tf32
    commands = (["compile", model, "-o", "a"], ["check", model], ["inspect", model], ["show", model, "--layer", "conv"])
    for each in (*commands, ["bench", model]):
        assert call(*each, *words) == 4, capsys.readouterr().err
    assert seen == [allow_tf32] * 5


def test_a_traceback_where_it_was_asked_for(capsys):
    assert call("inspect", "missing.onnx", "-v") == 3
    assert "Traceback" in capsys.readouterr().err


def test_failed_builds_and_verifications_have_their_codes(model, monkeypatch, capsys):
    def fail(error):
        raise error

    error = VerificationError("model", "the outputs differ")
    monkeypatch.setattr("tvm_sparse.cli.commands.bench.bench", lambda *_, **__: fail(error))
    assert call("bench", model, "--repeat", "1") == 5
    assert capsys.readouterr().err.splitlines()[-1] == "tvm-sparse: model: the outputs differ"
    name = "tvm_sparse.compiler.build_model.compile"
    monkeypatch.setattr(name, lambda *_, **__: fail(BuildError("model", "does not build")))
    assert call("compile", model, "-o", "a") == 4
    monkeypatch.setattr(
        "tvm_sparse.compiler.build_model.compile",
        lambda *_, **__: fail(RuntimeError("Traceback of C++\n  the reason\n")),
    )
    assert call("compile", model, "-o", "a") == 4
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "tvm-sparse: internal error: the reason; run again with -v to see where"


def test_as_a_module():
    command = [sys.executable, "-m", "tvm_sparse", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"tvm-sparse {tvm_sparse.__version__}\n"


@pytest.mark.parametrize("options", [pytest.param([], marks=pytest.mark.exhaustive), ["--json"]])
def test_the_reader_of_the_output_leaves(options, log):
    process = start("logs", "best", log, *options)
    process.stdout.close()
    assert process.wait(timeout=120) == main.EXIT_BROKEN_PIPE
    assert process.stderr.read() == ""
    process.stderr.close()


def test_inspect(nothing_predicted, model, capsys):
    weight, _ = make_arrays()
    found = document(capsys, "inspect", model)
    (layer,) = found["layers"]
    assert layer["layer"] == "conv"
    assert layer["convolution"] == SPEC.key
    assert layer["nnz"] == np.count_nonzero(weight)
    assert layer["dead_filters"] == 1
    assert layer["sparse_mflop"] == SPEC.sparse_flops(layer["nnz"]) / 1e6
    assert {"folded_cpu", "dense_cpu"} <= set(layer["schedules"])
    assert layer["chosen"].startswith("dense_cpu")
    assert layer["limit"] and any("1 of its filters are all zero" in advice for advice in layer["advice"])
    assert call("inspect", model) == 0
    brief = capsys.readouterr().out
    assert (
        brief.startswith("worth it: no: ") and "no gain expected" in brief and "vectors need them: 1 filter." in brief
    )
    assert call("inspect", model, "-v") == 0
    text = capsys.readouterr().out
    assert "1x8x12x12, 16x3x3" in text and "no record for this shape" in text and text.endswith(brief)


def test_inspect_says_what_the_log_would_choose(model, log, capsys):
    (layer,) = document(capsys, "inspect", model, "--tuning-records", log)["layers"]
    assert layer["dense_time_us"] > 0 and layer["time_us"] > 0


def test_inspect_for_cuda_needs_no_gpu(model, capsys):
    found = document(capsys, "inspect", model, "--target", "cuda")
    assert found["target"]["kind"] == "cuda"
    assert "dense_cuda" in found["layers"][0]["schedules"]


def test_a_dry_run_changes_nothing(model, log, tmp_path, capsys):
    plan = document(capsys, "tune", model, "--dry-run", "--trials", "10")
    assert (plan["trials"], plan["log"]) == (10, str(user_log(resolve_target())))
    assert plan["seconds_estimate"] > 0
    assert list(tmp_path.iterdir()) == []
    before = log.read_bytes()
    (task,) = document(capsys, "tune", model, "--dry-run", "--trials", "10", "--tuning-records", log)["tasks"]
    assert (task["known_trials"], task["trials"]) == (6, 4)
    assert log.read_bytes() == before
    assert call("tune", model, "--dry-run") == 0
    assert "64 trials to run, about" in capsys.readouterr().out


def test_a_dry_run_keeps_to_the_time_of_a_layer(model, capsys):
    plan = document(capsys, "tune", model, "--dry-run", "--seconds", "7")
    assert (plan["trials"], plan["seconds"], plan["seconds_estimate"]) == (64, 7, 7)
    assert call("tune", model, "--dry-run", "--seconds", "7") == 0
    assert "64 trials to run, about 7 s at 2 s each, 7 s a layer at most." in capsys.readouterr().out


def test_the_time_ends_a_layer_and_a_rerun_goes_on(nothing_built, model, monkeypatch, capsys):
    """The clock jumps whenever it is read, so that the first batch is the last one."""
    clock = itertools.count(0, 100)
    words = ["tune", model, "--trials", "4", "--seconds", "150", "-o", "time.jsonl"]
    with monkeypatch.context() as patch:
        patch.setattr(trial_runner, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        assert call(*words) == 0
    text = capsys.readouterr()
    assert "The time, 150 s a layer, and not the trials ended the search of: conv. Run again to go on." in text.out
    assert "out of time" in text.err
    made = len(TuningLog("time.jsonl").records)
    assert 0 < made < 4
    (task,) = document(capsys, *words)["tasks"]
    assert (task["out_of_time"], task["trials"], task["new_trials"]) == (False, 4, 4 - made)


def test_tuning_again_tries_nothing(model, log, capsys):
    before = log.read_bytes()
    found = document(capsys, "tune", model, "--trials", "6", "-o", log)
    assert found["log"] == str(log)
    (task,) = found["tasks"]
    assert (task["layers"], task["trials"], task["new_trials"]) == (["conv"], 6, 0)
    assert task["time_us"] > 0
    assert log.read_bytes() == before


def test_the_first_log_is_written_and_the_others_are_read(model, log, capsys):
    words = ["--tuning-records", "new.jsonl", "--tuning-records", log, "--trials", "6"]
    found = document(capsys, "tune", model, "--dry-run", *words)
    assert (found["log"], found["trials"]) == ("new.jsonl", 0)
    TuningLog("new.jsonl").append(make_record())
    found = document(capsys, "tune", model, "--dry-run", *words, "-o", "other.jsonl")
    assert (found["log"], found["trials"]) == ("other.jsonl", 0)


def test_bad_lines_of_a_log_are_reported(model, log, tmp_path, caplog):
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_text(log.read_text() + "nonsense\n")
    assert call("inspect", model, "--tuning-records", damaged) == 0
    assert f"{damaged}: 1 line(s) skipped, see: {typed(f'logs stats {damaged}')}" in caplog.text


def test_run_writes_the_right_outputs(artifact, capsys):
    weight, bias = make_arrays()
    x = reference.random_arguments(SPEC, 3)["x"]
    # As a machine of the other byte order wrote it.
    np.save("x.npy", x.astype(">f4"))
    assert call("run", artifact, "--input", "x.npy", "-o", "y.npz") == 0
    assert "written: y.npz" in capsys.readouterr().out
    with np.load("y.npz") as outputs:
        (y,) = (outputs[name] for name in outputs.files)
    reference.reference(SPEC, x, weight, bias).check("run", y)
    np.savez("x.npz", x=x)
    (summary,) = document(capsys, "run", artifact, "--input", "x.npz")["outputs"]
    assert summary["shape"] == list(SPEC.output_shape)
    assert (summary["min"], summary["max"]) == (y.min(), y.max())


@pytest.mark.parametrize("command", ["run", pytest.param("bench", marks=pytest.mark.exhaustive)])
def test_an_artifact_that_others_could_change_is_run_only_when_told(artifact, tmp_path, capsys, command):
    exposed = shutil.copytree(artifact, tmp_path / "exposed.sparse")
    exposed.chmod(0o777)
    assert call(command, exposed) == 3
    assert "others could change" in capsys.readouterr().err
    assert call(command, exposed, "--trust") == 0


def test_run_without_input_is_random_with_a_seed(artifact, capsys):
    first, again, other = (document(capsys, "run", artifact, "--seed", seed) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(
    ("name", "write", "sentence"),
    [
        ("missing.npy", lambda _path: None, "no such file"),
        ("text.npy", lambda path: path.write_text("nonsense"), "cannot be read"),
        ("empty.npz", lambda path: path.write_bytes(b""), "cannot be read"),
        ("shape.npy", lambda path: np.save(path, np.zeros((1, 2), np.float32)), "wrong shape"),
        ("type.npy", lambda path: np.save(path, np.zeros(SPEC.input_shape)), "wrong element type"),
        (
            "complex.npy",
            lambda path: np.save(path, np.zeros(SPEC.input_shape, complex)),
            "element type, found complex128",
        ),
        ("x.pt", lambda path: path.write_bytes(b""), "numpy.save('x.npy', x.numpy())"),
        ("name.npz", lambda path: np.savez(path, z=np.zeros(1)), "lacks input x"),
        ("objects.npy", lambda path: np.save(path, np.array([{}])), "cannot be read"),
    ],
)
def test_unusable_inputs(name, write, sentence, artifact, tmp_path, capsys):
    write(tmp_path / name)
    assert call("run", artifact, "--input", tmp_path / name) == 3
    assert sentence in capsys.readouterr().err


def test_bench_of_a_model(model, log, capsys):
    words = ["bench", model, "--tuning-records", log, "--repeat", "3"]
    found = document(capsys, *words, "--target", '{"kind":"llvm","num-cores":1}')
    assert (found["threads"], found["rounds"]) == (1, 3)
    assert [row["name"] for row in found["times"]] == ["tvm-sparse", "dense, same compiler", "onnxruntime"]
    for row in found["times"]:
        assert 0 < row["time_us"]["q1"] <= row["time_us"]["median"] <= row["time_us"]["q3"]
    assert found["times"][0]["speedup"] is None
    assert found["times"][1]["verdict"] in ("faster", "slower", "undecided")


def test_bench_of_an_artifact(artifact, model, tmp_path, capsys):
    """Beside the file that it was made of, as long as that is there and the same."""
    found = document(capsys, "bench", artifact, "--repeat", "1")
    assert [row["name"] for row in found["times"]] == ["tvm-sparse", "dense, same compiler", "onnxruntime"]
    assert found["verdict"]["kind"] == "measured" and found["verdict"]["speedup"] > 0
    alone = shutil.copytree(artifact, tmp_path / "elsewhere" / "deeper" / "tiny.sparse")
    assert call("bench", alone, "--repeat", "1") == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-2].startswith("timed alone: ") and out[-2].endswith("is not there")
    # What else the machine does may follow.
    assert out[-1].startswith("model: ") and "us (measured" in out[-1] and "dense" not in out[-1]


def test_compile_reports_and_writes(nothing_predicted, model, log, tmp_path, capsys):
    found = document(capsys, "compile", model, "-o", "new.sparse", "--tuning-records", log)
    assert found["artifact"] == "new.sparse" and Path("new.sparse").is_dir()
    assert [each["kind"] for each in found["verdicts"]] == ["predicted"]
    assert [layer["layer"] for layer in found["layers"]] == ["conv"]
    assert call("compile", model, "-o", "dense.sparse") == 0
    out, err = capsys.readouterr()
    assert err == "" and "no gain expected" in out and out.splitlines()[-1].startswith("model: about 1x (predicted")


def test_several_batches_in_one_artifact(nothing_predicted, model, log, tmp_path, capsys):
    words = [model, "--tuning-records", log, "--batch", "2,1"]
    doc, again = (document(capsys, "inspect", *words), document(capsys, "inspect", model, "--tuning-records", log))
    assert [each["model"] for each in doc["variants"]] == [f"{model}, batch 1", f"{model}, batch 2"]
    assert doc["variants"][0]["layers"] == again["layers"]
    assert doc["variants"][1]["layers"][0]["shape"].startswith("2x8x12x12")
    assert call("inspect", *words) == 0
    assert "batch 2" in capsys.readouterr().out
    plan = document(capsys, "tune", *words, "--dry-run", "--trials", "9")
    assert [task["convolution"][:2] for task in plan["tasks"]] == ["n1", "n2"]
    assert [task["known_trials"] for task in plan["tasks"]] == [6, 0]
    rows = document(capsys, "compile", *words, "-o", tmp_path / "m.sparse")["layers"]
    assert [(row["variant"], row["layer"]) for row in rows] == [("batch 1", "conv"), ("batch 2", "conv")]
    assert rows[1]["reason"].startswith("no record for this shape")
    call("compile", *words, "-o", tmp_path / "m.sparse")
    assert "batch" in capsys.readouterr().out
    x = np.random.default_rng(0).standard_normal((5, *SPEC.input_shape[1:])).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    ran = document(capsys, "run", tmp_path / "m.sparse", "--input", "x.npz", "-o", tmp_path / "y.npz")
    assert ran["outputs"][0]["shape"][0] == 5
    weight, bias = make_arrays()
    with np.load("y.npz") as found:
        assert reference.reference(replace(SPEC, n=5), x, weight, bias).worst(found["y"]) <= 1
    assert document(capsys, "bench", tmp_path / "m.sparse", "--repeat", "3")["rounds"] == 3


def test_tuning_several_batches_shows_which(nothing_built, model, tmp_path, capsys):
    words = ("tune", model, "-o", tmp_path / "log.jsonl", "--batch", "1,2", "--trials", "2", "--schedules", "csr_cpu")
    assert call(*words) == 0
    out = capsys.readouterr()
    assert "conv batch 1  2/2" in out.err and "conv batch 2  2/2" in out.err
    assert [task["batch"] for task in document(capsys, *words)["tasks"]] == [1, 2]
    assert {record.spec.n for record in TuningLog(tmp_path / "log.jsonl").records} == {1, 2}


def test_logs(log, capsys):
    stats = document(capsys, "logs", "stats", log, log)
    assert (stats["records"], stats["rejected"]) == (6, 0)
    (best,) = document(capsys, "logs", "best", log)["records"]
    assert best["convolution"] == SPEC.key
    other = TuningLog("other.jsonl")
    other.append(make_record())
    assert document(capsys, "logs", "merge", log, "other.jsonl", "-o", "all.jsonl")["records"] == 7
    kept = document(capsys, "logs", "distill", "all.jsonl", "-o", "best.jsonl.xz")["kept"]
    assert len(TuningLog("best.jsonl.xz").records) == kept < 7
    assert call("logs", "merge", log, "-o", "all.jsonl") == 3
    Path("bad.jsonl").write_text("nonsense\n")
    for action in ("stats", "best"):
        assert call("logs", action, "all.jsonl", "bad.jsonl") == 0
    assert "bad.jsonl, line 1: skipped" in capsys.readouterr().out


def without_checks(monkeypatch, *names):
    """Let `doctor` start processes for the checks `names` only, and take TVM for sound."""
    check = doctor._self_check
    monkeypatch.setattr(doctor, "_self_check", lambda name: check(name) if name in names else "ok")


def test_doctor(capsys, monkeypatch):
    found = document(capsys, "doctor")
    assert (found["self_check"], found["build_check"]) == ("ok", "ok")
    assert found["fingerprint"] == fingerprint_of(resolve_target())
    works = {each["what"]: each["works"] for each in found["abilities"]}
    assert works["build and run kernels on this processor"] and works["tune and save models"]
    assert works["run on a GPU"] == tvm.cuda(0).exist
    assert works["compute dense layers by cuDNN, and compare with it"] == (library.find() is not None)
    without_checks(monkeypatch)
    assert call("doctor") == 0
    text = capsys.readouterr().out
    assert "self_check: ok" in text and "\nworks: read .onnx files" in text


def test_doctor_says_which_cudnn_it_finds(capsys, monkeypatch, tmp_path):
    def ability():
        (each,) = (each for each in document(capsys, "doctor")["abilities"] if "cuDNN" in each["what"])
        return each

    without_checks(monkeypatch, "cudnn")
    compiled(tmp_path / "lib")
    monkeypatch.setenv("CUDNN_PATH", str(tmp_path))
    assert ability()["works"]
    (tmp_path / "lib" / library.NAME).write_text("nonsense")
    assert "it does not load (exit code 1: tvm_sparse.errors.BuildError: cuDNN: /" in ability()["why_not"]


def test_doctor_of_a_broken_installation(capsys, monkeypatch, tmp_path):
    """TVM that ends the process: the report comes out all the same, then the failure."""
    (tmp_path / "broken" / "tvm").mkdir(parents=True)
    (tmp_path / "broken" / "tvm" / "__init__.py").write_text("import os\nos.abort()\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'broken'}:{Path(tvm_sparse.__file__).parents[1]}")
    assert call("doctor", "--json") == 4
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["self_check"].startswith("exit code -6")
    assert not any(each["works"] for each in found["abilities"] if "kernels" in each["what"])
    assert "fails its self_check" in err and "apache-tvm-ffi>=" in err.splitlines()[-1]


def test_doctor_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr("tvm_sparse.cli.commands.doctor._version", lambda name: None if name == "onnx" else "1")
    monkeypatch.setattr("tvm_sparse.cli.commands.doctor.LINKERS", ())
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    without_checks(monkeypatch)
    found = {each["what"]: each for each in document(capsys, "doctor")["abilities"]}
    assert found["read .onnx files"] == {
        "what": "read .onnx files",
        "works": False,
        "why_not": "onnx is not installed",
        "install": "pip install 'tvm-sparse[onnx]'",
    }
    assert found["tune and save models"]["why_not"] == "no C compiler"
    assert found["build and run kernels on this processor"]["works"]
    assert not found["run on a GPU"]["works"]


@pytest.mark.parametrize(("mcpu", "works"), [("x86-64-v2", False), ("x86-64-v3", True)])
def test_doctor_says_where_estimates_were_not_measured(monkeypatch, capsys, mcpu, works):
    without_checks(monkeypatch)
    found = document(capsys, "doctor", "--target", json.dumps({"kind": "llvm", "mcpu": mcpu}))
    (ability,) = (each for each in found["abilities"] if each["what"].startswith("know how long"))
    assert ability["works"] == works
    assert works or "its vectors have 4 floats, and" in ability["why_not"]


@pytest.mark.parametrize("installed", [("xgboost-cpu",), ("xgboost",), ("xgboost-cpu", "xgboost"), ()])
def test_doctor_warns_of_two_packages_of_xgboost(monkeypatch, capsys, installed):
    """Either serves; both install the same files."""
    monkeypatch.setattr(doctor, "_version", lambda name: "1" if "xgboost" not in name or name in installed else None)
    without_checks(monkeypatch)
    found = document(capsys, "doctor")
    (ability,) = (each for each in found["abilities"] if each["what"] == "tune and save models")
    assert ability["works"] == bool(installed)
    assert call("doctor") == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
    assert said == [f"warning: {each}" for each in found["warnings"]]
    assert len(said) == (len(installed) == 2)
    assert not said or "pip uninstall -y xgboost-cpu xgboost && pip install xgboost-cpu" in said[0]


@pytest.mark.parametrize("number", sampled([signal.SIGINT, signal.SIGTERM], [signal.SIGINT]))
def test_interrupted_tuning_is_saved_and_continues(number, nothing_built, model, capsys):
    log = Path("it's mine.jsonl")
    words = ["tune", model, "--trials", "12", "-o", log, "--json"]
    process = start(*words)
    deadline_s = time.monotonic() + 180
    while not (log.exists() and log.read_text().count("\n") >= 3):
        assert process.poll() is None and time.monotonic() < deadline_s, process.communicate()
        time.sleep(0.05)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert out == ""
    resume = typed(f"tune {model} --trials 12 -o 'it'\"'\"'s mine.jsonl' --json")
    assert err.splitlines()[-1] == f"tvm-sparse: interrupted; continue with: {resume}"
    assert "Traceback" not in err
    saved = TuningLog(log)
    assert not saved.rejected and 3 <= len(saved.records) < 12
    (task,) = document(capsys, *words[:-1])["tasks"]
    assert (task["trials"], task["new_trials"]) == (12, 12 - len(saved.records))


DEMO = ["demo", "--trials", "2", "--repeat", "1"]


def test_demo(nothing_built, monkeypatch, capsys):
    """On every fifth image: `test_demo_data.py` counts them all."""
    load = demo_data._load
    monkeypatch.setattr(demo_data, "_load", lambda name: load(name)[::5])
    first = document(capsys, *DEMO)
    assert sum(task["new_trials"] for task in first["tasks"]) == 2 * len(first["layers"])
    assert first["images"] == 90
    assert all(right >= 0.98 * 90 for right in first["right"].values())
    assert set(first["differences"]) == {"dense kernels", "ONNX Runtime"}
    assert all(difference <= AGREEMENT for difference in first["differences"].values())


@pytest.mark.exhaustive
def test_demo_goes_on(capsys):
    for _ in range(2):
        assert call(*DEMO) == 0
    text = capsys.readouterr().out
    assert "Tuning: 0 new trials" in text and "held-out images" in text


@pytest.mark.parametrize(("words", "patience"), [([], 24), (["--full"], None)])
def test_full_makes_all_trials(words, patience):
    assert tune._options(build_parser().parse_args(["tune", "m.onnx", *words])).patience == patience
