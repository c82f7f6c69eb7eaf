"""Every fact about a GPU, looked up by target.

A target alone says which card is meant: its architecture, and where that has several cards its attribute ``model``. So
a kernel is made the same on every machine, and a tuning log, which keeps the target, suffices to make it again.
"""

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
from tvm.target import Target

# Ends the attribute ``model`` of a target: how many multiprocessors its card has, or its part of a card.
_COUNT = re.compile(r"(?P<name>.*), (?P<count>[1-9]\d{0,3}) multiprocessors")

# All that there are up to Hopper, and three digits for those since. ``a`` is code for one of them alone, ``f`` for its
# family.
_ARCHITECTURE = re.compile(r"sm_(?P<capability>5[023]|6[012]|7[025]|8[06789]|90(?=a?$)|1[0-9][0-9])[af]?")


@dataclass(frozen=True)
class GpuInfo:
    """One card.

    Limits of a multiprocessor are those of the CUDA programming guide, table "Technical specifications per compute
    capability"; rates, clocks, caches and multiprocessors are data-sheet values where nothing else is said.

    * `name`, `compute_capability`: the name as the driver tells it, without what only some of its variants have; 90 for
      sm_90.
    * `multiprocessors`, `clock_hz`: their number, and their clock while they compute.
    * `flops_s`, `tf32_flops_s`: of float32, two for a multiply-add, and of the tensor cores in TF32, dense.
    * `dram_bytes_s`, `level_2_bytes`: what kernels reach of the bandwidth of DRAM; size of the level-2 cache.
    * `shared_bytes`: shared memory that all blocks of a multiprocessor have together.
    * `warps`, `blocks`: that a multiprocessor holds at once.
    * `reserved_bytes`, `shared_unit_bytes`: what the driver takes of each block's shared memory, and the unit in which
      that is given out.
    * `instruction_cache_bytes`: code up to the first size comes from a multiprocessor's own cache, up to the second
      from the one that it shares; measured on an H200 and assumed of the others.
    * `copy_bytes_cycle`: into a multiprocessor's shared memory in a cycle, at most.
    * `level_2_bytes_s`: that all thread blocks together read from the level-2 cache; of an H200, and assumed of the
      others.
    """

    # The same on every card: 32-bit registers of one of a multiprocessor's four parts, and of a thread at most; thread
    # blocks of a grid along each of its axes at most.
    quarter_registers: ClassVar[int] = 16384
    thread_registers: ClassVar[int] = 255
    grid_blocks: ClassVar[tuple[int, int, int]] = (2**31 - 1, 65535, 65535)

    name: str
    compute_capability: int
    multiprocessors: int
    clock_hz: float
    flops_s: float
    tf32_flops_s: float
    dram_bytes_s: float
    level_2_bytes: float
    shared_bytes: int
    warps: int
    blocks: int
    reserved_bytes: int = 1024
    shared_unit_bytes: int = 128
    instruction_cache_bytes: tuple[int, int] = (32 * 1024, 160 * 1024)
    copy_bytes_cycle: float = 64.0
    level_2_bytes_s: float = 5e12

    @property
    def block_shared_bytes(self) -> int:
        """Shared memory of one block at most: all but what the driver takes."""
        return self.shared_bytes - self.reserved_bytes

    @property
    def has_clusters(self) -> bool:
        """Whether thread blocks run in clusters (CUDA programming guide, "Thread Block Clusters")."""
        return self.compute_capability >= 90

    @property
    def has_dependent_launch(self) -> bool:
        """Whether kernels may start early (CUDA programming guide, "Programmatic Dependent Launch")."""
        return self.compute_capability >= 90

    @property
    def has_sparse_warpgroups(self) -> bool:
        """Whether warpgroups multiply on sparse tensor cores (PTX ISA, "wgmma.mma_async.sp"): no other card's do."""
        return self.compute_capability == 90

    @property
    def cluster_multiprocessors(self) -> int:
        """Multiprocessors that clusters of 4 and 8 blocks can fill, as they stay within groups of them.

        As many of an H200's 132, of which 128 such blocks took two waves; the same share is assumed of the others.
        """
        return self.multiprocessors * 120 // 132

    @classmethod
    def launch_registers(cls, threads: Any, blocks: Any) -> Any:
        """That a thread may have where a multiprocessor holds `blocks` of so many threads; given out in steps of 8.

        The fullest quarter of a multiprocessor counts. Numbers, or arrays.
        """
        warps = -(-threads // 128) * blocks
        return np.minimum(cls.quarter_registers // (32 * warps) // 8 * 8, cls.thread_registers)

    def spread_bytes(self, blocks: int) -> int:
        """Shared memory of a block with which a multiprocessor holds its share of so many blocks, and no more."""
        share, unit = -(-blocks // self.multiprocessors), self.shared_unit_bytes
        too_many = self.shared_bytes // (share + 1) // unit * unit + unit
        return max(0, too_many - self.reserved_bytes)


# Limits of a multiprocessor: shared memory, warps and blocks.
_SM_80, _SM_87, _SM_90 = (164 * 1024, 64, 32), (164 * 1024, 48, 16), (228 * 1024, 64, 32)
_SM_86, _SM_89 = (100 * 1024, 48, 16), (100 * 1024, 48, 24)
# Of the bandwidth on the data sheet, what kernels reach: 4.3 of 4.8 TB/s on an H200.
_REACHED = 0.9
# The first of an architecture is meant where a target does not say which. In the order of their fields: name, compute
# capability, multiprocessors, clock, flops, TF32 flops, DRAM, level 2, limits.
CARDS = (
    # NVIDIA A100 and A30 data sheets; boost clocks.
    GpuInfo("NVIDIA A100", 80, 108, 1.41e9, 19.5e12, 156e12, _REACHED * 2.039e12, 40e6, *_SM_80),
    GpuInfo("NVIDIA A100-SXM4-40GB", 80, 108, 1.41e9, 19.5e12, 156e12, _REACHED * 1.555e12, 40e6, *_SM_80),
    GpuInfo("NVIDIA A30", 80, 56, 1.44e9, 10.3e12, 82e12, _REACHED * 933e9, 24e6, *_SM_80),
    # NVIDIA Ampere GA102 white paper; NVIDIA A40 and A10 data sheets.
    GpuInfo("NVIDIA GeForce RTX 3090", 86, 82, 1.695e9, 35.6e12, 35.6e12, _REACHED * 936e9, 6e6, *_SM_86),
    GpuInfo("NVIDIA RTX A6000", 86, 84, 1.8e9, 38.7e12, 77.4e12, _REACHED * 768e9, 6e6, *_SM_86),
    GpuInfo("NVIDIA A40", 86, 84, 1.74e9, 37.4e12, 74.8e12, _REACHED * 696e9, 6e6, *_SM_86),
    GpuInfo("NVIDIA A10", 86, 72, 1.695e9, 31.2e12, 62.5e12, _REACHED * 600e9, 6e6, *_SM_86),
    GpuInfo("NVIDIA A10G", 86, 80, 1.71e9, 35e12, 70e12, _REACHED * 600e9, 6e6, *_SM_86),
    # Jetson AGX Orin technical brief.
    GpuInfo("Orin", 87, 16, 1.3e9, 5.3e12, 21e12, _REACHED * 205e9, 4e6, *_SM_87),
    # NVIDIA Ada GPU architecture white paper; NVIDIA L4 and L40S data sheets.
    GpuInfo("NVIDIA GeForce RTX 4090", 89, 128, 2.52e9, 82.6e12, 82.6e12, _REACHED * 1008e9, 72e6, *_SM_89),
    GpuInfo("NVIDIA L4", 89, 58, 2.04e9, 30.3e12, 60e12, _REACHED * 300e9, 48e6, *_SM_89),
    GpuInfo("NVIDIA L40S", 89, 142, 2.52e9, 91.6e12, 183e12, _REACHED * 864e9, 96e6, *_SM_89),
    # NVIDIA H200 and H100 data sheets; clock and DRAM of the H200 as measured.
    GpuInfo("NVIDIA H200", 90, 132, 1.9e9, 67e12, 495e12, 4.3e12, 50e6, *_SM_90),
    GpuInfo("NVIDIA H100", 90, 132, 1.9e9, 67e12, 495e12, _REACHED * 3.35e12, 50e6, *_SM_90),
    GpuInfo("NVIDIA H100 PCIe", 90, 114, 1.755e9, 51e12, 378e12, _REACHED * 2.0e12, 50e6, *_SM_90),
    GpuInfo("NVIDIA H100 NVL", 90, 132, 1.785e9, 60e12, 418e12, _REACHED * 3.9e12, 50e6, *_SM_90),
    GpuInfo("NVIDIA GH200", 90, 132, 1.9e9, 67e12, 495e12, _REACHED * 4.0e12, 50e6, *_SM_90),
    # NVIDIA DGX B200 data sheet, divided by its 8 GPUs; level 2 as the driver tells it.
    GpuInfo("NVIDIA B200", 100, 148, 1.965e9, 75e12, 1100e12, _REACHED * 8.0e12, 126e6, *_SM_90),
    # NVIDIA RTX Blackwell GPU architecture and RTX PRO 6000 white papers.
    GpuInfo("NVIDIA GeForce RTX 5090", 120, 170, 2.407e9, 104.8e12, 104.8e12, _REACHED * 1792e9, 96e6, *_SM_89),
    GpuInfo("NVIDIA RTX PRO 6000", 120, 188, 2.6e9, 125e12, 251e12, _REACHED * 1792e9, 128e6, *_SM_89),
)


def gpu_info(target: Target) -> GpuInfo:
    """The card that a CUDA target means: that of its attribute ``model``, or else its architecture's first in `CARDS`.

    Of an architecture without cards the one before it is taken, and the smallest where there is none.
    """
    arch, model = (str(target.attrs.get(name, "")) for name in ("arch", "model"))
    return card(capability_of(arch), model)


@cache
def card(capability: int, model: str = "") -> GpuInfo:
    """The card of `gpu_info`; where `model` ends like "80 multiprocessors", it has so many, and rates in proportion."""
    known = {each.compute_capability for each in CARDS if each.compute_capability <= capability}
    nearest = max((each for each in known if each // 10 == capability // 10), default=86)
    cards = [each for each in CARDS if each.compute_capability == nearest]
    match = _COUNT.fullmatch(model)
    words = _words(match["name"] if match else model)
    named = [each for each in cards if words[: len(_words(each.name))] == _words(each.name)]
    found = replace(max(named, key=lambda each: len(each.name), default=cards[0]), compute_capability=capability)
    count = int(match["count"]) if match else found.multiprocessors
    if count == found.multiprocessors:
        return found
    part = count / found.multiprocessors
    flops_s, tf32_flops_s = part * found.flops_s, part * found.tf32_flops_s
    return replace(found, name=model, multiprocessors=count, flops_s=flops_s, tf32_flops_s=tf32_flops_s)


def _words(name: str) -> list[str]:
    return re.split("[ -]", name)


def capability_of(arch: str) -> int:
    """Of ``sm_90a`` 90; 0 where it is no architecture."""
    match = _ARCHITECTURE.fullmatch(arch)
    return int(match["capability"]) if match else 0
