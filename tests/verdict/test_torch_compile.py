"""torch.compile beside a model of ours: what it is given, what it computes, and what a verdict says of it."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tvm.target import Target

from tvm_sparse.compiler.build_model import Compilation
from tvm_sparse.compiler.comparison.compare import Source
from tvm_sparse.errors import BuildError
from tvm_sparse.frontend.optional_imports import with_torch, without_torch
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.runtime.model_file import ModelFile
from tvm_sparse.target.resolve import resolve_target
from tvm_sparse.verdict import measured as module
from tvm_sparse.verdict import torch_compile
from tvm_sparse.verdict.measured import Built, Times, measured
from tvm_sparse.verdict.turns import Contender

CPU = resolve_target({"kind": "llvm", "opt-level": 0, "num-cores": 1})
CUDA = resolve_target("cuda")
X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 1)).eval()


@pytest.fixture(scope="module")
def path(net, tmp_path_factory):
    found = tmp_path_factory.mktemp("net") / "net.pt2"
    torch.export.save(torch.export.export(net, (X,)), found)
    return found


def test_who_is_served(path):
    """What is torch's, on a GPU, where torch may be imported."""
    served = torch_compile.serves
    assert served(path, CUDA) and served(torch.nn.ReLU(), CUDA)
    assert not served(path, CPU) and not served("m.onnx", CUDA)


def test_programs(net, path, tmp_path):
    """A file as it is; a module is traced, for another batch too; a program is written."""
    assert torch_compile.program_file(Source(path, None, None), tmp_path) == path
    for source in (Source(net, X, None), Source(net, X, None, 2), Source(torch.export.export(net, (X,)), None, None)):
        written = torch_compile.program_file(source, tmp_path)
        program = torch.export.load(written)
        torch.testing.assert_close(program.module()(X), net(X))


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_what_it_computes(net, path, monkeypatch, dtype):
    asked = []
    monkeypatch.setattr(torch, "compile", lambda module, mode: asked.append(mode) or module)
    inputs = X if dtype is None else X.bfloat16()
    arrays = [torch_compile.array_of(inputs)]
    call = torch_compile.open_program(path, arrays, dtype, "cpu")
    (found,) = [each.numpy() for each in call()]
    assert asked == ["reduce-overhead"] and found.dtype.name == (dtype or "float32")
    np.testing.assert_allclose(found.astype(np.float32), net(X).detach().numpy(), atol=1e-6 if dtype is None else 3e-2)


def test_what_it_cannot_run_is_one_sentence(path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BuildError, match=r"torch: it finds no GPU"):
        torch_compile.open_program(path, [X.numpy()], None, "cuda")
    monkeypatch.setattr(torch, "compile", lambda *_, **__: 1 / 0)
    with pytest.raises(BuildError, match=r"net\.pt2: torch\.compile cannot run it \(division by zero\)"):
        torch_compile.open_program(path, [X.numpy()], None, "cpu")


def test_torch_is_there_for_who_needs_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    with without_torch():
        with with_torch():
            assert any(each.find_spec("torch", None) for each in sys.meta_path)
        with pytest.raises(ModuleNotFoundError):
            import torch  # noqa: F401


def test_a_verdict_says_where_it_loses(monkeypatch):
    times_us = {module.OURS: (10.0,) * 3, module.DENSE: (30.0,) * 3, module.TORCH: (8.0,) * 3}
    cuda = Target({"kind": "cuda", "arch": "sm_90"})
    assert module._advice(times_us, cuda) == ["torch.compile is 1.25 times as fast: run the dense model with it"]
    assert module._advice({**times_us, module.TORCH: (11.0,) * 3}, cuda) == []
    for flags, expected in (({"amxbf16"}, [module.BY_AMX]), (set(), [])):
        monkeypatch.setattr(module, "cpu_flags", lambda flags=flags: flags)
        assert module._advice({module.OURS: (1.0,)}, Target("llvm")) == expected
    verdict = Times(1, times_us).verdict(module.Verdict.unknown(2))
    assert verdict.dense_name.startswith("torch.compile 2.") and verdict.speedup == pytest.approx(0.8)


@pytest.mark.conformance
def test_it_is_timed_in_a_process_of_its_own(net, path, monkeypatch):
    """Here on the CPU: TF32 is allowed to differ, and ONNX Runtime does not read its files."""
    model = Compilation(prepare(path), CPU, None).build()
    file = ModelFile.of(path, None, False, ("float32",))
    assert list(module._rivals(model, file, None, path.parent)) == []
    on_gpu = SimpleNamespace(target=CUDA, signature=model.signature)
    (rival,) = module._rivals(on_gpu, file, Source(path, None, None), path.parent)
    contender = rival()
    assert contender == Contender(module.TORCH, "torch", path, {"dtype": None, "device": "cuda"})
    here = replace(contender, options={"dtype": None, "device": "cpu"})
    monkeypatch.setattr(module, "_rivals", lambda *_: iter([lambda: here]))
    times = measured(Built(model), None, file, rounds=3, limit_s=0.0)
    assert list(times.times_us) == [module.OURS, module.TORCH] and not [n for n in times.notes if "cannot" in n]
