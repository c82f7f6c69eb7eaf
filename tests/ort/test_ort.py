"""ONNX Runtime runs an exported model with our kernels: same outputs as in Python, and a sentence where it cannot."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import exported
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import zoo
from exported import outputs_of

from tvm_sparse import ort
from tvm_sparse.cli import main
from tvm_sparse.errors import BuildError, UsageError
from tvm_sparse.ort import provider, session

Fail = onnxruntime.capi.onnxruntime_pybind11_state.Fail
Missing = onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented

# Names as other frameworks give them.
NODES = [("Conv", ["data:0", "w"], ["t"], {"pads": [1, 1, 1, 1]}), ("Relu", ["t"], ["out.1"], {})]
WEIGHT = np.random.default_rng(0).standard_normal((4, 4, 3, 3)).astype(np.float32)
STRANGE = zoo.onnx_model(NODES, {"w": WEIGHT}, {"data:0": zoo.X}, {"out.1": zoo.X})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ort")


@pytest.fixture(scope="module")
def lookup(folder):
    """A model of two inputs, an index among them, two outputs and two batch sizes; and its .onnx file."""
    inputs = np.zeros((3, 3, 8), np.float32), np.full((3, 4), 5)
    model, out = exported.made(exported.Lookup().eval(), inputs, folder, batch=[1, 3])
    return model, ort.export(out.with_name("model.sparse"), folder / "lookup.onnx")


@pytest.fixture(scope="module")
def registered():
    ort.register()
    ort.register()


def opened(path, **options):
    made = onnxruntime.InferenceSession(str(path), ort.session_options(**options))
    assert made.get_providers()[0] == session.NAME
    return made


def run(made, *arrays):
    return made.run(None, {each.name: value for each, value in zip(made.get_inputs(), arrays, strict=True)})


def test_a_session_without_the_provider():
    if not session._devices(onnxruntime):
        with pytest.raises(UsageError, match=r"call tvm_sparse\.ort\.register\(\) first"):
            ort.session_options()


def test_an_onnx_file(registered, folder):
    onnx.save(STRANGE, folder / "strange.onnx")
    ort.export(folder / "strange.onnx", folder / "fast.onnx", target=exported.TARGET)
    assert {f"fast{end}" for end in (".onnx", ".plan", ".so")} | {provider.FILE} <= {p.name for p in folder.iterdir()}
    (x,) = zoo.inputs_of([zoo.X])
    made = opened(folder / "fast.onnx")
    assert [each.name for each in made.get_inputs() + made.get_outputs()] == ["data:0", "out.1"]
    np.testing.assert_allclose(run(made, x)[0], zoo.run_onnx(STRANGE, x)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", [0, 1])
def test_batches_inputs_and_outputs(registered, lookup, threads):
    """A batch that there is, smaller ones, larger ones, and one that is none; an index that is out of range."""
    model, path = lookup
    made, rng = opened(path, threads=threads), np.random.default_rng(0)
    assert [each.shape for each in made.get_inputs()] == [["batch", 3, 8], ["batch", 4]]
    for samples in (1, 2, 3, 4, 7):
        x, i = rng.standard_normal((samples, 3, 8)).astype(np.float32), np.full((samples, 4), 5)
        for got, want in zip(run(made, x, i), outputs_of(model, (x, i)), strict=True):
            np.testing.assert_array_equal(got, want)
    with pytest.raises(Fail, match="found 9; allowed: 0 to 7"):
        run(made, x, i + 4)
    with pytest.raises(Fail, match=r"input .*: has another shape"):
        run(made, x[:2], i)
    with pytest.raises(Fail, match=r"input .*: has another shape"):
        run(made, x[:0], i[:0])


class Pooled(torch.nn.Module):
    """A map of any size, and its means."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x):
        y = self.conv(x).relu()
        return y, y.mean((2, 3))


SIZES = [(1, 3, 8, 6), (1, 3, 4, 10), (3, 3, 4, 4)]


@pytest.mark.parametrize(
    ("batch", "calls", "others"),
    [
        (None, SIZES, [(2, 3, 8, 6), (1, 3, 4, 4), (1, 3, 8, 10)]),
        ([1, 2], [(n, *size[1:]) for n in (1, 2, 5) for size in SIZES], [(0, 3, 8, 6), (2, 3, 6, 8)]),
    ],
)
def test_sizes(registered, tmp_path, batch, calls, others):
    """Three sizes, and batches of each: what there is is computed, whatever else is a sentence."""
    x = np.zeros(SIZES[0], np.float32)
    model, out = exported.made(Pooled().eval(), [x], tmp_path, shapes={"x": SIZES}, batch=batch)
    made, rng = opened(ort.export(out.with_name("model.sparse"), tmp_path / "fast.onnx")), np.random.default_rng(0)
    assert made.get_inputs()[0].shape == ["batch" if batch else "x_0", 3, "x_2", "x_3"]
    assert made.get_outputs()[1].shape == ["batch" if batch else "output1_0", 4]
    for shape in calls:
        x = rng.standard_normal(shape).astype(np.float32)
        for got, want in zip(run(made, x), model(x), strict=True):
            np.testing.assert_array_equal(got, want)
    for shape in others:
        with pytest.raises(Fail, match="input x: has another shape or element type than the model was compiled for"):
            run(made, np.zeros(shape, np.float32))


def test_plans_that_do_not_belong_together(registered, lookup, tmp_path):
    """As where files of two exports were mixed, or there are more of them than are ever made."""
    for path in lookup[1].parent.glob("lookup-*"):
        shutil.copy(path, tmp_path)
    module, shapes = zoo.TORCH["relu"]
    _, out = exported.made(module, zoo.inputs_of(shapes), tmp_path)
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    made = onnx.load(lookup[1])
    (context,) = (each for each in made.graph.node[0].attribute if each.name == "ep_cache_context")
    for plans, sentence in (
        (["lookup-batch1.plan", "model.plan"], "its plans are of several models"),
        (["model.plan"] * 65, "more than 64 plans"),
    ):
        context.s = "\n".join(plans).encode()
        onnx.save(made, tmp_path / "mixed.onnx")
        with pytest.raises(Fail, match=sentence):
            opened(tmp_path / "mixed.onnx")


def test_the_command(lookup, capsys, tmp_path):
    words = ["export", str(lookup[1].with_name("model.sparse")), "-o", str(tmp_path / "fast.onnx")]
    assert main.main([*words, "--json"]) == 0
    pairs = {f"fast-batch{batch}.{end}" for batch in (1, 3) for end in ("plan", "so")}
    assert set(json.loads(capsys.readouterr().out)["files"]) == {"fast.onnx", provider.FILE} | pairs
    assert main.main(words) == 0
    assert "tvm_sparse.ort.register()" in capsys.readouterr().out


def test_many_threads(registered, lookup):
    model, path = lookup
    made, wrong = opened(path), []

    def call(number):
        x, i = np.full((4, 3, 8), number, np.float32), np.full((4, 4), number % 8)
        want = outputs_of(model, (x, i))
        for _ in range(50):
            if not all(map(np.array_equal, run(made, x, i), want)):
                wrong.append(number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert not wrong


@pytest.mark.exhaustive
def test_a_provider_that_was_built_before_needs_no_tvm(lookup):
    code = "import sys, tvm_sparse.ort as ort; ort.register(sys.argv[1]); ort.session_options(); "
    code += "assert 'tvm' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, lookup[1].with_name(provider.FILE)], check=True, timeout=120)


def test_a_model_in_memory_says_where_its_files_are(registered, lookup):
    model, path = lookup
    options = ort.session_options()
    options.add_session_config_entry("ep.context_file_path", str(path))
    made = onnxruntime.InferenceSession(path.read_bytes(), options)
    x, i = np.ones((1, 3, 8), np.float32), np.full((1, 4), 5)
    np.testing.assert_array_equal(run(made, x, i)[0], outputs_of(model, (x, i))[0])


def test_a_model_without_its_files(registered, lookup, tmp_path):
    alone = shutil.copy(lookup[1], tmp_path)
    with pytest.raises(Fail, match=r"lookup-batch1\.plan: cannot be read \(No such file or directory\)"):
        opened(alone)
    with pytest.raises(Missing, match="EPContext"):
        onnxruntime.InferenceSession(str(lookup[1]), providers=["CPUExecutionProvider"])


def test_what_cannot_be(lookup, monkeypatch, tmp_path):
    artifact = lookup[1].with_name("model.sparse")
    with pytest.raises(UsageError, match="takes no options, found batch"):
        ort.export(artifact, tmp_path / "x.onnx", batch=3)
    for path in (lookup[1], tmp_path / "x.so"):
        with pytest.raises(UsageError, match=r"allowed: another file than the model, ending in \.onnx"):
            ort.export(lookup[1], path)
    (tmp_path / "model.onnx").write_bytes(b"another model")
    with pytest.raises(UsageError, match=r"model\.onnx: exists and is no model that tvm-sparse export wrote"):
        ort.export(artifact, tmp_path / "model.onnx")
    monkeypatch.setattr(session, "_devices", lambda _: [])
    (tmp_path / "none.so").write_text("text")
    with pytest.raises(BuildError, match=r"none\.so: cannot be loaded"):
        ort.register(tmp_path / "none.so")
    monkeypatch.delattr(onnxruntime, "register_execution_provider_library")
    with pytest.raises(UsageError, match=r"takes no providers, found .*; allowed: 1\.23 or newer"):
        ort.register()


def test_a_compiler_that_fails(monkeypatch):
    monkeypatch.setenv("CC", "false")
    with pytest.raises(BuildError, match=r"cannot be built \(false fails\)"):
        provider.library()
    monkeypatch.setenv("CC", "/no/such/compiler")
    with pytest.raises(BuildError, match="No such file or directory"):
        provider.library()
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BuildError, match="without a C compiler"):
        provider.library()


@pytest.mark.exhaustive
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_the_provider_under_sanitizers(sanitizer, tmp_path):
    """Sixteen threads, batches that are padded and cut, and plans that are missing, beside a made ONNX Runtime."""
    module, shapes = zoo.TORCH["relu"]
    _, out = exported.made(module, zoo.inputs_of(shapes), tmp_path, batch=[1, 3])
    source, sources = Path(exported.__file__).with_name("fake_ort.c"), Path(provider.__file__).parent
    flags = (f"-fsanitize={sanitizer}", "-g", "-fno-sanitize-recover=all", '-DTVM_SPARSE_VERSION="1"', f"-I{sources}")
    program = exported.build(out, tmp_path / "fake", *flags, sources=[source, *sources.glob("*.c")])

    def run(plans):
        words = [program, out / "any.onnx", plans, "1", "2", "3", "5", "7"]
        return subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)

    assert run("batches\nmodel-batch1.plan\nmodel-batch3.plan").stdout == "0\n"
    for plans, sentence in (("model-batch1.plan\nnone.plan", "none.plan: cannot be read"), ("", "says no plan")):
        done = run(plans)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert sentence in done.stderr


# The first that has providers of this kind.
OLDEST = "1.23.2"
PROGRAM = """
import sys
import numpy, onnxruntime
assert onnxruntime.__version__ == sys.argv[1]
onnxruntime.register_execution_provider_library("tvm_sparse", sys.argv[3] + "/libtvm_sparse_ort.so")
options = onnxruntime.SessionOptions()
devices = [each for each in onnxruntime.get_ep_devices() if each.ep_name == "tvm_sparse"]
options.add_provider_for_devices(devices[:1], {"threads": "2"})
session = onnxruntime.InferenceSession(sys.argv[2], options)
assert session.get_providers()[0] == "tvm_sparse" and "tvm_sparse" not in sys.modules
x, i = numpy.ones((4, 3, 8), numpy.float32), numpy.full((4, 4), 5)
numpy.savez(sys.argv[3] + "/y.npz", *session.run(None, dict(zip((each.name for each in session.get_inputs()), (x, i)))))
"""


@pytest.mark.exhaustive
def test_the_oldest_onnx_runtime_without_this_package(lookup, tmp_path):
    model, path = lookup
    place = tmp_path / "site"
    words = ["install", "-q", "--no-deps", "--target", place, f"onnxruntime=={OLDEST}"]
    if subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, check=False).returncode:
        pytest.skip(f"pip cannot install onnxruntime {OLDEST}")
    environment = {**os.environ, "PYTHONPATH": str(place)}
    words = [sys.executable, "-c", PROGRAM, OLDEST, path, path.parent]
    subprocess.run(words, env=environment, cwd=tmp_path, check=True, timeout=120)
    want = outputs_of(model, (np.ones((4, 3, 8), np.float32), np.full((4, 4), 5)))
    with np.load(path.parent / "y.npz") as found:
        for got, expected in zip(found.values(), want, strict=True):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["two_inputs", "between", "residual", "depthwise", "classifier", "stride2"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_networks(registered, name, dtype, tmp_path):
    module, shapes = zoo.TORCH[name]
    inputs = zoo.inputs_of(shapes)
    model, out = exported.made(module, inputs, tmp_path, dtype=dtype)
    made = opened(ort.export(out.with_name("model.sparse"), tmp_path / "fast.onnx"))
    arrays = [each.astype(dtype) for each in inputs]
    for got, want in zip(run(made, *arrays), outputs_of(model, arrays), strict=True):
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, want)
