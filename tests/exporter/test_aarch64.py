"""A network for AArch64: exported here, linked by a cross compiler, run under an emulator."""

import subprocess
from types import SimpleNamespace

import emulated
import exported
import numpy as np
import pytest
import torch
import torch_networks

from tvm_sparse.conv.reference import AGREEMENT, relative_difference
from tvm_sparse.errors import ArtifactError, BuildError
from tvm_sparse.runtime import artifact, library_file
from tvm_sparse.target import cpu

TARGET = {**exported.TARGET, "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"}
# As Linux writes it on a Cortex-A76: the emulator shows a program this machine's, unless there is another.
CPUINFO = "processor\t: 0\nFeatures\t: fp asimd aes sha1 sha2 crc32 atomics fphp asimdhp asimdrdm asimddp\n"


@pytest.mark.exhaustive
@pytest.mark.skipif(bool(emulated.why_not_emulated()), reason=emulated.why_not_emulated())
def test_resnet18_computes_what_torch_does(tmp_path):
    module, x = torch_networks.network("resnet18")
    _, folder = exported.made(module, [x.numpy()], tmp_path, target=TARGET)
    (tmp_path / "x.raw").write_bytes(x.numpy().tobytes())
    program = exported.build(folder, tmp_path / "program", compiler=emulated.COMPILER)
    root = tmp_path / "root"
    (root / "proc").mkdir(parents=True)
    (root / "proc" / "cpuinfo").write_text(CPUINFO)
    (root / "lib").symlink_to("/usr/aarch64-linux-gnu/lib")
    command = [emulated.EMULATOR, "-L", root, program, folder / "model.plan", tmp_path / "x.raw"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        want = module(x).numpy()
    assert relative_difference(np.frombuffer(done.stdout, np.float32).reshape(want.shape), want) <= AGREEMENT
    # Where programs see this machine's processor the features are missing.
    command[2] = "/usr/aarch64-linux-gnu"
    assert b"lacks asimd" in subprocess.run(command, capture_output=True, check=False, timeout=60).stderr
    with pytest.raises(ArtifactError, match="was built for another system, found Linux-aarch64"):
        artifact.load(folder.with_name("model.sparse"))


def test_a_missing_cross_compiler_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(library_file.shutil, "which", lambda _: None)
    with pytest.raises(BuildError, match="apt-get install gcc-aarch64-linux-gnu"):
        library_file.export(SimpleNamespace(export_library=None), tmp_path / "model.so", architecture="aarch64")


def test_features_of_an_aarch64_processor_are_read(monkeypatch, tmp_path):
    (tmp_path / "cpuinfo").write_text(CPUINFO)
    monkeypatch.setattr(cpu, "Path", lambda _: tmp_path / "cpuinfo")
    assert {"asimd", "asimddp", "atomics"} <= cpu.cpu_flags()
