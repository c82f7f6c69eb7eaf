"""How a convolution of shared positions (codegen/cuda/slice.cu) is cut, staged and addressed."""

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

from tvm_sparse.conv.dtypes import BFLOAT16, FLOAT16, FLOAT32
from tvm_sparse.conv.storage import STORAGE
from tvm_sparse.scheduling.cuda.library.kernel_library import WARP
from tvm_sparse.scheduling.cuda.library.map_size import MapSizes
from tvm_sparse.scheduling.cuda.library.together import largest, smallest
from tvm_sparse.scheduling.cuda.multiplied import OF_MULTIPLIED
from tvm_sparse.scheduling.family import TF32_VARIANT

# Filters and pixels of a tensor core's product.
FILTERS, PIXELS = 16, 8
# Positions that a warp reads at once, each of so many pixels; how many such reads a k-step takes.
QUAD = 4
QUADS = {FLOAT32: 2, FLOAT16: 4, BFLOAT16: 4}
# Tiles of 16 filters a warp -> groups of 8 pixels a warp: there are kernels for these.
N_TILES = {1: (1, 2, 4, 7, 8), 2: (1, 2, 4, 7, 8), 4: (1, 2, 4, 7)}
# Positions that words of two have room for, at most, as a multiple of those that filters use.
MOST_IN_WORDS = 1.6
MAX_WARPS, MAX_STAGES = 8, 3
# Of a `SliceTiling`, what channels and stages have no part in.
OF_TILE = (
    *("spec", "tf32", "m_tiles", "n_tiles", "filter_warps", "pixel_warps", "k_warps", "filters", "obstacle"),
    *("is_pointwise", "in_size", "out_size", "row_8", "rows", "images", "aligned", "tiles", "vector"),
    *("staged_rows", "lead", "row_pitch", "channel_pitch", "farthest_in_channel"),
)
COPY_BYTES = 16
# How kernels' names begin, with the place of a copy's number.
COPY = "tvm_sparse_slice{}_"


@dataclass(frozen=True)
class SliceTiling(MapSizes):
    """How a convolution is cut: a warp has 16 * `m_tiles` filters of 8 * `n_tiles` pixels, which share their positions.

    A block has `filter_warps` times `pixel_warps` of these, whole rows of one image or whole images where they are
    small, and `k_warps` warps for each, which divide the positions. `channels` input channels come at a time, through a
    ring of `stages` buffers. A 1x1 convolution without stride and padding has one row, of all pixels of a map. `tf32`:
    whether float32 may be rounded to TF32.
    """

    m_tiles: int
    n_tiles: int
    filter_warps: int
    pixel_warps: int
    k_warps: int
    channels: int
    stages: int
    tf32: bool = False

    @cached_property
    def obstacle(self) -> str:
        """Why the kernel cannot do it, or ""; whether shared memory suffices is not judged."""
        if self.n_tiles not in N_TILES.get(self.m_tiles, ()):
            return f"no kernel has {self.m_tiles} tiles of filters and {self.n_tiles} of pixels a warp"
        if self.spec.k // self.spec.groups % self.filters:
            return f"filters do not divide into tiles of {self.filters}"
        if self.warps > MAX_WARPS:
            return f"{self.warps} warps, at most {MAX_WARPS}"
        if not self.rows:
            return f"a row is {self._row_groups} groups of {PIXELS} pixels, of which a block has {self._groups}"
        return ""

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.filter_warps * self.pixel_warps * self.k_warps

    @property
    def warp_filters(self) -> int:
        """Filters of a warp."""
        return FILTERS * self.m_tiles

    @cached_property
    def filters(self) -> int:
        """Filters of a block."""
        return self.warp_filters * self.filter_warps

    @property
    def multiplied(self) -> str:
        """What is multiplied: the tensors' type, or what may be rounded to TF32."""
        return TF32_VARIANT if self.tf32 else self.spec.dtype

    @property
    def products(self) -> int:
        """Products of tensor cores for one: in float32 one of high parts, and one of what these miss."""
        return 2 if self.multiplied == FLOAT32 else 1

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return STORAGE[self.spec.dtype].size_bytes

    @property
    def quads(self) -> int:
        """Reads of four positions a k-step."""
        return QUADS[self.spec.dtype]

    @property
    def step_units(self) -> int:
        """16-byte units of a k-step among the weights."""
        return self.m_tiles * WARP + self.quads

    @property
    def _groups(self) -> int:
        """Groups of 8 pixels that a block has warps for."""
        return self.pixel_warps * self.n_tiles

    @property
    def _row_groups(self) -> int:
        return -(-self.out_size[1] // PIXELS)

    @cached_property
    def row_8(self) -> int:
        """Groups of 8 pixels of a tile's row: all of an output row, or of a 1x1 convolution's map a part."""
        if not self.is_pointwise:
            return self._row_groups
        parts = -(-self._row_groups // self._groups)
        return -(-self._row_groups // parts)

    @cached_property
    def rows(self) -> int:
        """Rows of a tile, 0 where a row is too long."""
        height = self.out_size[0]
        most = min(self._groups // self.row_8, height)
        return -(-height // -(-height // most)) if most else 0

    @cached_property
    def images(self) -> int:
        """Images of a tile."""
        is_whole = self.rows == self.out_size[0] and self.row_8 == self._row_groups
        return max(1, min(self._groups // (self.rows * self.row_8), self.spec.n)) if is_whole else 1

    @cached_property
    def aligned(self) -> int:
        """Pixels of an output row that are read and written together."""
        most = (8, 4, 2, 1) if self.element_bytes == 2 else (4, 2, 1)
        return next(each for each in most if self.out_size[1] % each == 0)

    @property
    def tiles_8(self) -> int:
        """Groups of 8 pixels of a tile."""
        return self.images * self.rows * self.row_8

    @property
    def columns(self) -> int:
        """Pixels of a tile's row."""
        return self.row_8 * PIXELS if self.is_pointwise else self.spec.out_w

    @cached_property
    def tiles(self) -> tuple[int, int, int]:
        """Tiles of images, below and beside each other."""
        height, width = self.out_size
        return -(-self.spec.n // self.images), -(-height // self.rows), -(-width // self.columns)

    @property
    def k_tiles(self) -> int:
        """Tiles of filters."""
        return self.spec.k // self.filters

    @property
    def blocks(self) -> int:
        """Thread blocks."""
        images, down, beside = self.tiles
        return self.k_tiles * images * down * beside

    @cached_property
    def vector(self) -> int:
        """Elements of a copy."""
        return next(v for v in (8, 4, 2, 1) if v * self.element_bytes <= COPY_BYTES and self.in_size[1] % v == 0)

    @property
    def row_step(self) -> int:
        """Input rows between staged rows: those that a filter of one row does not read are left out."""
        return self.spec.stride[0] if self.spec.r == 1 else 1

    @cached_property
    def staged_rows(self) -> int:
        """Rows of a staged map."""
        spec = self.spec
        if self.is_pointwise:
            return 1
        return (self.rows - 1) * (spec.stride[0] // self.row_step) + (spec.r - 1) * spec.dilation[0] + 1

    @cached_property
    def lead(self) -> int:
        """Zeros before each row, which pad the end of the row above too."""
        spec = self.spec
        if self.is_pointwise:
            return 0
        last = (spec.out_w - 1) * spec.stride[1] + (spec.s - 1) * spec.dilation[1] - spec.padding[1]
        return -(-max(spec.padding[1], last - spec.w + 1) // self.vector) * self.vector

    @cached_property
    def row_pitch(self) -> int:
        """Elements from one staged row to the next."""
        return self.columns if self.is_pointwise else self.lead + self.spec.w

    @property
    def pixel_row(self) -> int:
        """Elements between the inputs of a pixel and of the one below it."""
        return self.row_pitch * (1 if self.is_pointwise else self.spec.stride[0] // self.row_step)

    @property
    def image_pitch(self) -> int:
        """Elements from one staged image of a channel to the next."""
        return self.staged_rows * self.row_pitch + self.lead

    @cached_property
    def channel_pitch(self) -> int:
        """Elements from one staged channel to the next.

        8 pixels beyond a multiple of all banks: so four channels in a row are read without bank conflicts.
        """
        banks, beyond = {2: (64, 16), 4: (32, 8)}[self.element_bytes]
        return beyond + -(-(self.images * self.image_pitch - beyond) // banks) * banks

    def offset(self, r: int, s: int) -> int:
        """Elements from a pixel's place to the input that a tap reads."""
        if self.is_pointwise:
            return 0
        spec = self.spec
        row = r * spec.dilation[0] // self.row_step
        return row * self.row_pitch + self.lead - spec.padding[1] + s * spec.dilation[1]

    @cached_property
    def farthest_in_channel(self) -> int:
        """Elements of a staged channel, as far as places without a pixel read."""
        spec = self.spec
        taps = max(self.offset(r, s) for r, s in product(range(spec.r), range(spec.s)))
        pixel = (self.images - 1) * self.image_pitch + (self.rows - 1) * self.pixel_row
        beside = (self.row_8 * PIXELS - 1) * (1 if self.is_pointwise else spec.stride[1])
        return max(pixel + beside + taps + 2, self.channel_pitch)

    @cached_property
    def input_elements(self) -> int:
        """Shared memory of a chunk's input, as far as places without a pixel read."""
        farthest = (self.channels - 1) * self.channel_pitch + self.farthest_in_channel
        unit = COPY_BYTES // self.element_bytes
        return -(-farthest // unit) * unit

    @property
    def first_channel(self) -> int:
        """Where a chunk's channels begin among its weights, in 4 bytes; before it are whether words are read, and how
        many channels there are.
        """
        return self.filter_warps + 3

    @property
    def may_read_words(self) -> bool:
        """Whether two positions side by side are 4 bytes that begin at a multiple of 4 for every pixel."""
        spec = self.spec
        is_even = spec.stride[1] % 2 == 0 and spec.w % 2 == 0
        return is_even and self.element_bytes == 2 and spec.s > 1 and spec.dilation[1] == 1

    @property
    def filters_at(self) -> int:
        """Where a chunk's output channels begin, in 4 bytes."""
        return self.first_channel + self.channels

    @property
    def first_step(self) -> int:
        """Where a chunk's k-steps begin, in 16 bytes."""
        return -(-(self.filters_at + self.filters) // 4)

    def shared_bytes(self, chunks: Any, stride: Any) -> Any:
        """Shared memory of a block whose weights are `chunks` times `stride` 16-byte units; of arrays an array."""
        return largest(smallest(self.stages, chunks) * self.buffer_bytes(stride), self.sums_bytes)

    def buffer_bytes(self, stride: Any) -> Any:
        """Shared memory of a chunk whose weights are `stride` 16-byte units, a number or an expression."""
        return 16 * stride + self.element_bytes * self.input_elements

    @property
    def sums_bytes(self) -> int:
        """Shared memory in which warps that divide positions hand over what they have."""
        parts = (self.k_warps - 1) * self.filter_warps * self.pixel_warps
        return parts * self.m_tiles * self.n_tiles * WARP * 16

    @property
    def kernel(self) -> str:
        """The kernel's name, with the place of a copy's number in it."""
        return kernel_name(self.m_tiles, self.n_tiles, self.multiplied, "{}")


def kernel_name(m_tiles: int, n_tiles: int, multiplied: str, copy: int | str = 0) -> str:
    """The kernel, or a copy of it, for so many tiles of filters and of pixels a warp."""
    return f"{COPY.format(copy)}{m_tiles}_{n_tiles}{OF_MULTIPLIED[multiplied]}"
