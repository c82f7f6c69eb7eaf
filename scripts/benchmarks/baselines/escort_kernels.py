"""Escort's compiled kernels: the shapes they come in, building them with nvcc, and calling them on torch's tensors."""

import ctypes
from dataclasses import dataclass
from pathlib import Path

from benchmarks.baselines.base import Tensor
from benchmarks.nvcc import shared_library
from tvm_sparse.conv.spec import ConvSpec

SOURCE = Path(__file__).with_name("escort.cu")


@dataclass(frozen=True)
class Launch:
    """A block's tile of threads, and the output rows and images of a thread.

    With `filters_first` blocks that run together share an input tile, else they share a filter.
    """

    tile_width: int
    tile_height: int
    rows: int
    images: int
    filters_first: bool

    def __str__(self) -> str:
        order = "filters" if self.filters_first else "pixels"
        return f"{self.tile_width}x{self.tile_height} threads, {self.rows} rows, {self.images} images, {order} first"


# (tile width, tile height, rows, images) as compiled in escort.cu; the first two are the published ones.
SHAPES = (
    (16, 16, 1, 1),
    (16, 16, 1, 2),
    (16, 16, 1, 4),
    (16, 16, 4, 1),
    (32, 8, 1, 1),
    (32, 8, 1, 4),
    (32, 4, 4, 1),
    (32, 4, 4, 2),
    (8, 8, 1, 1),
    (8, 8, 1, 4),
    (8, 8, 1, 8),
)
LAUNCHES = tuple(Launch(*shape, filters_first) for shape in SHAPES for filters_first in (False, True))


class Geometry(ctypes.Structure):
    """The struct of the same name in ``escort.cu``."""

    _fields_ = tuple(
        (name, ctypes.c_int)
        for name in (
            *("images", "channels", "height", "width", "filters", "out_height", "out_width"),
            *("stride_height", "stride_width", "top", "left", "pitch", "plane"),
        )
    )

    @classmethod
    def of(cls, spec: ConvSpec) -> "Geometry":
        """One-sided padding: a row's right padding is the next row's left one, likewise below a channel."""
        top, left, bottom, right = spec.padding
        pitch = spec.w + max(left, right)
        plane = pitch * (spec.h + max(top, bottom))
        return cls(
            spec.n, spec.c, spec.h, spec.w, spec.k, spec.out_h, spec.out_w, *spec.stride, top, left, pitch, plane
        )

    def padded_size(self, spec: ConvSpec) -> int:
        """Elements of the padded input; the last channel has no next one whose upper padding it could share."""
        top, left, bottom, right = spec.padding
        return spec.n * spec.c * int(self.plane) + min(top, bottom) * int(self.pitch) + min(left, right)


def build(folder: Path, arch: str) -> Path:
    """Compile the kernels with nvcc for `arch`, such as ``sm_90``, into a shared library in `folder`.

    Raises
    ------
    BuildError
        There is no nvcc, or it fails; the sentence quotes it.
    """
    return shared_library("Escort's kernels", SOURCE, folder, arch)


class Kernels:
    """The functions that `build` made; tensors are torch's, of one device, and work goes to torch's current stream."""

    def __init__(self, path: Path):
        self.library = ctypes.CDLL(str(path))
        pointer, number = ctypes.c_void_p, ctypes.c_int
        self.library.escort_convolve.argtypes = [pointer] * 6 + [number, pointer]
        self.library.escort_copy_interior.argtypes = [pointer] * 4

    def convolve(
        self, launch: Launch, geometry: Geometry, padded: Tensor, taps: Tensor, rows: Tensor, y: Tensor
    ) -> None:
        """One convolution of a padded input."""
        shape = (ctypes.c_int * 4)(launch.tile_width, launch.tile_height, launch.rows, launch.images)
        pointers = [each.data_ptr() for each in (padded, taps, rows, y)]
        order = int(launch.filters_first)
        _check(self.library.escort_convolve(*pointers, ctypes.byref(geometry), shape, order, _stream(y)))

    def copy_interior(self, geometry: Geometry, x: Tensor, padded: Tensor) -> None:
        """Copy `x` between the zeros of `padded`."""
        _check(self.library.escort_copy_interior(x.data_ptr(), padded.data_ptr(), ctypes.byref(geometry), _stream(x)))


def _stream(tensor: Tensor) -> int | None:
    if tensor.device.type != "cuda":
        return None
    import torch

    return int(torch.cuda.current_stream(tensor.device).cuda_stream)


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"Escort's kernel was not launched: CUDA error {status}")
