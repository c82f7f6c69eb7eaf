"""`verify` and `load(sha256=...)`: what is not the artifact that was saved is said, and nothing of it is run."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
import zoo

import tvm_sparse as ts
from tvm_sparse.cli import main
from tvm_sparse.errors import ArtifactError, VerificationError
from tvm_sparse.exporter.dynamic_section import Needs
from tvm_sparse.runtime.artifacts import manifest


@pytest.fixture(scope="module")
def master(tmp_path_factory):
    module, shapes = zoo.TORCH["relu"]
    model = ts.compile(module, torch.zeros(shapes[0]), target=zoo.UNOPTIMISED, compare=False)
    return ts.save(model, tmp_path_factory.mktemp("artifact") / "net.sparse")


@pytest.fixture
def saved(master, tmp_path):
    return shutil.copytree(master, tmp_path / "net.sparse")


def digest_of(artifact):
    return ts.verify(artifact).to_json()["sha256"]


def test_a_whole_artifact_has_a_line_each(saved, capsys):
    digest = digest_of(saved)
    assert main.main(["verify", str(saved), "--sha256", digest.upper()]) == 0
    (library,) = (path.name for path in saved.glob("*.so"))
    lines = capsys.readouterr().out.splitlines()
    begins = [
        "sha256: ",
        f"{library}: SHA-256 ",
        f"{library}, loads: ",
        f"{library}, calls: ",
        "other files: none",
        "inputs: ",
        "outputs: ",
    ]
    assert all(any(line.startswith(begin) for line in lines) for begin in begins)
    assert json.loads((saved / "manifest.json").read_text())["digest"] == digest


def test_the_artifact_that_was_asked_for_is_loaded_and_no_other(saved):
    assert ts.load(saved, sha256=digest_of(saved)).signature
    with pytest.raises(ArtifactError, match=r"has another SHA-256 than was asked for, found .* allowed: 00"):
        ts.load(saved, sha256="00")


def alter(artifact):
    (library,) = artifact.glob("*.so")
    library.write_bytes(library.read_bytes()[:-1] + b"x")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (alter, "SHA-256 differs"),
        (lambda artifact: (artifact / "notes.txt").write_text("mine"), "no part of the artifact: notes.txt"),
    ],
)
def test_what_was_changed_is_said_with_exit_code_5(saved, change, problem, capsys):
    change(saved)
    assert problem in str(ts.verify(saved).failure)
    assert main.main(["verify", str(saved)]) == VerificationError.exit_code
    assert problem in capsys.readouterr().out


def test_another_sum_and_no_artifact(saved, tmp_path):
    assert "than was asked for" in str(ts.verify(saved, sha256="00").failure)
    with pytest.raises(ArtifactError, match="is no artifact"):
        ts.verify(tmp_path)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"functions": ("memcpy", "system")}, ", calls: calls system; get the artifact again"),
        ({"libraries": ("libc.so.6", "libmine.so")}, ", loads: loads libmine.so; get the artifact again"),
        ({"paths": ("RUNPATH $ORIGIN",)}, ", loads: loads RUNPATH $ORIGIN; get the artifact again"),
    ],
)
def test_a_library_that_needs_more_is_named(saved, monkeypatch, change, problem):
    (library,) = saved.glob("*.so")
    found = Needs.of(library.read_bytes())
    assert "TVMFFIErrorSetRaisedFromCStrParts" in found.functions and not found.problem
    monkeypatch.setattr(Needs, "of", lambda _: replace(found, **change))
    assert problem in str(ts.verify(saved).failure)


def test_what_is_no_library_is_said(saved, monkeypatch):
    monkeypatch.setattr(manifest, "library", lambda *_: b"\x7fELF\x02\x01" + bytes(100))
    assert "is no library that can be read" in str(ts.verify(saved).failure)
