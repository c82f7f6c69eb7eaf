"""NCHWc: tensors whose channels lie in blocks, a vector of them side by side at each pixel.

A tensor (N, C, H, W) lies in memory as (N, C / c, H, W, c), the last block with channels that nothing reads where C is
no multiple of c. Vectors of filters are stored to it as they are in
registers, and the channels of a block that are read of a pixel are a line of a cache (Liu et al. 2019, "Optimizing CNN
Model Inference on CPUs", section 3.1).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import te, tirx

from tvm_sparse.conv.conv2d import arguments_of, epilogue, padded
from tvm_sparse.conv.spec import ConvSpec

Shape = tuple[int, int, int, int]


@dataclass(frozen=True)
class Layouts:
    """Which tensors of a convolution lie in blocks of so many `channels`."""

    channels: int
    x: bool = False
    residual: bool = False
    y: bool = False

    def __str__(self) -> str:
        named = [
            title for title, is_blocked in zip(("input", "residual", "output"), self._each, strict=True) if is_blocked
        ]
        return f"blocks of {self.channels} channels: {', '.join(named)}"

    @property
    def _each(self) -> tuple[bool, bool, bool]:
        return self.x, self.residual, self.y

    @property
    def has_blocks(self) -> bool:
        """Whether any lies in blocks."""
        return any(self._each)

    def has(self, name: str) -> bool:
        """Whether the tensor `name` lies in blocks; a bias never does."""
        return name in ("x", "residual", "y") and getattr(self, name)

    def filled(self, channels: int) -> int:
        """So many `channels` and those that fill the last block."""
        return -(-channels // self.channels) * self.channels

    def laid_out(self, name: str, array: np.ndarray) -> np.ndarray:
        """The tensor `name`, (N, C, H, W), as it lies in memory, or the bias (K,), which is as long as the output."""
        if name == "bias":
            return np.pad(array, (0, self.filled(len(array)) - len(array))) if self.y else array
        if not self.has(name):
            return array
        n, c, h, w = array.shape
        whole = np.pad(array, [(0, 0), (0, self.filled(c) - c), (0, 0), (0, 0)])
        parts = whole.reshape(n, -1, self.channels, h, w).transpose(0, 1, 3, 4, 2)
        return np.ascontiguousarray(parts)

    def as_nchw(self, name: str, array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """The tensor `name`, whose `shape` is (N, C, H, W), of how it lies in memory."""
        if not self.has(name):
            return array
        n, c, *size = shape
        return array.transpose(0, 1, 4, 2, 3).reshape(n, -1, *size)[:, :c]

    def shape(self, name: str, shape: Shape) -> tuple[int, ...]:
        """That of the tensor `name`, (N, C, H, W), in memory."""
        n, c, h, w = shape
        return (n, self.filled(c) // self.channels, h, w, self.channels) if self.has(name) else shape


@dataclass(frozen=True)
class Columns:
    """So many `pixels` of a row in tiles of `tile`: the last tile begins earlier where these do not divide them."""

    pixels: int
    tile: int

    @property
    def count(self) -> int:
        """How many pixels are computed, some of them twice."""
        return -(-self.pixels // self.tile) * self.tile

    def pixel(self, column: tirx.Expr) -> tirx.Expr:
        """Which one a column is."""
        if self.count == self.pixels:
            return column
        tile = tirx.min(tirx.floordiv(column, self.tile) * self.tile, self.pixels - self.tile)
        return tile + tirx.floormod(column, self.tile)


# All tensors as (N, C, H, W).
NCHW = Layouts(1)


class Blocked:
    """A tensor in blocks that is indexed by (n, c, y, x)."""

    def __init__(self, tensor: te.Tensor):
        self._tensor, self._channels = tensor, int(tensor.shape[-1])

    def __getitem__(self, index: Sequence[tirx.Expr]) -> tirx.Expr:
        n, c, y, x = index
        return self._tensor[n, tirx.floordiv(c, self._channels), y, x, tirx.floormod(c, self._channels)]


def blocked_arguments(spec: ConvSpec, layouts: Layouts) -> dict[str, te.Tensor]:
    """As `arguments_of`, in those layouts."""
    arguments = arguments_of(spec)
    for name, shape in (("x", spec.input_shape), ("residual", spec.output_shape)):
        if name in arguments and layouts.has(name):
            arguments[name] = te.placeholder(layouts.shape(name, shape), spec.dtype, name=name)
    return arguments


def views(layouts: Layouts, arguments: Mapping[str, te.Tensor]) -> dict[str, te.Tensor | Blocked]:
    """The `arguments`, to be indexed by (n, c, y, x)."""
    return {name: Blocked(each) if layouts.has(name) else each for name, each in arguments.items()}


def padded_blocks(spec: ConvSpec, x: Blocked, channels: int, height: int, width: int) -> te.Tensor:
    """The stage ``pack``: the zero-padded input as (N, C / channels, height, width, channels)."""

    def pack(n: tirx.Expr, block: tirx.Expr, y: tirx.Expr, x_: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
        return padded(spec, x, n, block * channels + lane, y, x_)

    return te.compute((spec.n, -(-spec.c // channels), height, width, channels), pack, name="pack")


def output(
    spec: ConvSpec,
    layouts: Layouts,
    arguments: Mapping[str, te.Tensor],
    value_at: Callable[..., tirx.Expr],
    columns: Columns | None = None,
) -> te.Tensor:
    """The stage ``out``: bias, residual and ReLU of the sums that `value_at` gives at (n, k, y, x).

    With `columns` it has these instead of pixels of a row.
    """
    columns = Columns(spec.out_w, 1) if columns is None else columns
    of = views(layouts, arguments)

    def at(n: tirx.Expr, k: tirx.Expr, y: tirx.Expr, x: tirx.Expr) -> tirx.Expr:
        return epilogue(spec, of, value_at(n, k, y, x), (n, k, y, columns.pixel(x)))

    def in_block(n: tirx.Expr, block: tirx.Expr, y: tirx.Expr, x: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
        return at(n, block * layouts.channels + lane, y, x)

    shape = (*spec.output_shape[:3], columns.count)
    return te.compute(layouts.shape("y", shape), in_block if layouts.y else at, name="out")
