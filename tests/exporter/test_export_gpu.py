"""Models for a GPU, exported, compute in C what torch does, on a driver and a cuDNN of the host."""

import json
import sys
from functools import partial
from pathlib import Path
from random import Random

import exported
import numpy as np
import pytest
import torch
from exported_for_gpu import SESSION, SUPPORT, Branches, Network, fakes, made, run
from torch import nn

from tvm_sparse import ort
from tvm_sparse.cli import main
from tvm_sparse.exporter import gpu
from tvm_sparse.exporter.bytecode import CudaModule, Kernel, Program, Register, UnknownBytecode
from tvm_sparse.exporter.export import export
from tvm_sparse.exporter.gpu import gpu_part

X = np.random.default_rng(0).standard_normal((1, 8, 8, 8)).astype(np.float32)
FIRST = "captured: a first call, and a model that checks indices, cannot go into a CUDA graph"


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    return fakes(tmp_path_factory.mktemp("fakes"))


@pytest.fixture(scope="module")
def network(libraries, tmp_path_factory):
    with pytest.MonkeyPatch.context() as monkeypatch:
        return made(monkeypatch, libraries, Network().eval(), (X,), tmp_path_factory.mktemp("network"))


@pytest.fixture(scope="module")
def programs(network, libraries, tmp_path_factory):
    """``main.c``, and the program that calls in all ways."""
    folder, sources = tmp_path_factory.mktemp("programs"), [SUPPORT / "export_gpu.c", libraries / "libcuda.so.1"]
    X.tofile(folder / "x.raw")
    calls = exported.build(network[1], folder / "calls", sources=sources)
    return exported.build(network[1], folder / "main"), calls, folder / "x.raw"


def log_of(path):
    return {name: int(count) for name, count in (line.split() for line in path.read_text().splitlines())}


def test_all_ways_to_call_compute_what_torch_does(network, programs, libraries, tmp_path):
    model, out, kernels = network
    assert model.libraries and any("cudnn" in row["schedule"] for row in model.report())
    arguments = [out / "model.plan", programs[2]]
    code, output, said = run(programs[1], libraries, arguments, kernels, FAKE_CUDA_LOG=str(tmp_path / "log"))
    assert (code, said) == (0, [FIRST])
    with torch.no_grad():
        want = np.concatenate([each.numpy().ravel() for each in Network().eval()(torch.from_numpy(X))])
    np.testing.assert_allclose(np.frombuffer(output, np.float32), want, rtol=1e-4, atol=1e-5)
    log = log_of(tmp_path / "log")
    assert log["alive"] == 0 and log["cuCtxPushCurrent_v2"] == log["cuCtxPopCurrent_v2"]
    # Of the context's own inputs and four of the caller's, and those of the program itself.
    assert log["cuGraphInstantiateWithFlags"] == 5 + 3


@pytest.fixture(scope="module")
def lookup(libraries, tmp_path_factory):
    """Plan, kernels, files of inputs, and what they hold, of a model that takes places from its second input."""
    folder = tmp_path_factory.mktemp("lookup")
    x, i = np.random.default_rng(0).standard_normal((1, 3, 8)).astype(np.float32), np.full((1, 4), 5)
    with pytest.MonkeyPatch.context() as monkeypatch:
        _, out, kernels = made(monkeypatch, libraries, exported.Lookup().eval(), (x, i), folder)
    x.tofile(folder / "x.raw")
    i.tofile(folder / "i.raw")
    return out / "model.plan", kernels, [folder / "x.raw", folder / "i.raw"], (x, i)


@pytest.mark.conformance
def test_indices_are_checked(libraries, programs, lookup, tmp_path):
    plan, kernels, files, (x, i) = lookup
    code, output, said = run(programs[1], libraries, [plan, *files], kernels)
    assert (code, said) == (0, 3 * [FIRST])
    taken = x[:, :, i[0]]
    want = np.concatenate([taken.ravel(), taken.sum((1, 2))])
    np.testing.assert_allclose(np.frombuffer(output, np.float32), want, rtol=1e-5)
    (i + 4).tofile(tmp_path / "wrong.raw")
    code, _, said = run(programs[0], libraries, [plan, files[0], tmp_path / "wrong.raw"], kernels)
    assert code == 1 and "an index is out of range, found 9; allowed: 0 to 7" in said[0]


@pytest.mark.parametrize(
    "variables, sentence",
    [
        ({"FAKE_CUDA_NONE": "1"}, "GPU: cuInit failed (CUDA_ERROR_NO_DEVICE); see what nvidia-smi says"),
        ({"FAKE_CUDA_SM": "80"}, "does not fit this machine: it was built for sm_90a, and this GPU is sm_80; compile"),
        ({"FAKE_CUDA_SM": "9"}, "it was built for sm_90a, and this GPU is sm_09"),
        (
            {"FAKE_CUDA_FAIL": "cuMemAlloc_v2"},
            "GPU: it is out of memory (cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY); free",
        ),
        ({"FAKE_CUDA_FAIL": "cuModuleLoadData"}, "GPU: it is out of memory (cuModuleLoadData"),
        ({"FAKE_CUDA_FAIL": "cuMemHostAlloc"}, "GPU: it is out of memory (cuMemHostAlloc"),
        ({"FAKE_CUDA_FAIL": "cuLaunchKernelEx"}, "failed: launch: GPU: it is out of memory (cuLaunchKernelEx"),
        ({"FAKE_CUDA_FAIL": "cuMemcpyDtoHAsync_v2"}, "GPU: it is out of memory (cuMemcpyDtoHAsync_v2"),
    ],
)
def test_failures(network, programs, libraries, tmp_path, variables, sentence):
    arguments = [network[1] / "model.plan", programs[2]]
    code, output, said = run(
        programs[0], libraries, arguments, network[2], FAKE_CUDA_LOG=str(tmp_path / "log"), **variables
    )
    assert (code, output, len(said)) == (1, b"", 1) and sentence in said[0]


@pytest.fixture(scope="module")
def branches(libraries, tmp_path_factory):
    """Plan and kernels of a model whose branches run side by side."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        _, out, kernels = made(monkeypatch, libraries, Branches().eval(), (X,), tmp_path_factory.mktemp("branches"))
    return out / "model.plan", kernels


def test_branches_run_side_by_side(branches, programs, libraries, tmp_path):
    """Kernels wait for those whose results they take; of what may come next the fake runs what was recorded last."""
    variables = {"OVERWRITE": "1", "FAKE_CUDA_LOG": str(tmp_path / "log")}
    code, output, said = run(programs[1], libraries, [branches[0], programs[2]], branches[1], **variables)
    assert (code, said) == (0, [FIRST])
    want = np.concatenate([each.numpy().ravel() for each in Branches()(torch.from_numpy(X))])
    np.testing.assert_array_equal(np.frombuffer(output, np.float32), want)
    log = log_of(tmp_path / "log")
    # Of five graphs; kernels that follow the one before them wait for nothing else.
    assert log["alive"] == 0 and log["cuStreamUpdateCaptureDependencies_v2"] >= 5 * 13


@pytest.mark.parametrize(
    "function",
    ["cuStreamEndCapture", "cuStreamGetCaptureInfo_v3", "cuStreamUpdateCaptureDependencies_v2"],
)
def test_graphs_that_cannot_be_recorded_are_done_without(network, branches, programs, libraries, function):
    for plan, kernels in ((network[1] / "model.plan", network[2]), branches):
        arguments = [plan, programs[2]]
        first, second = (
            run(programs[1], libraries, arguments, kernels, **each) for each in ({}, {"FAKE_CUDA_FAIL": function})
        )
        assert first == second


@pytest.mark.conformance
def test_onnx_runtime(network, programs, libraries, monkeypatch, tmp_path):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(gpu, "_LOADED", {"cuda"})
    ort.export(network[1].with_name("model.sparse"), tmp_path / "fast.onnx")
    code, output, said = run(sys.executable, libraries, ["-c", SESSION, tmp_path, programs[2]], network[2])
    assert code == 0, said
    assert output == run(programs[0], libraries, [network[1] / "model.plan", programs[2]], network[2])[1]


@pytest.mark.conformance
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers(network, branches, libraries, tmp_path, sanitizer):
    """Also where a function of the driver fails; of 16 threads each has a context, every other a model of its own."""
    flags = (f"-fsanitize={sanitizer}", "-g", "-fno-sanitize-recover=all")
    X.tofile(tmp_path / "x.raw")
    calls = [SUPPORT / "export_gpu.c", libraries / "libcuda.so.1"]
    program = exported.build(network[1], tmp_path / "calls", *flags, sources=calls)
    arguments = [network[1] / "model.plan", tmp_path / "x.raw"]
    for plan in (arguments[0], branches[0]):
        assert run(program, libraries, [plan, arguments[1]])[0] == 0
    for name in ("cuCtxPushCurrent_v2", "cuMemAlloc_v2", "cuMemHostAlloc", "cuStreamCreate", "cuLaunchKernelEx"):
        code, output, said = run(program, libraries, arguments, FAKE_CUDA_FAIL=name)
        assert (code, output) == (1, b"") and name in said[-1]
    threads = exported.build(network[1], tmp_path / "threads", *flags, sources=[SUPPORT / "export_threads.c"])
    # The cuDNN for tests is for one thread.
    assert run(threads, libraries, [branches[0], "100", "1", arguments[1]]) == (0, b"0\n", [])


@pytest.mark.conformance
def test_mutated_plans_end_in_a_sentence(network, lookup, branches, libraries, tmp_path):
    """Or are loaded, without an access outside of them."""
    (tmp_path / "load.c").write_text(exported.LOAD)
    flags = ("-fsanitize=address,undefined", "-g", "-fno-sanitize-recover=all")
    program, draw = exported.build(network[1], tmp_path / "load", *flags, sources=[tmp_path / "load.c"]), Random(0)
    folders = 100 * [network[1], lookup[0].parent, branches[0].parent]
    change = partial(exported.mutated, draw=draw)
    plans = [exported.changed(folder, tmp_path / str(number), change) for number, folder in enumerate(folders)]
    assert run(program, libraries, plans, ASAN_OPTIONS="allocator_may_return_null=1") == (0, b"", [])


def test_a_kernel_with_many_arguments(network, programs, libraries, monkeypatch, tmp_path):
    """The plan is read; the code that calls the kernel has fewer."""
    monkeypatch.setattr(gpu, "_LOADED", {"cuda"})
    monkeypatch.setattr(gpu, "_launched", lambda kernel, module: (kernel.name, module, 1024 * "i", 12 * "0"))
    out = export(network[1].with_name("model.sparse"), tmp_path / "out")
    code, _, said = run(programs[0], libraries, [out / "model.plan", programs[2]], network[2])
    assert code == 1 and said[0].endswith("failed: launch: a kernel has too few arguments")


@pytest.mark.parametrize("name", ["libcuda.so.1", "libcudnn.so.9"])
def test_a_library_that_is_missing(network, programs, libraries, tmp_path, name):
    for each in ("libcuda.so.1", "libcudnn.so.9"):
        (tmp_path / each).symlink_to(libraries / (each if each != name else "none"))
    code, output, said = run(programs[0], tmp_path, [network[1] / "model.plan"])
    assert (code, output, len(said)) == (1, b"", 1) and said[0].startswith(f"{name}: cannot be loaded")


@pytest.mark.parametrize(
    "format, arguments, launch, code, sentence",
    [
        ("cuda", (), (), b"", "its kernels are CUDA source, as without a GPU"),
        ("cubin", ((4, 16),), (), b"", "kernel k is launched with 4:16"),
        ("cubin", 1025 * ((0, 32),), (), b"", "kernel k is launched with 1025 arguments"),
        ("cubin", (), ("warpIdx.x",), b"", "kernel k is launched with warpIdx.x"),
        ("cubin", (), (), b"\0__tvm_func_handle_init.tvm.contrib.sort\0", "its code calls tvm.contrib.sort"),
    ],
)
def test_code_that_cannot_be_launched_without_tvm(format, arguments, launch, code, sentence):
    module = CudaModule(format, (Kernel("k", arguments, launch),), 0, 0)
    with pytest.raises(UnknownBytecode, match=sentence):
        gpu_part(Program(0, (), Register(0), (module,)), "sm_90", code)


@pytest.mark.conformance
def test_a_model_is_compiled_again_without_cudnn(libraries, monkeypatch, tmp_path, capsys):
    """From its file; of one that was compiled from a module there is none."""
    monkeypatch.chdir(tmp_path)
    torch.onnx.export(nn.Conv2d(8, 8, 3).eval(), torch.from_numpy(X), "model.onnx", dynamo=False)
    made(monkeypatch, libraries, Path("model.onnx"), None, tmp_path)
    assert main.main(["export", "model.sparse", "-o", "without", "--without-cudnn", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["loads"] == ["libcuda.so.1"] and set(found["verdicts"]) == {"with cuDNN", "without"}
    assert main.main(["export", "model.sparse", "-o", "with"]) == 0
    assert "libraries load: libcuda.so.1, libcudnn.so.9\n" in capsys.readouterr().out
    Path("model.onnx").unlink()
    assert main.main(["export", "model.sparse", "-o", "again", "--without-cudnn"]) == 3
    assert "cannot be compiled without cuDNN" in capsys.readouterr().err
