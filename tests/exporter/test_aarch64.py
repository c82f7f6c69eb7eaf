"""A network for AArch64: exported here, linked by a cross compiler, run under an emulator."""

import subprocess
from dataclasses import replace
from types import SimpleNamespace

import emulated
import exported
import numpy as np
import onnx
import pytest
import quantised
import torch
import torch_networks
import zoo

from tvm_sparse.compiler import build_model
from tvm_sparse.compiler.building import emulator, verify
from tvm_sparse.conv.reference import AGREEMENT, relative_difference
from tvm_sparse.errors import ArtifactError, BuildError
from tvm_sparse.runtime import artifact, library_file
from tvm_sparse.schedules import byte_cpu
from tvm_sparse.target import cpu
from tvm_sparse.target.resolve import resolve_target

TARGET = {**exported.TARGET, "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"}
# As Linux writes it on a Cortex-A76: the emulator shows a program this machine's, unless there is another.
CPUINFO = "processor\t: 0\nFeatures\t: fp asimd aes sha1 sha2 crc32 atomics fphp asimdhp asimdrdm asimddp\n"


def command_of(folder, x, tmp_path):
    """What runs an exported model with an input under the emulator."""
    (tmp_path / "x.raw").write_bytes(x.tobytes())
    program = exported.build(folder, tmp_path / "program", compiler=emulated.COMPILER)
    root = tmp_path / "root"
    (root / "proc").mkdir(parents=True)
    (root / "proc" / "cpuinfo").write_text(CPUINFO)
    (root / "lib").symlink_to("/usr/aarch64-linux-gnu/lib")
    return [emulated.EMULATOR, "-L", root, program, folder / "model.plan", tmp_path / "x.raw"]


@pytest.mark.exhaustive
@pytest.mark.skipif(bool(emulated.why_not_emulated()), reason=emulated.why_not_emulated())
@pytest.mark.parametrize("name", quantised.networks())
def test_a_quantised_network_computes_what_onnx_runtime_does(name, tmp_path):
    """Of layers on bytes."""
    path, x = quantised.quantised_file(tmp_path, name, "qdq", True, "u8s8"), quantised.sample(9)
    model, folder = exported.made(path, (), tmp_path, target=TARGET)
    assert byte_cpu.NAME in {row["schedule"] for row in model.report()}
    done = subprocess.run(command_of(folder, x, tmp_path), capture_output=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    (want,) = zoo.run_onnx(onnx.load(path), x)
    found = np.frombuffer(done.stdout, np.float32).reshape(want.shape)
    assert np.abs(found - want).max() <= 1.001 * np.diff(np.unique(want)).min()


@pytest.mark.exhaustive
@pytest.mark.skipif(bool(emulated.why_not_emulated()), reason=emulated.why_not_emulated())
def test_a_pruned_resnet18_computes_what_torch_does(tmp_path):
    """By sparse kernels, which were verified under the emulator before."""
    module, x = torch_networks.network("resnet18")
    for layer in module.modules():
        if isinstance(layer, torch.nn.Conv2d):
            layer.weight.data *= torch.rand_like(layer.weight) > 0.9
    model, folder = exported.made(module, [x.numpy()], tmp_path, target=TARGET)
    words = [row["kernel"] for row in model.report()]
    assert sum(word.startswith("sparse") for word in words) > len(words) / 2
    command = command_of(folder, x.numpy(), tmp_path)
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


@pytest.mark.exhaustive
@pytest.mark.skipif(bool(emulated.why_not_emulated()), reason=emulated.why_not_emulated())
@pytest.mark.parametrize(("factor", "schedule"), [(1, "csr_cpu"), (2, "dense_cpu")])
def test_a_wrong_kernel_is_found_under_the_emulator(factor, schedule, monkeypatch):
    layer = torch.nn.Conv2d(32, 64, 3, padding=1).eval()
    layer.weight.data *= torch.rand_like(layer.weight) > 0.9
    of = verify._Case.of

    def scaled(*given):
        case = of(*given)
        return replace(case, arguments={**case.arguments, "x": case.arguments["x"] * factor})

    monkeypatch.setattr(verify._Case, "of", scaled)
    (row,) = build_model.compile(layer, torch.zeros(1, 32, 14, 14), target=TARGET).report()
    assert row["schedule"] == schedule
    assert factor == 1 or "wrong by" in row["reason"]


def test_what_lacks_to_emulate_is_named(monkeypatch):
    monkeypatch.setattr(emulator.shutil, "which", lambda _: None)
    said = emulator.why_not_emulated(resolve_target(TARGET))
    assert said.endswith(
        ", without aarch64-linux-gnu-gcc and qemu-aarch64 (Debian's gcc-aarch64-linux-gnu and qemu-user)"
    )
    assert not emulator.why_not_emulated(resolve_target(exported.TARGET))


def test_a_missing_cross_compiler_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(library_file.shutil, "which", lambda _: None)
    with pytest.raises(BuildError, match="apt-get install gcc-aarch64-linux-gnu"):
        library_file.export(SimpleNamespace(export_library=None), tmp_path / "model.so", architecture="aarch64")


def test_features_of_an_aarch64_processor_are_read(monkeypatch, tmp_path):
    (tmp_path / "cpuinfo").write_text(CPUINFO)
    monkeypatch.setattr(cpu, "Path", lambda _: tmp_path / "cpuinfo")
    assert {"asimd", "asimddp", "atomics"} <= cpu.cpu_flags()
