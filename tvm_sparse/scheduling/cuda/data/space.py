"""The space of the kernels with weights as data (codegen/cuda/data.cu): how a convolution may be cut."""

import math
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from typing import Any

import numpy as np
from tvm import tirx

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.storage import STORAGE, is_half
from tvm_sparse.scheduling.cuda.data.kernels import PARAMETERS, library_of
from tvm_sparse.scheduling.cuda.data.packing import packed
from tvm_sparse.scheduling.cuda.data.tiling import MAX_VECTOR_WARPS, OF_PIXELS, Staging, Tiling
from tvm_sparse.scheduling.cuda.library.kernel_library import WARP
from tvm_sparse.scheduling.cuda.library.library_call import Copies, library_call
from tvm_sparse.scheduling.cuda.library.library_space import LibrarySpace
from tvm_sparse.scheduling.cuda.library.map_size import is_grouped, is_pointwise
from tvm_sparse.scheduling.cuda.library.parameters import arguments
from tvm_sparse.scheduling.cuda.library.together import largest, rounded_up
from tvm_sparse.target.gpu import GpuInfo

FILTERS, PARTS, PIXEL_GROUPS, WARPS = (1, 2, 4, 8, 16, 32, 64, 128), (1, 2, 4, 8), (1, 2, 4), (4, 8, 16, 32)
# The same of grouped convolutions, whose blocks have few filters and channels.
GROUPED_PIXEL_GROUPS, GROUPED_WARPS = (1, 2, 4, 8), (1, 2, 4, 8, 16)
# Rows and columns of a tile; of a 1x1 convolution, whose map is one row, columns.
ROWS, RUNS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 14, 28), (32, 64, 96, 112, 128, 160, 192, 196, 224, 256, 392, 448)
COLUMNS = (8, 16, 32, 64, 128)
# Decisions that say which pixels a block has, and how they are staged.
_OF_PIXELS = ("rows", "columns", "pixel_groups", "staging")


def why_not_served(gpu: GpuInfo) -> str:
    """Why the kernels serve no convolution on this GPU, as a sentence, or ""."""
    lacking = f"{gpu.name} has no clusters of thread blocks, which compute capability 9.0 brought"
    return "" if gpu.has_clusters else lacking


class DataSpace(LibrarySpace[Tiling]):
    """The space of all tilings in which a warp takes `shared` filters at a time: what one of them uses, all do."""

    def __init__(self, name: str, spec: ConvSpec, pattern: SparsityPattern, gpu: GpuInfo, shared: int = 1):
        super().__init__(name, f"filters{shared}" if shared > 1 else "", spec, gpu)
        self.pattern, self.shared = pattern, shared

    @cached_property
    def candidates(self) -> dict[str, list[Any]]:
        """Decisions and their values."""
        spec, grouped = self.spec, is_grouped(self.spec)
        per_group, warps = spec.k // spec.groups, GROUPED_WARPS if grouped else WARPS
        filters = {*FILTERS, per_group} if grouped else {*FILTERS}
        # Clusters took two to three times as long for the few channels of a group.
        channels = 1 if grouped else spec.c // spec.groups
        if is_pointwise(spec):
            size = spec.out_h * spec.out_w
            columns = {*(run for run in RUNS if run < size), *(size // d for d in (1, 2, 3, 4, 7) if size % d == 0)}
            rows = [1]
        else:
            rows = [each for each in ROWS if each <= spec.out_h]
            columns = {spec.out_w, *(each for each in COLUMNS if each < spec.out_w)}
        stagings = [Staging.RUN, Staging.ROWS, Staging.PLANES]
        return {
            "filters": [each for each in sorted(filters) if per_group % each == 0 and each % self.shared == 0],
            "rows": rows,
            "columns": sorted(columns),
            "parts": [each for each in PARTS if channels % each == 0],
            "pixel_groups": list(GROUPED_PIXEL_GROUPS if grouped else PIXEL_GROUPS),
            "warps": [each for each in warps if self.shared == 1 or each <= MAX_VECTOR_WARPS],
            "staging": sorted(stagings if is_pointwise(spec) else stagings[1:]),
        }

    def tilings(self) -> Iterator[Tiling]:
        return map(self._cut, range(len(self._cuts[1])))

    @cached_property
    def ranked(self) -> list[tuple[float, Tiling]]:
        known, places, cuts = self._cuts
        if is_grouped(self.spec) or not len(places):
            return super().ranked
        every = Tiling.together(known, places, **cuts)
        return self.ranked_together(every, self._cut, every.grid, every.shared_bytes(self._stride(every)))

    def _cut(self, place: int) -> Tiling:
        known, places, cuts = self._cuts
        return Tiling.of(known[places[place]], **{name: int(values[place]) for name, values in cuts.items()})

    @cached_property
    def _cuts(self) -> tuple[list[dict[str, Any]], np.ndarray, dict[str, np.ndarray]]:
        """What is known of tiles of pixels; of all tilings worth a look the places among these, and other decisions."""
        axes = self.candidates
        known: list[dict[str, Any]] = []
        pixels = partial(Tiling, self.spec, filters=self.shared, parts=1, warps=1, shared=self.shared)
        table = np.full([len(axes[name]) for name in _OF_PIXELS], -1)
        for at in np.ndindex(*table.shape):
            first = pixels(**{name: axes[name][index] for name, index in zip(_OF_PIXELS, at, strict=True)})
            if not first.obstacle_of_pixels:
                table[at] = len(known)
                known.append(first.known(OF_PIXELS))
        every = np.indices([len(each) for each in axes.values()]).reshape(len(axes), -1)
        index = dict(zip(axes, every, strict=True))
        places = table[tuple(index[name] for name in _OF_PIXELS)]
        cuts = {name: np.array(axes[name])[index[name]] for name in axes if name not in _OF_PIXELS}
        keep = places >= 0
        if keep.any():
            keep[keep] = self._are_worth_it(Tiling.together(known, places[keep], **_kept(cuts, keep)))
        return known, places[keep], _kept(cuts, keep)

    def _are_worth_it(self, every: Tiling) -> np.ndarray:
        """Those whose warps have something to do; few blocks leave most of the GPU idle."""
        fewest = min(self.gpu.multiprocessors // 3, self._most_blocks)
        conditions: tuple[Any, ...] = (
            every.warps % every.pixel_groups == 0,
            every.filters % every.parts == 0,
            every.filters // self.shared * every.pixel_groups >= every.warps,
            math.prod(every.grid) >= fewest,
            np.not_equal(every.staging, Staging.RUN) | every.run_fits,
        )
        found: np.ndarray = np.logical_and.reduce(np.broadcast_arrays(*conditions))
        return found

    @property
    def _most_blocks(self) -> int:
        """Blocks of the finest cut that is worth a launch: one for each warp's share of pixels and four filters."""
        spec = self.spec
        return spec.n * max(1, spec.out_h * spec.out_w // WARP) * max(1, spec.k // 4)

    def obstacle(self, tiling: Tiling) -> str:
        if obstacle := tiling.obstacle or self.exceeds_grid(*tiling.grid):
            return obstacle
        return self.lacks_shared_memory(int(tiling.shared_bytes(self._stride(tiling))))

    def _stride(self, tiling: Tiling) -> Any:
        """About how many 16-byte units a block's weights take: filters are dealt out, so blocks have about as many."""
        pairs = tiling.filters / self.shared * (self._positions / tiling.parts / 2 + 0.3) * 1.1
        return tiling.first_pair + tiling.pair_units * (rounded_up(pairs - 0.5) + 2)

    @cached_property
    def _positions(self) -> float:
        """About how many positions (c, r, s) `shared` filters use."""
        if self.pattern.vector % self.shared == 0:
            return self.pattern.nnz / self.spec.k
        return self.pattern.size / self.spec.k * (1 - (1 - self.pattern.density) ** self.shared)

    def estimated_us(self, tiling: Tiling) -> Any:
        """Estimated time: fitted to 3,424 kernels of both types, batch 1 to 64 (an H200), nine of ten within 20%."""
        gpu, blocks, threads = self.gpu, math.prod(tiling.grid), WARP * tiling.warps
        waves = self.waves(blocks, tiling.parts)
        per_block = self._positions / tiling.parts * tiling.filters / self.shared * tiling.pixel_groups
        if is_grouped(self.spec):
            return self._grouped_us(tiling, per_block)
        # Reads of shared memory a block, 32 lanes a cycle; multiply-adds of four warps a cycle; or how long a warp
        # waits for what it reads, pair after pair.
        reads = per_block * (tiling.lane_pixels * tiling.step + 0.5 + (self.shared // 4))
        products = per_block * tiling.lane_pixels * self.shared / 4
        waiting = per_block / tiling.warps / 2 * (31 + 3.6 * tiling.lane_pixels * self.shared)
        compute_us = largest(1.13 * reads, 1.6 * products, waiting) / gpu.clock_hz * 1e6
        floats, weight_bytes = tiling.part_channels * tiling.channel_pitch, 16 * self._stride(tiling)
        copies = floats / tiling.vector / threads
        if is_half(self.spec.dtype):
            # Four reads are under way at a time, and their numbers widened.
            stage_us, rate, out_rate = 0.67 * rounded_up(copies / 4) + floats / 52e3, 3.4e6, 0.93e6
        else:
            stage_us = 0.48 + (4 * floats + weight_bytes) / 300e3 + 0.073 * copies / tiling.vector
            rate, out_rate = 5.5e6, 2.2e6
        moved_us = blocks * (STORAGE[self.spec.dtype].size_bytes * floats + weight_bytes) / rate
        # Of filters whose parts other blocks have, quads of pixels that a thread adds up.
        quads = tiling.places * tiling.filters / tiling.parts / 4 / threads
        reduce_us = (tiling.parts > 1) * (0.91 + 0.3 * quads)
        turns_us = 0.065 * tiling.filters / tiling.warps * tiling.pixel_groups
        out_us = self.spec.output_bytes * (2 if self.spec.residual else 1) / out_rate
        return 1.19 + waves * (compute_us + stage_us + reduce_us + turns_us) + moved_us + out_us

    def _grouped_us(self, tiling: Tiling, positions: float) -> float:
        """For channels in groups, `positions` a block: fitted to kernels of 12 convolutions (an H200), off by 10%."""
        gpu, blocks, shared = self.gpu, math.prod(tiling.grid), tiling.shared
        needed_bytes = max(tiling.shared_bytes(self._stride(tiling)), gpu.spread_bytes(blocks))
        registers = min(128, 40 + 2 * tiling.lane_pixels * shared)
        by_registers = 4 * gpu.quarter_registers // (registers * WARP * tiling.warps)
        by_memory = gpu.shared_bytes // (Copies.of(gpu).asked(needed_bytes) + gpu.reserved_bytes)
        resident = max(1, min(by_memory, by_registers, gpu.blocks, gpu.warps // tiling.warps))
        share = math.ceil(blocks / gpu.multiprocessors)
        copies = tiling.part_channels * tiling.channel_pitch / tiling.vector / WARP
        outputs = tiling.filters * tiling.pixel_groups * tiling.lane_pixels
        # Cycles: of a multiprocessor for a block, and from a block's beginning to its end.
        reads = tiling.lane_pixels * tiling.step + 0.5 + shared // 4
        busy = 1.32 * positions * max(reads, tiling.lane_pixels * shared / 4) + 13.7 * copies + 12 * outputs
        waiting = (2.6 * positions * tiling.lane_pixels * shared + 139 * copies + 46 * outputs) / tiling.warps
        cycles_us = (each / gpu.clock_hz * 1e6 for each in (share * busy, math.ceil(share / resident) * waiting))
        moved_us = blocks * copies * WARP * tiling.vector * 4 / 7.1e6
        return 1.75 + sum(each**1.6 for each in (*cycles_us, moved_us)) ** (1 / 1.6)

    def tiling(self, decisions: Mapping[str, Any]) -> Tiling:
        """The tiling of decisions by name, `staging` as its name or number."""
        staging = decisions["staging"]
        found = Staging[staging.upper()] if isinstance(staging, str) else Staging(staging)
        return Tiling(self.spec, **{**decisions, "staging": found}, shared=self.shared)

    def counts(self, tiling: Tiling) -> list[float]:
        return [tiling.lane_pixels, tiling.input_floats, math.prod(tiling.grid), self._stride(tiling)]

    def packed_for(self, weight: np.ndarray, tiling: Tiling) -> tuple[np.ndarray, int]:
        found = packed(weight, tiling)
        return found, tiling.shared_bytes(found.shape[1])

    def written(self, decisions: Mapping[str, Any]) -> tirx.PrimFunc:
        tiling, gpu = self.checked(decisions), self.gpu
        launch, rows = (*tiling.grid, WARP * tiling.warps, tiling.parts), tiling.grid[0] * tiling.grid[1]
        grouped, library = is_grouped(self.spec), library_of(tiling)

        def numbers(stride: tirx.Var) -> list[Any]:
            # Blocks that start early crowd where there is room, so that few ask for more than they need.
            spread = gpu.spread_bytes(math.prod(tiling.grid))
            needed = tirx.max(tiling.shared_bytes(stride), spread) if grouped else gpu.block_shared_bytes
            return [*arguments(PARAMETERS, tiling, stride=stride), *launch, needed]

        return library_call(self.spec, library, tiling.kernel, rows, numbers, Copies.of(gpu) if grouped else None)


def _kept(values: Mapping[str, np.ndarray], keep: np.ndarray) -> dict[str, np.ndarray]:
    return {name: each[keep] for name, each in values.items()}
