"""A saved model runs in a fresh process without torch, and a damaged or foreign one is refused in one sentence."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
import zoo

from tvm_sparse import artifact, model
from tvm_sparse.errors import ArtifactError

(X,) = zoo.inputs_of([zoo.X])


@pytest.fixture(scope="module")
def compiled():
    module, shapes = zoo.TORCH["two_consumers"]
    return model.compile(module, torch.zeros(shapes[0]))


@pytest.fixture(scope="module")
def master(compiled, tmp_path_factory):
    return artifact.save(compiled, tmp_path_factory.mktemp("artifact") / "a" / "net")


@pytest.fixture
def saved(master, tmp_path):
    copy = tmp_path / "net"
    copy.mkdir()
    for path in master.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


def edit(directory, **changes):
    path = directory / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_round_trip(compiled, saved):
    loaded = artifact.load(saved)
    assert sorted(path.name for path in saved.iterdir()) == ["manifest.json", "model.so"]
    assert loaded.signature == compiled.signature
    assert loaded.report() == compiled.report()
    assert loaded.target.kind.name == "llvm"
    for got, want in zip(loaded(X), compiled(X), strict=True):
        np.testing.assert_array_equal(got, want)


def test_leaves_nothing_else_behind(master):
    assert [path.name for path in master.parent.iterdir()] == ["net"]


FRESH = """
import sys
for name in ("torch", "onnx"):
    sys.modules[name] = None
import numpy as np
from tvm_sparse import artifact
model = artifact.load(sys.argv[1])
outputs = model(np.load(sys.argv[2]))
np.savez(sys.argv[3], *outputs)
assert not {"tvm_sparse.model", "tvm_sparse.importer"} & set(sys.modules)
"""


def test_fresh_process_without_torch(compiled, saved, tmp_path):
    np.save(tmp_path / "x.npy", X)
    arguments = [str(saved), str(tmp_path / "x.npy"), str(tmp_path / "y.npz")]
    subprocess.run([sys.executable, "-c", FRESH, *arguments], check=True, timeout=120)
    with np.load(tmp_path / "y.npz") as outputs:
        for got, want in zip(outputs.values(), compiled(X), strict=True):
            np.testing.assert_array_equal(got, want)


def test_saving_again_replaces(compiled, saved):
    before = (saved / "model.so").stat().st_ino
    artifact.save(compiled, saved)
    assert (saved / "model.so").stat().st_ino != before
    artifact.load(saved)
    assert [path.name for path in saved.parent.iterdir()] == ["net"]


def test_other_directories_are_left_alone(compiled, tmp_path):
    (tmp_path / "precious.txt").write_text("text")
    with pytest.raises(ArtifactError, match="exists and is no artifact"):
        artifact.save(compiled, tmp_path)
    (tmp_path / "file").write_text("text")
    with pytest.raises(ArtifactError, match="exists and is no artifact"):
        artifact.save(compiled, tmp_path / "file")
    with pytest.raises(ArtifactError, match="cannot be written"):
        artifact.save(compiled, tmp_path / "file" / "net")


def test_a_loaded_model_is_not_saved_again(saved, tmp_path):
    with pytest.raises(ArtifactError, match="copy that directory instead"):
        artifact.save(artifact.load(saved), tmp_path / "again")


def test_a_failed_save_keeps_the_old_artifact(compiled, saved, monkeypatch):
    def fail(*arguments):
        raise OSError("disk full")

    monkeypatch.setattr(artifact, "_write", fail)
    with pytest.raises(ArtifactError, match="disk full"):
        artifact.save(compiled, saved)
    artifact.load(saved)
    assert [path.name for path in saved.parent.iterdir()] == ["net"]


def truncate(directory):
    data = (directory / "model.so").read_bytes()
    (directory / "model.so").write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / "manifest.json").unlink(), "is no artifact"),
        (lambda d: (d / "manifest.json").write_text('{"schema"'), "is not JSON"),
        (lambda d: (d / "manifest.json").write_text("[]"), "no usable field 'schema'"),
        (lambda d: edit(d, schema=99), "newer tvm-sparse, found schema 99; allowed: up to 1"),
        (lambda d: edit(d, decisions=None), "no usable field 'decisions'"),
        (lambda d: edit(d, signature={}), "target or signature is not usable"),
        (lambda d: edit(d, versions={"tvm": "0.1"}), "another tvm, found 0.1; allowed: 0.27"),
        (lambda d: edit(d, system="Plan9-mips"), "another system, found Plan9-mips"),
        (lambda d: edit(d, target={"kind": "cuda", "arch": "sm_90"}), "does not fit this machine: there is no CUDA"),
        (
            lambda d: edit(d, target={"kind": "llvm", "mcpu": "sapphirerapids", "mattr": ["+amx-fp16"]}),
            "lacks .*amx-fp16",
        ),
        (lambda d: edit(d, files={}), "must list model.so"),
        (lambda d: edit(d, files={"../x": "0"}), "must list model.so"),
        (lambda d: (d / "model.so").unlink(), "model.so is missing"),
        (truncate, "SHA-256 differs"),
    ],
)
def test_damaged_and_foreign_artifacts_are_refused(saved, damage, message):
    damage(saved)
    with pytest.raises(ArtifactError, match=message) as raised:
        artifact.load(saved)
    assert "\n" not in str(raised.value)
    assert str(saved) in str(raised.value)
