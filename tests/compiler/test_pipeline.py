"""What the compiler writes of its phases, on a CPU and for a GPU, and that it is the same without."""

import json

import pytest
import torch
from torch import nn

from tvm_sparse.compiler import build_model, build_plan, pipeline
from tvm_sparse.compiler.dump import FOLDER
from tvm_sparse.errors import UsageError
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.target.resolve import resolve_target

TARGETS = {"cpu": {"kind": "llvm", "opt-level": 0, "num-cores": 1}, "cuda": {"kind": "cuda", "arch": "sm_90"}}


@pytest.fixture
def model():
    """Of a sparse layer, whose kernel is predicted, and a dense one."""
    torch.manual_seed(0)
    layers = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3)
    layers[0].weight.data *= torch.rand(layers[0].weight.shape) < 0.05
    return nn.Sequential(*layers).eval()


@pytest.mark.parametrize("kind", TARGETS)
def test_phases_are_written_in_their_order(kind, model, tmp_path, monkeypatch):
    target, x = resolve_target(TARGETS[kind]), torch.zeros(1, 16, 14, 14)
    prepared = prepare(model, x)
    expected = pipeline.decide_together(prepared, target, None, predict=True)
    monkeypatch.setenv(FOLDER, str(tmp_path / "new" / "phases"))
    decisions = pipeline.decide_together(prepared, target, None, predict=True)
    assert decisions == expected
    if kind == "cpu":
        build_model.build(prepared, decisions, target)
    files = sorted((tmp_path / "new" / "phases").iterdir())
    plans = ["select", "nhwc", "bottlenecks", "pools", "blocks", "expansions", "blocks"]
    modules = ["kernels", "products", "layouts", "turns"] if kind == "cpu" else []
    names = ["prepare.py", *(f"{each}.json" for each in plans), *(f"{each}.py" for each in modules)]
    assert [each.name for each in files] == [f"{number:03}-{name}" for number, name in enumerate(names)]
    assert "R.nn.conv2d" in files[0].read_text()
    first, second = json.loads(files[len(plans)].read_text())
    assert (first["layer"], first["choice"], first["is_verified"]) == ("0", "predicted", False)
    assert first["schedule"] == expected[0].schedule and first["reason"] == str(expected[0].reason)
    assert (second["choice"], second["decisions"]) == ("predicted" if kind == "cpu" else "default", None)
    if modules:
        assert all(("R.call_tir" in each.read_text()) for each in files[-4:])


def test_nothing_is_written_where_nobody_asks(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(FOLDER, raising=False)
    build_model.compile(model, torch.zeros(1, 16, 14, 14), target=TARGETS["cpu"], compare=False)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_is_a_mistake(model, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(FOLDER, str(tmp_path / "file"))
    with pytest.raises(UsageError, match=rf"^environment variable {FOLDER}: cannot be written to: .*, found .*file"):
        build_model.compile(model, torch.zeros(1, 16, 14, 14), target=TARGETS["cpu"], compare=False)


def test_what_is_wrong_is_planned_again(model, tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    wrong = iter([{"0": "it is wrong"}, {}])
    monkeypatch.setattr(build_plan, "verify", lambda *_: next(wrong))
    ours = build_model.compile(model, torch.zeros(1, 16, 14, 14), target=TARGETS["cpu"], compare=False)
    (written,) = tmp_path.glob("*-dense_for_wrong.json")
    assert [each["reason"] for each in json.loads(written.read_text())] == [each["reason"] for each in ours.report()]
    assert ours.report()[0]["reason"].startswith("dense, because it is wrong")
    assert len(list(tmp_path.glob("*-kernels.py"))) == 2
