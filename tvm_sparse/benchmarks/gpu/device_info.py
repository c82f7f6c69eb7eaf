"""What is installed and which GPU this is, for the head of a report."""

from __future__ import annotations

from importlib import metadata

from tvm_sparse.benchmarks.results import Device
from tvm_sparse.errors import BuildError
from tvm_sparse.target.gpu_driver import gpu_property


def versions_and_device(arch: str, on_gpu: bool) -> tuple[dict[str, str], Device]:
    """What is installed and the GPU, as torch and the driver's tool say; called in the process that holds the GPU."""
    import torch

    versions = {"apache-tvm": metadata.version("apache-tvm"), "torch": torch.__version__}
    if not on_gpu:
        return versions, Device(name="CPU", arch=arch)
    if not torch.cuda.is_available():
        raise BuildError("bench_gpu.py", "torch finds no GPU", hint="--target llvm tries it without one")
    versions |= {"CUDA": str(torch.version.cuda), "cuDNN": str(torch.backends.cudnn.version())}
    properties = torch.cuda.get_device_properties(0)
    clock_mhz, _, _ = (gpu_property("clocks.max.sm") or "").partition(" ")
    return versions, Device(
        name=properties.name,
        arch=arch,
        multiprocessors=properties.multi_processor_count,
        clock_mhz=float(clock_mhz) if clock_mhz.replace(".", "").isdigit() else 0,
        l2_bytes=getattr(properties, "L2_cache_size", 0),
        driver=gpu_property("driver_version") or "",
    )
