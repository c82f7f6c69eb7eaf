"""How long a layer takes at a density: estimated from its shape, or as somebody measured it.

On a GPU the faster of what the spaces of sparse kernels estimate of themselves and of what cuDNN takes. On a CPU the
fastest of a folded kernel, weights as data and dense, by multiply-adds at the rates of `plan.predict`, and the time
that input and output take to move; of a linear layer, by the bytes of its weights. An estimate knows how many zeros
there are and whether filters share them, on a CPU in vectors; of anything else only a measured table says what it
gains.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np
from tvm.target import Target

from tvm_sparse.compiler.plan.predict import DENSE, GPU_SCHEDULES, cpu_times_us, gpu_dense_us
from tvm_sparse.conv.conv2d_product import is_linear
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.structure import Structure
from tvm_sparse.errors import UsageError
from tvm_sparse.schedules import plane_cuda, slice_cuda, vector_cuda
from tvm_sparse.schedules.lookup import spaces_of
from tvm_sparse.scheduling.cpu.fit import SPARSE
from tvm_sparse.target.gpu import gpu_info

# Bytes a second that a layer moves on a CPU: 35 to 45 GB/s in docs/results/table2-znver5.md.
CPU_BYTES_S = 40e9
# Where GPU spaces are asked, which takes seconds; between these and beyond, an estimate is a straight line.
DENSITIES = (0.02, 0.1, 0.3)

# Schedules for GPUs that make use of where zeros are.
PATTERN_SCHEDULES = (slice_cuda.NAME, plane_cuda.NAME, vector_cuda.NAME)

# Microseconds of a layer at a density.
TimeOf = Callable[[float], float]


def estimated(spec: ConvSpec, target: Target, structure: Structure | None = None) -> TimeOf:
    """The estimated time of `spec`'s fastest kernel as a function of density; it never falls as density grows.

    Zeros are unstructured, or of `structure`.
    """
    if target.kind.name == "cuda":
        return _gpu_time(spec, str(target), "unstructured" if structure is None else structure.name)
    return _cpu_time(spec, target, _side_by_side(structure))


def estimated_us(spec: ConvSpec, target: Target, structure: Structure, density: float) -> float:
    """The estimated time at one density, with zeros of `structure`: no more than with as many anywhere."""
    anywhere_us = estimated(spec, target)(density)
    if target.kind.name != "cuda":
        return min(anywhere_us, _cpu_time(spec, target, _side_by_side(structure))(density))
    return min([anywhere_us, *_sparse_us(spec, density, target, structure.name, PATTERN_SCHEDULES)])


def _side_by_side(structure: Structure | None) -> int:
    return 1 if structure is None or structure.is_permuted else structure.vector


def bytes_a_us(target: Target) -> float:
    """Bytes that memory delivers in a microsecond."""
    return (gpu_info(target).dram_bytes_s if target.kind.name == "cuda" else CPU_BYTES_S) / 1e6


def measured(layer: str, table: Mapping[float, float]) -> TimeOf:
    """A table of densities and microseconds as a function, in straight lines between them.

    Raises
    ------
    UsageError
        It is empty or has a density or time that is none.
    """
    densities = sorted(float(each) for each in table)
    times = [float(table[each]) for each in sorted(table, key=float)]
    if not densities or not all(0 <= each <= 1 for each in densities) or not all(0 < each < 1e12 for each in times):
        raise UsageError(f"times of {layer}", "not usable", dict(table), "density from 0 to 1 -> microseconds above 0")
    return _line(densities, times)


def _line(densities: list[float], times: list[float]) -> TimeOf:
    # A kernel for more non-zeros computes fewer too.
    least = np.minimum.accumulate(times[::-1])[::-1]
    return lambda density: float(np.interp(density, densities, least))


def _cpu_time(spec: ConvSpec, target: Target, vector: int) -> TimeOf:
    size = int(np.prod(spec.weight_shape))
    moving_us = spec.traffic_bytes / bytes_a_us(target)
    dense_us = cpu_times_us(spec, size, target)[DENSE]
    if is_linear(spec):
        # Its weights come from memory, as each is used once an image.
        dense_us = max(dense_us, 4 * size / bytes_a_us(target))
        return lambda density: moving_us + dense_us * min(1.0, SPARSE.linear_ratio * density)
    return lambda density: max(min(cpu_times_us(spec, round(density * size), target, vector).values()), moving_us)


@cache
def _gpu_time(spec: ConvSpec, target_text: str, structure: str) -> TimeOf:
    target = Target(target_text)
    dense_us = gpu_dense_us(spec, target)
    known = [(density, min(times)) for density in DENSITIES if (times := _sparse_us(spec, density, target, structure))]
    if not known:
        return lambda _: dense_us
    densities, times = map(list, zip(*known, strict=True))
    slope = (times[-1] - times[-2]) / (densities[-1] - densities[-2]) if len(known) > 1 else times[0] / densities[0]
    sparse = _line([*densities, 1.0], [*times, times[-1] + max(slope, 0.0) * (1 - densities[-1])])
    return lambda density: min(dense_us, sparse(density))


def _sparse_us(
    spec: ConvSpec, density: float, target: Target, structure: str, schedules: Sequence[str] = GPU_SCHEDULES
) -> list[float]:
    """Estimates of the spaces of some schedules for random zeros, or such as a structure has."""
    size = int(np.prod(spec.weight_shape))
    zeros = SparsityPattern(size, max(1, round(density * size)), structure, 0, 0, "", "")
    found, _ = spaces_of(spec, zeros, target, list(schedules))
    return [time_us for space in found for time_us in space.starts_us if time_us is not None]
