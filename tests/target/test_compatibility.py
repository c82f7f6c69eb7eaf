"""Why code for a processor does not run here."""

import platform

import pytest
from tvm.target import Target

from tvm_sparse.target import compatibility, cpu, resolve

# A Zen 4 whose host hides AVX-512: LLVM's name of it is not believed, and the generic level taken instead lacks aes.
FLAGS = (
    "fpu sse sse2 ht pni pclmulqdq ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt aes xsave avx f16c rdrand lahf_lm abm "
    "sse4a bmi1 avx2 bmi2 rdseed adx clflushopt clwb sha_ni vaes vpclmulqdq gfni"
)


@pytest.fixture
def processor(monkeypatch):
    """Makes this machine's processor show certain flags."""

    def show(flags):
        monkeypatch.setattr(cpu, "cpu_info", lambda _: flags)
        monkeypatch.setattr("tvm.target.codegen.llvm_get_system_cpu", lambda: "znver4")
        resolve._host_config.cache_clear()

    yield show
    resolve._host_config.cache_clear()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs the names of x86-64's features")
@pytest.mark.parametrize(
    ("flags", "mcpu", "missing"),
    [
        (FLAGS, "znver3", ""),
        (FLAGS, "x86-64-v3", ""),
        (FLAGS.replace(" aes", "").replace("sha_ni", ""), "znver3", "this processor lacks aes, sha"),
        (FLAGS, "x86-64-v4", "this processor lacks avx512bw, avx512cd, avx512dq, avx512f, avx512vl"),
        (FLAGS + " avx512f avx512bw avx512cd avx512dq avx512vl avx512_bf16", "znver4", "avx512bitalg"),
    ],
)
def test_what_a_processor_shows_is_not_missing(processor, flags, mcpu, missing):
    processor(flags)
    obstacle = compatibility.why_not_here(Target({"kind": "llvm", "mcpu": mcpu}))
    assert (missing in obstacle) if missing else obstacle == ""
    assert "bf16" not in obstacle


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs the names of x86-64's features")
def test_the_flags_that_code_needs(processor):
    """As Linux writes them, without those that no compiler chooses or that Linux does not show here either."""
    processor(FLAGS)
    known = compatibility.required_flags(Target({"kind": "llvm", "mcpu": "znver3"}))
    assert {"avx2", "fma", "pni", "abm", "bmi1", "sse41", "f16c"} <= set(known)
    assert not {"aes", "vaes", "sha_ni", "shani", "sse4a"} & set(known)
    assert "avx512f" in compatibility.required_flags(Target({"kind": "llvm", "mcpu": "x86-64-v4"}))
    newest = compatibility.required_flags(Target({"kind": "llvm", "mcpu": "graniterapids"}))
    assert not [each for each in newest if each.startswith(("amx", "avx10"))]
    processor(FLAGS.replace(" abm", ""))
    assert "abm" not in compatibility.required_flags(Target({"kind": "llvm", "mcpu": "x86-64-v3"}))
