"""Failures of the GPU are one sentence, whoever reports them; all others are left alone."""

import re

import pytest

from tvm_sparse.cli import main
from tvm_sparse.errors import BuildError, ModelError
from tvm_sparse.runtime.gpu.gpu_failures import as_sentences, gpu_failure, is_lost, is_out_of_memory

# As TVM, the driver and torch put them.
OUT_OF_MEMORY = [
    "CUDA Runtime Error: cudaErrorMemoryAllocation (2): out of memory",
    "cuGraphInstantiateWithFlags: CUDA_ERROR_OUT_OF_MEMORY",
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.81 GiB",
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call",
]
NAMES = ("CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation", "CUDA out of memory", "CUDA error: out of memory")
LOST = [
    "cuGraphLaunch: CUDA_ERROR_ILLEGAL_ADDRESS",
    "cuEventRecord: CUDA_ERROR_LAUNCH_FAILED",
    "cuEventRecord: CUDA_ERROR_ECC_UNCORRECTABLE",
    "cuCtxPushCurrent_v2: CUDA_ERROR_DEVICE_UNAVAILABLE",
    "cuMemcpyDtoDAsync_v2: CUDA_ERROR_ASSERT",
    "cuModuleLoadData(&(module_[device_id]), code_.data()) failed with error: CUDA_ERROR_CONTEXT_IS_DESTROYED",
    "Traceback\n  deep\nCUDA Runtime Error: cudaErrorIllegalAddress (700): an illegal memory access was encountered",
    "CUDA Runtime Error: cudaErrorLaunchTimeout (702): the launch timed out and was terminated",
    "CUDA error: device-side assert triggered\nCompile with TORCH_USE_CUDA_DSA",
    "CUDA error: unspecified launch failure",
    "CUDA error: an illegal memory access was encountered",
    "CUDALaunch Error: CUDA_ERROR_MISALIGNED_ADDRESS\n grid=(1,1,1)",
]
OTHERS = [
    "out of memory",
    "CUDALaunch Error: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES\n grid=(1,1,1)",
    "cuGraphLaunch: CUDA_ERROR_INVALID_HANDLE",
    "cuStreamEndCapture: CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
    "CUDA error: invalid argument",
    "Check failed: assert x > 0",
]


@pytest.mark.parametrize("message", OUT_OF_MEMORY)
def test_out_of_memory(message):
    error = RuntimeError(message)
    assert is_out_of_memory(error) and not is_lost(error)
    found = gpu_failure(error)
    names = "|".join(NAMES)
    assert re.fullmatch(
        rf"GPU: it is out of memory \(({names})\); free memory there, or compile .* smaller batch", str(found)
    )


@pytest.mark.parametrize("message", LOST)
def test_lost(message):
    error = RuntimeError(message)
    assert is_lost(error) and not is_out_of_memory(error)
    found = gpu_failure(error)
    assert str(found).startswith("GPU: it is lost to this process (")
    assert "start this process again" in str(found) and "\n" not in str(found)


@pytest.mark.parametrize("message", OTHERS)
def test_others_are_left_alone(message):
    error = RuntimeError(message)
    assert gpu_failure(error) is None
    with pytest.raises(RuntimeError) as raised, as_sentences():
        raise error
    assert raised.value is error


def test_a_sentence_is_not_made_again():
    with pytest.raises(BuildError) as raised, as_sentences(), as_sentences():
        raise RuntimeError(LOST[0])
    assert str(raised.value).count("lost to this process") == 1
    assert str(raised.value.__cause__) == LOST[0]


def test_the_command_line_says_it_too(monkeypatch, capsys):
    monkeypatch.setattr(main, "_run", lambda _: (_ for _ in ()).throw(RuntimeError(OUT_OF_MEMORY[0])))
    assert main.main(["doctor"]) == BuildError.exit_code
    assert capsys.readouterr().err.startswith("tvm-sparse: GPU: it is out of memory (cudaErrorMemoryAllocation); free")
    monkeypatch.setattr(main, "_run", lambda _: (_ for _ in ()).throw(ModelError("m.onnx", "is bad")))
    assert main.main(["doctor"]) == ModelError.exit_code
    assert capsys.readouterr().err == "tvm-sparse: m.onnx: is bad\n"
