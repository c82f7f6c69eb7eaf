"""A saved model runs in a fresh process without torch, and a damaged or foreign one is refused in one sentence."""

import hashlib
import json
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import tvm
import zoo
from hostile_files import STRANGE
from limits import largest_file

from tvm_sparse.compiler import build_model
from tvm_sparse.errors import ArtifactError
from tvm_sparse.runtime import artifact
from tvm_sparse.runtime.artifacts import replacement
from tvm_sparse.runtime.artifacts.manifest import digest, sha256
from tvm_sparse.target.compatibility import why_not_here

(X,) = zoo.inputs_of([zoo.X])


@pytest.fixture(scope="module")
def compiled():
    module, shapes = zoo.TORCH["two_consumers"]
    return build_model.compile(module, torch.zeros(shapes[0]))


@pytest.fixture(scope="module")
def master(compiled, tmp_path_factory):
    return artifact.save(compiled, tmp_path_factory.mktemp("artifact") / "a" / "net")


def library(directory):
    (path,) = directory.glob("model-*.so")
    return path


def edit(directory, **changes):
    """Change the manifest as if it had been saved like that."""
    path = directory / "manifest.json"
    manifest = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({**manifest, "digest": digest(manifest)}))


def edit_variant(directory, **changes):
    """The same for what it says of the only model."""
    (variant,) = json.loads((directory / "manifest.json").read_text())["variants"]
    edit(directory, variants=[{**variant, **changes}])


def signature_of(changes):
    """What a manifest says of a model of one input and no outputs."""
    return {"inputs": [{"name": "x", "shape": [1], "dtype": "float32"} | changes], "outputs": [], "single": False}


def test_round_trip(compiled, saved):
    loaded = artifact.load(saved)
    assert {path.name for path in saved.iterdir()} == {"manifest.json", library(saved).name}
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
from tvm_sparse.runtime import artifact
model = artifact.load(sys.argv[1])
outputs = model(np.load(sys.argv[2]))
np.savez(sys.argv[3], *outputs)
assert not {"tvm_sparse.compiler.build_model", "tvm_sparse.frontend.relax_import"} & set(sys.modules)
"""


def test_fresh_process_without_torch(compiled, saved, tmp_path):
    np.save(tmp_path / "x.npy", X)
    arguments = [str(saved), str(tmp_path / "x.npy"), str(tmp_path / "y.npz")]
    subprocess.run([sys.executable, "-c", FRESH, *arguments], check=True, timeout=120)
    with np.load(tmp_path / "y.npz") as outputs:
        for got, want in zip(outputs.values(), compiled(X), strict=True):
            np.testing.assert_array_equal(got, want)


def test_saving_again_replaces(compiled, saved):
    (saved / "notes.txt").write_text("the user's own")
    before = json.loads((saved / "manifest.json").read_text())
    library(saved).rename(saved / "model-00.so")
    edit(saved, files={"model-00.so": "0"})
    edit_variant(saved, library="model-00.so")
    artifact.save(compiled, saved)
    assert json.loads((saved / "manifest.json").read_text())["variants"] == before["variants"]
    assert {path.name for path in saved.iterdir()} == {"manifest.json", "notes.txt", library(saved).name}
    artifact.load(saved)
    assert [path.name for path in saved.parent.iterdir()] == ["net"]


def test_other_directories_are_left_alone(compiled, tmp_path):
    (tmp_path / "precious.txt").write_text("text")
    with pytest.raises(ArtifactError, match="exists and is no artifact"):
        artifact.save(compiled, tmp_path)
    (tmp_path / "file").write_text("text")
    with pytest.raises(ArtifactError, match="exists and is no directory"):
        artifact.save(compiled, tmp_path / "file")
    with pytest.raises(ArtifactError, match="cannot be written"):
        artifact.save(compiled, tmp_path / "file" / "net")


def test_a_loaded_model_is_not_saved_again(saved, tmp_path):
    with pytest.raises(ArtifactError, match="copy that directory instead"):
        artifact.save(artifact.load(saved), tmp_path / "again")


def test_a_failed_save_keeps_the_old_artifact(compiled, saved):
    with (
        largest_file(1000),
        pytest.raises(ArtifactError, match=r"cannot be written \(File too large\)"),
    ):
        artifact.save(compiled, saved)
    artifact.load(saved)
    assert [path.name for path in saved.parent.iterdir()] == ["net"]


def reword(directory):
    path = directory / "manifest.json"
    path.write_text(path.read_text().replace("float32", "float16"))


def truncate(directory):
    data = library(directory).read_bytes()
    library(directory).write_bytes(data[: len(data) // 2])


def alter(directory):
    data = bytearray(library(directory).read_bytes())
    data[len(data) // 3] ^= 1
    library(directory).write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / "manifest.json").unlink(), "is no artifact"),
        (lambda d: (d / "manifest.json").write_text('{"schema"'), "is not JSON"),
        (lambda d: (d / "manifest.json").write_text("[]"), "no usable field 'schema'"),
        (lambda d: edit(d, schema=99), "newer tvm-sparse, found schema 99; allowed: schema 4"),
        (lambda d: edit(d, schema=1), "older tvm-sparse, found schema 1; allowed: schema 4; compile the model again"),
        (lambda d: edit_variant(d, decisions=None), "no usable field 'decisions'"),
        (lambda d: edit_variant(d, signature={}), "signature, checks or verdict are not usable"),
        (lambda d: edit_variant(d, signature=signature_of({"dtype": "x"})), "'x' is no element type"),
        (lambda d: edit_variant(d, signature=signature_of({"shape": [-1]})), r"\[-1\] is no shape"),
        (lambda d: edit(d, versions={"tvm": "0.1"}), "another tvm, found 0.1; allowed: 0.27"),
        (lambda d: edit(d, system="Plan9-mips"), "another system, found Plan9-mips"),
        pytest.param(
            lambda d: edit(d, target={"kind": "cuda", "arch": "sm_90"}),
            "does not fit this machine: there is no CUDA",
            marks=pytest.mark.skipif(tvm.cuda(0).exist, reason="there is a GPU"),
        ),
        (
            lambda d: edit(d, target={"kind": "llvm", "mcpu": "sapphirerapids", "mattr": ["+amx-fp16"]}),
            "lacks .*amx-fp16",
        ),
        (lambda d: edit(d, files={}), "must list a library"),
        (lambda d: edit(d, files={"../x": "0"}), "must list a library"),
        (lambda d: edit(d, files={"a.so": "0", "model-1.so": "0"}), "must list a library"),
        (lambda d: library(d).unlink(), r"model-\w+.so is missing"),
        (truncate, "SHA-256 differs"),
        (alter, "SHA-256 differs"),
        (reword, "manifest.json was changed after it was saved"),
    ],
)
def test_damaged_and_foreign_artifacts_are_refused(saved, damage, message):
    damage(saved)
    with pytest.raises(ArtifactError, match=message) as raised:
        artifact.load(saved)
    assert "\n" not in str(raised.value)
    assert str(saved) in str(raised.value)


def test_a_library_that_is_none_is_refused(saved):
    """What the manifest vouches for may still be no library, or lie where nothing may be executed."""
    library(saved).write_bytes(b"no library")
    edit(saved, files={library(saved).name: hashlib.sha256(b"no library").hexdigest()})
    with pytest.raises(ArtifactError, match="cannot be loaded") as raised:
        artifact.load(saved)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("found", "message"), [("8.0", "built for sm_90, and this GPU is sm_80"), ("9.0", None)])
def test_code_for_another_gpu_is_refused(saved, found, message, monkeypatch):
    monkeypatch.setattr(tvm, "cuda", lambda _: SimpleNamespace(exist=True, compute_version=found))
    edit(saved, target={"kind": "cuda", "arch": "sm_90"})
    if message is None:
        assert why_not_here(tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})) == ""
        return
    with pytest.raises(ArtifactError, match=message):
        artifact.load(saved)


@pytest.mark.parametrize("name", [".", "net", "net/manifest.json", "net/model"])
def test_what_others_could_change_is_loaded_only_when_told(compiled, saved, name):
    """The files, their folder, and the folders above it."""
    exposed = library(saved) if name == "net/model" else (saved.parent / name).resolve()
    exposed.chmod(0o777)
    with pytest.raises(ArtifactError, match=r"others could change \(.*\); copy it .* trust=True") as raised:
        artifact.load(saved)
    assert f"write to {exposed})" in str(raised.value)
    np.testing.assert_array_equal(artifact.load(saved, trust=True)(X)[0], compiled(X)[0])


# Replaces an artifact by turns with two others until it is killed.
REPLACE = """
import shutil, sys, time
from pathlib import Path
from tvm_sparse.frontend.optional_imports import without_torch
with without_torch():
    from tvm_sparse.files.staging import Staging
    from tvm_sparse.runtime.artifacts import replacement
place, *others = map(Path, sys.argv[1:])
print("ready", flush=True)
while True:
    for other in others:
        with Staging(place.parent) as stage:
            replacement.put(Path(shutil.copytree(other, stage, dirs_exist_ok=True)), place)
        time.sleep(0.005)
"""


def test_readers_and_kills_see_a_whole_artifact(saved, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(saved, other)
    with library(other).open("ab") as file:
        file.write(bytes(8))
    altered = replacement.name_by_content(library(other))
    edit(other, files={altered.name: sha256(altered)})
    edit_variant(other, library=altered.name, decisions=[])
    place, seen = tmp_path / "place", set()
    shutil.copytree(saved, place)
    for _ in range(2):
        command = [sys.executable, "-c", REPLACE, *map(str, (place, saved, other))]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert writer.stdout.readline() == "ready\n"
        for _ in range(12):
            seen.add(len(artifact.load(place).report()))
        writer.kill()
        writer.communicate()
        artifact.load(place)
    assert len(seen) == 2, "the writer never got to replace anything"


@pytest.mark.parametrize("make", STRANGE, ids=lambda make: make.__name__)
@pytest.mark.parametrize("place", ["manifest", "library"])
def test_what_is_no_file_is_not_waited_for(make, place, saved):
    path = saved / "manifest.json" if place == "manifest" else library(saved)
    path.unlink()
    make(path)
    with pytest.raises(ArtifactError, match=r"is no artifact|is damaged"):
        artifact.load(saved)
