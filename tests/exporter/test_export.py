"""An exported model, run in C, computes what it does in Python to the bit, and what cannot be exported is refused."""

import ctypes
import json
import multiprocessing
import shutil
import subprocess

import exported
import numpy as np
import pytest
import torch
import zoo
from exported import Tensor, addresses, changed, empty_outputs, outputs_of
from torch import nn

import tvm_sparse
from tvm_sparse.cli import main
from tvm_sparse.compiler import build_model, build_plan
from tvm_sparse.errors import ArtifactError
from tvm_sparse.exporter.dynamic_section import Needs
from tvm_sparse.runtime.artifacts.manifest import digest

NAMES = ("two_inputs", "classifier")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Name -> compiled model, folder, inputs."""
    place = tmp_path_factory.mktemp("exported")
    return {name: exported.of_zoo(name, place) for name in NAMES}


@pytest.fixture(scope="module")
def program(models, tmp_path_factory):
    return exported.build(models["classifier"][1], tmp_path_factory.mktemp("program") / "main")


@pytest.fixture(scope="module")
def c(models, tmp_path_factory):
    """The C library."""
    return exported.shared(models["classifier"][1], tmp_path_factory.mktemp("library") / "run.so")


@pytest.fixture
def load(c):
    """What `tvm_sparse_load` gives."""
    handles = []

    def load(plan):
        handles.append(c.load(bytes(plan)))
        assert handles[-1], c.error()
        return handles[-1]

    yield load
    for each in handles:
        c.free(each)


@pytest.mark.parametrize("name", NAMES)
def test_the_program_computes_what_python_does(models, program, name, tmp_path):
    model, folder, inputs = models[name]
    files = [tmp_path / f"{index}.raw" for index in range(len(inputs))]
    for path, value in zip(files, inputs, strict=True):
        value.tofile(path)
    done = subprocess.run([program, folder / "model.plan", *files], stdout=subprocess.PIPE, check=True, timeout=60)
    assert done.stdout == b"".join(each.tobytes() for each in outputs_of(model, inputs))


def test_files_that_are_no_inputs(models, program, tmp_path):
    """Shorter, longer, missing, or more than there are inputs."""
    _, folder, (x,) = models["classifier"]
    plan, size = folder / "model.plan", x.nbytes
    for name, content in (("short", x.tobytes()[:-1]), ("long", x.tobytes() + b"0"), ("whole", x.tobytes())):
        (tmp_path / name).write_bytes(content)
    for names, sentence in {
        ("short",): f"{tmp_path}/short: cannot be read, or is not of {size} bytes\n",
        ("long",): f"{tmp_path}/long: cannot be read, or is not of {size} bytes\n",
        ("none",): f"{tmp_path}/none: cannot be read, or is not of {size} bytes\n",
        ("whole", "whole"): "2 inputs; allowed: 1\n",
    }.items():
        files = [tmp_path / each for each in names]
        done = subprocess.run([program, plan, *files], capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (1, "", sentence)


def test_a_model_that_ran_in_memory_before_it_was_saved(program, monkeypatch, tmp_path):
    """TVM's virtual machine then lists its constants in the library."""
    monkeypatch.setattr(build_plan, "loadable", lambda _: None)
    monkeypatch.setattr(build_plan.LibraryCache, "of_user", lambda _: None)
    x = np.random.default_rng(0).standard_normal((1, 4, 6, 6)).astype(np.float32)
    model = build_model.compile(nn.Conv2d(4, 8, 3).eval(), (torch.from_numpy(x),), target=exported.TARGET)
    want = model(x)
    out = tvm_sparse.export(model.save(tmp_path / "model.sparse"), tmp_path / "out")
    x.tofile(tmp_path / "x.raw")
    done = subprocess.run([program, out / "model.plan", tmp_path / "x.raw"], stdout=subprocess.PIPE, check=True)
    assert done.stdout == want.tobytes()


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_any_number_of_threads_and_any_address(models, c, load, name, threads):
    model, folder, inputs = models[name]
    context = c.context_new(load(folder / "model.plan"), threads)
    assert c.context_threads(context) == threads
    assert c.result(context, 0) is None
    for shift in range(3):
        moved = [np.empty(each.size + shift, each.dtype)[shift:].reshape(each.shape) for each in inputs]
        for target, value in zip(moved, inputs, strict=True):
            target[...] = value + shift
        outputs, want = empty_outputs(model), outputs_of(model, moved)
        for _ in range(20):
            assert c.run(context, addresses(moved), addresses(outputs)) == 0, c.error()
        for index, (got, expected) in enumerate(zip(outputs, want, strict=True)):
            np.testing.assert_array_equal(got, expected)
            assert ctypes.string_at(c.result(context, index), got.nbytes) == expected.tobytes()
    assert c.result(context, len(want)) is None
    c.context_free(context)


@pytest.mark.parametrize("name", NAMES)
def test_inputs_and_outputs_are_told(models, c, load, name):
    signature, model = models[name][0].signature, load(models[name][1] / "model.plan")
    for specs, count, tensor in (
        (signature.inputs, c.input_count, c.input),
        (signature.outputs, c.output_count, c.output),
    ):
        assert count(model) == len(specs)
        for index, spec in enumerate(specs):
            found = Tensor.from_address(tensor(model, index))
            assert found.described() == (spec.name, spec.shape, spec.dtype)
            assert found.size_bytes == spec.size_bytes
        assert tensor(model, len(specs)) is None
        assert tensor(model, -1) is None


def test_wrong_calls_are_sentences(models, c, load):
    compiled, folder, inputs = models["two_inputs"]
    model = load(folder / "model.plan")
    assert c.context_new(model, -1) is None
    assert c.error() == b"threads: found -1; allowed: 0 to 1024"
    context = c.context_new(model, 0)
    assert 1 <= c.context_threads(context) <= exported.TARGET["num-cores"]
    second = (ctypes.c_void_p * 2)(inputs[0].ctypes.data, None)
    assert c.run(context, second, None) == -1
    assert c.error().decode() == f"input {compiled.signature.inputs[1].name}: its address is NULL"
    c.context_free(context)
    c.context_free(None)
    c.free(None)


def test_a_context_of_a_parent_process(models, c, load):
    """Its threads are not in the child; a context of the child's own has some."""
    compiled, folder, inputs = models["classifier"]
    model, want = load(folder / "model.plan"), outputs_of(compiled, inputs)
    context = c.context_new(model, 2)

    def child():
        assert c.run(context, addresses(inputs), None) == -1
        assert b"parent process" in c.error()
        c.context_free(context)
        own, outputs = c.context_new(model, 2), empty_outputs(compiled)
        assert c.run(own, addresses(inputs), addresses(outputs)) == 0
        np.testing.assert_array_equal(outputs[0], want[0])

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    assert process.exitcode == 0
    c.context_free(context)


def test_several_batches_and_indices_out_of_range(c, load, tmp_path):
    """Each batch has a plan; what an input says of places is checked as in Python."""
    x, i = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32), np.full((2, 4), 5)
    compiled, folder = exported.made(exported.Lookup().eval(), (x, i), tmp_path, batch=[1, 2])
    for batch, model in zip(compiled.batches, compiled.models.values(), strict=True):
        context = c.context_new(load(folder / f"model-batch{batch}.plan"), 1)
        inputs, outputs = [x[:batch], i[:batch]], empty_outputs(model)
        assert c.run(context, addresses(inputs), addresses(outputs)) == 0, c.error()
        for got, want in zip(outputs, outputs_of(model, inputs), strict=True):
            np.testing.assert_array_equal(got, want)
        assert c.run(context, addresses([x[:batch], i[:batch] + 4]), addresses(outputs)) == -1
        assert b"an index is out of range, found 9; allowed: 0 to 7" in c.error()
        assert c.result(context, 0) is None
        c.context_free(context)


def test_a_kernel_that_fails(models, program, tmp_path):
    """Its own words arrive, which it says by a function that it finds by name."""
    folder = models["classifier"][1]

    def with_wrong_type(plan):
        # Of all tensors with one dimension, which are the biases.
        float32, integer32 = bytes([2, 32, 1, 0, 1, 0, 0, 0]), bytes([0, 32, 1, 0, 1, 0, 0, 0])
        assert float32 in plan
        return exported.signed(plan.replace(float32, integer32))

    plan = changed(folder, tmp_path / "wrong", with_wrong_type)
    done = subprocess.run([program, plan], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("kernel tvm_sparse_0_0 failed: ")
    assert "float32" in done.stderr


def test_the_command(models, capsys, tmp_path):
    source, out = models["two_inputs"][1].with_name("model.sparse"), tmp_path / "out"
    assert main.main(["export", str(source), "-o", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["folder"] == str(out)
    assert {"model.plan", "model.so", "main.c", "CMakeLists.txt", "LICENSE", "NOTICE"} <= set(found["files"])
    assert found["loads"] == ["libc.so.6"]
    others = sum(size for name, size in found["files"].items() if not name.endswith(".so"))
    assert others < 110_000
    assert main.main(["export", str(source), "-o", str(out)]) == 3
    assert "exists and is no empty directory" in capsys.readouterr().err
    shutil.rmtree(out)
    assert main.main(["export", str(source), "-o", str(out)]) == 0
    said = capsys.readouterr().out
    assert "next: cmake" in said and "libraries load: libc.so.6\n" in said


NO_INPUTS = {"variants": [{"signature": {"inputs": [], "outputs": [], "single": False}}]}


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"target": {"kind": "metal"}}, "cannot be exported, found metal; allowed: a model for a CPU or an NVIDIA GPU"),
        ({"libraries": {"cublas": "13"}}, "calls a library that this tvm-sparse does not know, found cublas"),
        ({"target": {"kind": "no such"}}, "is damaged (target is not usable"),
        (NO_INPUTS, "it takes 2 inputs, and the manifest lists 0"),
        ({"variants": [{"name": "a"}, {"name": "b"}]}, "two of its variants take inputs of the same shapes"),
        ({"variants": [{"signature": {}}]}, "is damaged (signature is not usable"),
    ],
)
def test_what_cannot_be_exported(models, tmp_path, changes, sentence):
    copy = shutil.copytree(models["two_inputs"][1].with_name("model.sparse"), tmp_path / "model.sparse")
    path = copy / "manifest.json"
    manifest = json.loads(path.read_text())
    (variant,) = manifest["variants"]
    manifest |= {**changes, "variants": [variant | each for each in changes.get("variants", [{}])]}
    path.write_text(json.dumps({**manifest, "digest": digest(manifest)}))
    with pytest.raises(ArtifactError) as caught:
        tvm_sparse.export(copy, tmp_path / "out")
    assert sentence in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_library_that_loads_others_is_not_exported(models, tmp_path, monkeypatch):
    monkeypatch.setattr(Needs, "problem", "loads RUNPATH /tmp")
    with pytest.raises(ArtifactError, match=r"cannot be exported, its library loads RUNPATH /tmp; compile"):
        tvm_sparse.export(models["two_inputs"][1].with_name("model.sparse"), tmp_path / "out")


def test_code_that_calls_tvm_is_refused(tmp_path):
    """As what LLVM does not optimise does: nobody knows that it does not."""
    module, shapes = zoo.TORCH["two_inputs"]
    model = tvm_sparse.compile(module, tuple(map(exported.torch.zeros, shapes)), target=zoo.UNOPTIMISED)
    with pytest.raises(
        ArtifactError, match=r"cannot run without TVM: its code calls functions of TVM \(.*TVMFFIFunctionCall"
    ):
        tvm_sparse.export(tvm_sparse.save(model, tmp_path / "model.sparse"), tmp_path / "out")
