"""Constants of the cost model, by the card that they were fitted on.

``scripts/table2/fit_cost_model.py`` fits those of `FITTED` to tuning logs and writes them here. The others come from
experiments of their own (docs/lab/cuda-folded.md).
"""

from dataclasses import dataclass

from tvm_sparse.target.gpu import GpuInfo


@dataclass(frozen=True)
class Fit:
    """Measured and fitted constants of one card.

    * `fetch_cycles`: cycles an instruction of warm code: up to each size of instruction cache, and beyond.
    * `cold_together_cycles`, `together`: cycles of a cold instruction where so many multiprocessors want the same lines
      at once.
    * `apart`, `alike`, `mixed`: how many times as long a kernel takes in a row of its like that start early: where half
      of the multiprocessors are idle; where all execute the same code, or little; where blocks miss their places.
    * `cudnn_flops_s`, `cudnn_bytes_s`, `cudnn_us`: what cuDNN reaches on Table 2 where TF32 is allowed, its tensors as
      it likes them: flops and bytes a second, and its shortest time.
    * `alone_flops_s`, `alone_bytes_s`, `alone_us`: the same of layers of networks whose tensors are in NCHW, so that it
      changes layouts too. These overlap with no products: their times are added up.
    * `drift`: thread blocks of a multiprocessor drift apart and share less of what is fetched: so often is it fetched,
      to this power of their number; 0 were all in step.
    * `cold_cycles`: cycles of a cold instruction.
    * `cold_bytes_cycle`: bytes of cold code that reach all multiprocessors together in a cycle, each tile's and split's
      once.
    * `kept_bytes`: code of all tiles and splits that is still cached when the kernel is called again.
    * `slower_rotated`, `cramped`: how many times as long code takes where blocks are at different k-tiles and so share
      less of what is fetched; and warm code whose registers do not suffice to issue shared loads well before their use.
    * `barrier_cycles`, `block_cycles`: of a barrier with the wait for copies, where one buffer would be all, and of a
      block's start and end.
    * `copied_together_bytes`: bytes a cycle into a multiprocessor's shared memory while all of them copy from the
      level-2 cache.
    * `overlap`: what copies hide of the arithmetic of a multiprocessor's other blocks: 1 would be nothing.
    * `joined_bytes`: bytes of partial sums that a block reads in a cycle from the other blocks of its cluster.
    * `launch_us`: of a kernel in a CUDA graph.
    """

    fetch_cycles: tuple[float, float, float]
    cold_together_cycles: float
    together: int
    apart: float
    alike: float
    mixed: float
    cudnn_flops_s: float
    cudnn_bytes_s: float
    cudnn_us: float
    alone_flops_s: float
    alone_bytes_s: float
    alone_us: float
    drift: float
    cold_cycles: float
    cold_bytes_cycle: float
    kept_bytes: float
    slower_rotated: float
    cramped: float
    barrier_cycles: float
    block_cycles: float
    copied_together_bytes: float
    overlap: float
    joined_bytes: float
    launch_us: float


FITTED = (
    "drift",
    "cold_cycles",
    "cold_bytes_cycle",
    "kept_bytes",
    "slower_rotated",
    "cramped",
    "barrier_cycles",
    "block_cycles",
    "copied_together_bytes",
    "overlap",
    "joined_bytes",
    "launch_us",
)
# Taken for cards that nothing was fitted on.
DEFAULT = "NVIDIA H200"


def fitted_on(gpu: GpuInfo) -> str:
    """The card whose constants serve a GPU: its own, or else the `DEFAULT`."""
    return gpu.name if gpu.name in FITS else DEFAULT


# The H200's come from 1144 kernels of 41 convolutions, timed warm, moved towards the 149 shipped ones. From here on the
# script writes this file.
FITS = {
    "NVIDIA H200": Fit(
        fetch_cycles=(1.0, 2.7, 6.2),
        cold_together_cycles=14.0,
        together=64,
        apart=0.95,
        alike=1.04,
        mixed=1.15,
        cudnn_flops_s=320000000000000.0,
        cudnn_bytes_s=1700000000000.0,
        cudnn_us=7.0,
        alone_flops_s=302000000000000.0,
        alone_bytes_s=2070000000000.0,
        alone_us=7.7,
        drift=0.497,
        cold_cycles=6.92,
        cold_bytes_cycle=241.0,
        kept_bytes=196000.0,
        slower_rotated=1.33,
        cramped=1.7,
        barrier_cycles=230.0,
        block_cycles=219.0,
        copied_together_bytes=24.2,
        overlap=1.29,
        joined_bytes=5.15,
        launch_us=0.534,
    ),
}
