"""The kernels of ``evict_code.cu``: building them with nvcc, and launching them on torch's current stream."""

import ctypes
from pathlib import Path

from benchmarks.nvcc import shared_library

SOURCE = Path(__file__).with_name("evict_code.cu")


def build(folder: Path, arch: str) -> Path:
    """Compile them for `arch`, such as ``sm_90``, into a shared library in `folder`; takes some ten seconds.

    Raises
    ------
    BuildError
        There is no nvcc, or it fails; the sentence quotes it.
    """
    # Linked from parts: nvcc knows the address of a function's code only there, not where it compiles at once.
    return shared_library("kernels that evict code", SOURCE, folder, arch, "-rdc=true")


class CodeEvictor:
    """Called with a number, launches one kernel if it is even, the other if it is odd; `path` is what `build` made.

    Neither lets a kernel behind it start early, but one that is launched early starts as its last block ends.
    """

    def __init__(self, path: Path):
        import torch

        self._launch = ctypes.CDLL(str(path)).evict_code_launch
        self._launch.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
        self._blocks = torch.cuda.get_device_properties(0).multi_processor_count
        # Code is loaded at the first launch, which may be no part of a graph.
        self(0)
        self(1)

    def __call__(self, turn: int) -> None:
        import torch

        status = self._launch(turn, self._blocks, torch.cuda.current_stream().cuda_stream)
        if status:
            raise RuntimeError(f"a kernel that evicts code was not launched: CUDA error {status}")
