"""Targets from every form a user may give, and the fingerprint of the machine."""

import json
import stat

import pytest
from tvm.target import Target

from tvm_sparse.errors import UsageError
from tvm_sparse.logs.record import FINGERPRINT_KEYS
from tvm_sparse.target import cpu, gpu_driver
from tvm_sparse.target.cpu import available_cores, host_cpu
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.gpu_driver import gpu_property
from tvm_sparse.target.resolve import resolve_target, target_json, thread_count


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """Makes `nvidia-smi` print a text, or none exist, and CUDA say nothing; what was asked before is forgotten."""
    monkeypatch.setattr(gpu_driver, "_device_0", lambda: None)

    def pretend(answer):
        monkeypatch.setenv("PATH", str(tmp_path))
        if answer is not None:
            tool = tmp_path / "nvidia-smi"
            tool.write_text(f"#!/bin/sh\n{answer}\n")
            tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        gpu_property.cache_clear()

    yield pretend
    gpu_property.cache_clear()


@pytest.mark.parametrize("text", [None, "llvm", '{"kind": "llvm"}', {"kind": "llvm"}])
def test_a_cpu_target_is_this_machine_s(text):
    target = resolve_target(text)
    assert target.kind.name == "llvm"
    assert target.attrs["mcpu"] not in ("", "generic")
    assert thread_count(target) == available_cores() >= 1


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ("", "znver4"),
        ("fpu sse4_1 avx avx2 fma avx512f", "x86-64-v3"),
        ("fpu avx avx2 fma avx512f avx512bw avx512cd avx512dq avx512vl", "x86-64-v4"),
        ("fpu sse4_1", "x86-64-v2"),
    ],
)
def test_what_a_virtual_machine_hides_is_not_used(monkeypatch, flags, name):
    """A Zen 4, of which a guest sees these flags; without any, LLVM is believed."""
    monkeypatch.setattr("tvm.target.codegen.llvm_get_system_cpu", lambda: "znver4")
    monkeypatch.setattr(cpu, "cpu_info", lambda key: flags)
    assert host_cpu() == name


def test_what_is_given_is_kept():
    target = resolve_target('{"kind": "llvm", "mcpu": "x86-64", "num-cores": 3}')
    assert (target.attrs["mcpu"], thread_count(target)) == ("x86-64", 3)
    assert resolve_target(target) is target


@pytest.mark.parametrize(
    ("answer", "arch"),
    [
        (None, "sm_90"),
        ("echo 0, 8.6", "sm_86"),
        ("echo 0, 9.0; echo 1, 8.0", "sm_90"),
        ("exit 9", "sm_90"),
        ("true", "sm_90"),
    ],
)
def test_a_cuda_target_is_this_machine_s_or_the_default(gpu, answer, arch):
    gpu(answer)
    target = resolve_target("cuda")
    assert target.attrs["arch"] == arch
    assert target.host.kind.name == "llvm"
    assert fingerprint_of(target)["arch"] == arch


@pytest.mark.parametrize(
    "text", ["opencl", "[1]", "{", '{"mcpu": "znver4"}', '{"kind": 3}', {"kind": "llvm", "no-such-option": 1}]
)
def test_other_targets_are_refused_in_a_sentence(text):
    with pytest.raises(UsageError) as caught:
        resolve_target(text)
    assert str(caught.value).startswith("target ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("arch", ["sm_0", "sm_1", "sm_55", "sm_999", "sm_90f", "sm_90abc", "sm_90 ", "sm_", "sm_٩٠"])
def test_an_architecture_that_is_none_is_one_sentence(arch):
    for given in ({"kind": "cuda", "arch": arch}, Target({"kind": "cuda", "arch": arch})):
        with pytest.raises(UsageError, match=f"NVIDIA has no such architecture, found {arch}; allowed: such as sm_90"):
            resolve_target(given)


@pytest.mark.parametrize("arch", ["sm_75", "sm_89", "sm_90", "sm_90a", "sm_103f", "sm_120a", "sm_121"])
def test_architectures_that_there_are(arch):
    assert resolve_target({"kind": "cuda", "arch": arch}).attrs["arch"] == arch


@pytest.mark.parametrize("text", ["llvm", "cuda"])
def test_a_target_survives_json(text):
    target = resolve_target(text)
    data = json.loads(json.dumps(target_json(target)))
    assert target_json(Target(data)) == data
    assert fingerprint_of(Target(data)) == fingerprint_of(target)


def test_a_cpu_is_what_tvm_calls_llvm():
    assert target_json(resolve_target("cpu")) == target_json(resolve_target("llvm")) == target_json(resolve_target())


@pytest.mark.parametrize("target", [Target("llvm"), resolve_target("llvm")], ids=["bare", "resolved"])
def test_a_fingerprint_is_text_and_complete(target):
    fingerprint = fingerprint_of(target)
    assert set(FINGERPRINT_KEYS) <= set(fingerprint)
    assert all(isinstance(value, str) and value for value in fingerprint.values())
