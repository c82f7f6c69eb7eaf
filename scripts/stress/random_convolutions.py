"""Random convolutions and weights, and running a kernel on them: what the tests and `check_kernels.py` share."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm.s_tir import Schedule
from tvm.target import Target

from tvm_sparse.codegen import lowering
from tvm_sparse.conv import reference
from tvm_sparse.conv.dtypes import BFLOAT16, FLOAT16, FLOAT32
from tvm_sparse.conv.error_bounds import EXACT
from tvm_sparse.conv.pooled import COLUMNS, FILTERS, pooled_shape
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.storage import rounded, stored
from tvm_sparse.scheduling.kernel import Kernel, apply_decisions
from tvm_sparse.scheduling.space import Space

# Picks one of several options: `random.Random(seed).choice`, or hypothesis drawing from them.
Choose = Callable[[Sequence[Any]], Any]
KERNELS = ((1, 1), (3, 3), (5, 5), (7, 7), (1, 3), (3, 1), (2, 4), (5, 2), (1, 7))
MAPS = (1, 2, 3, 4, 5, 7, 8, 11, 14, 19, 33)
RELUS: tuple[dict[str, Any], ...] = ({}, {"relu": True}, {"relu": True, "relu_max": 2.0})
DENSITIES = (0.1, 0.0, 0.02, 0.3, 0.5, 0.9, 1.0)
STRUCTURES = ("unstructured", "dead filters", "dead channels", "vectors", "tiles", "2:4", "one a filter")
# Of a batch of so many images not every one is compared.
MANY_IMAGES = 16
# Weights are small enough for a kernel to build in a fraction of a second.
MAX_WEIGHTS = 1500
# How often random decisions are chosen anew.
ATTEMPTS = 20


@dataclass(frozen=True)
class Case:
    """A convolution, its weight (K, C / groups, R, S) float32 and the seed of its inputs.

    With `integers`, weights and inputs are small whole numbers and a kernel's result must be exact. With `pools`, a
    kernel writes the largest of each 2x2 outputs.
    """

    spec: ConvSpec
    weight: np.ndarray
    seed: int
    integers: bool
    pools: bool = False

    def __repr__(self) -> str:
        kind = "integers" if self.integers else "normal"
        return f"Case({self.spec!r}, {np.count_nonzero(self.weight)} non-zeros, seed={self.seed}, {kind})"

    def stored_in(self, dtype: str) -> "Case":
        """The case with tensors, and numbers of its weight, of another type."""
        return replace(self, spec=replace(self.spec, dtype=dtype), weight=rounded(self.weight, dtype))

    def worst(self, kernel: Kernel, target: Target) -> float:
        """Build and run `kernel`; its largest error, see `error`."""
        arguments = reference.random_arguments(self.spec, self.seed, self.integers)
        return self.error(arguments, run(kernel, self.spec, arguments, target))

    def error(self, arguments: dict[str, np.ndarray], y: np.ndarray, arithmetic: str = EXACT) -> float:
        """Largest error of an output as a fraction of the bound; 0 or infinity for integers, infinity for NaN.

        Of a large batch the first and the last image are compared. `arithmetic` says how the kernel computes.
        """
        if np.isnan(y).any():
            return float("inf")
        spec, batched = self.spec, {name: value for name, value in arguments.items() if name != "bias"}
        if spec.n >= MANY_IMAGES:
            spec, y = replace(spec, n=2), y[[0, -1]]
            batched = {name: value[[0, -1]] for name, value in batched.items()}
        expected = reference.reference(spec, batched["x"], self.weight, arguments.get("bias"), batched.get("residual"))
        expected = expected.pooled() if self.pools else expected
        if self.integers:
            return 0.0 if np.array_equal(y, stored(expected.value, self.spec.dtype)) else float("inf")
        return expected.within(arithmetic, self.weight).worst(y)


def run(kernel: Kernel, spec: ConvSpec, arguments: dict[str, np.ndarray], target: Target) -> np.ndarray:
    """The output of a kernel, built here; elements that it does not write are NaN."""
    return call(lowering.build(kernel.func, target), spec, arguments, kernel.constants, tvm.cpu(0))


def call(
    library: Any,
    spec: ConvSpec,
    arguments: dict[str, np.ndarray],
    constants: Sequence[np.ndarray],
    device: Any,
    pools: bool = False,
) -> np.ndarray:
    """The output of a built kernel, which may be one that `pools`; elements that it does not write are NaN."""
    epilogue = [arguments[name] for name in ("bias", "residual") if name in arguments]
    y = np.full(pooled_shape(spec) if pools else spec.output_shape, np.nan, spec.dtype)
    tensors = [tvm.runtime.tensor(value, device) for value in (arguments["x"], *constants, *epilogue, y)]
    library["main"](*tensors)
    device.sync()
    return tensors[-1].numpy()


def random_case(choose: Choose) -> Case:
    """A case whose every property is one of those that `choose` is offered; the first are the simplest."""
    spec = random_spec(choose)
    seed = choose(range(2**16))
    integers = choose((True, False))
    return Case(spec, random_weight(spec, choose(DENSITIES), choose(STRUCTURES), seed, integers), seed, integers)


def random_zero_case(choose: Choose) -> Case:
    """A case of a convolution whose weights are all zero."""
    case = random_case(choose)
    return Case(case.spec, np.zeros_like(case.weight), case.seed, case.integers)


def random_spec(choose: Choose) -> ConvSpec:
    """A convolution with any stride, padding, dilation, groups and epilogue, of at most `MAX_WEIGHTS` weights."""
    r, s = choose(KERNELS)
    stride, dilation = (choose((1, 2, 3)), choose((1, 2, 3))), (choose((1, 2, 3)), choose((1, 2)))
    top, left, bottom, right = padding = tuple(choose((0, 1, 2, 3, 5)) for _ in range(4))
    channels, filters = choose((1, 2, 3, 4, 8, 16)), choose((1, 2, 3, 4, 6, 8, 12, 24))
    groups = choose((1, 1, 2, 3))
    if choose((False, False, False, True)):
        channels, filters, groups = 1, choose((1, 1, 2)), choose((2, 3, 5, 8))
    channels = max(1, min(channels, MAX_WEIGHTS // (groups * filters * r * s)))
    return ConvSpec(
        n=choose((1, 2, 3)),
        c=channels * groups,
        h=max(choose(MAPS), dilation[0] * (r - 1) + 1 - top - bottom),
        w=max(choose(MAPS), dilation[1] * (s - 1) + 1 - left - right),
        k=filters * groups,
        r=r,
        s=s,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        bias=choose((False, True)),
        residual=choose((False, True)),
        **choose(RELUS),
    )


def random_linear_case(choose: Choose) -> Case:
    """A case of a linear layer, or of a convolution whose filter covers the whole map."""
    channels = choose((64, 1, 3, 16, 300, 4096))
    rows = {"n": choose((1, 2, 3, 5, 8, 17, 40)), "c": channels, "k": choose((8, 1, 2, 5, 24))}
    epilogue = {**{name: choose((False, True)) for name in ("bias", "residual")}, **choose(RELUS)}
    spec = ConvSpec(**rows, h=1, w=1, r=1, s=1, **epilogue)
    if choose((False, False, False, True)):
        h, w, groups = choose((1, 2, 7)), choose((2, 3, 5)), choose((1, 2, 4))
        spec = ConvSpec(rows["n"], 8, h, w, 12, h, w, groups=groups, **epilogue)
    density = min(choose(DENSITIES), MAX_WEIGHTS / math.prod(spec.weight_shape))
    seed, integers = choose(range(2**16)), choose((True, False))
    structure = choose(("unstructured", "dead filters", "dead channels", "one a filter"))
    return Case(spec, random_weight(spec, density, structure, seed, integers), seed, integers)


def random_images_case(choose: Choose) -> Case:
    """A case of a linear layer on many images, unstructured, dense, or with vectors of filters; in all types."""
    case = random_linear_case(choose)
    spec = replace(case.spec, n=choose((9, 17, 33, 70, 130)), dtype=choose((FLOAT32, FLOAT16, BFLOAT16)))
    if choose((True, False)) or spec.groups > 1:
        return Case(spec, case.weight, case.seed, case.integers)
    spec = replace(spec, k=choose((8, 40)))
    density = choose((0.1, 0.4, 1.0))
    weight = random_weight(spec, 1.0, "unstructured", case.seed, case.integers)
    if density < 1:
        weight = vector_weight(spec, choose((4, 8)), density, case.seed, case.integers)
    return Case(spec, weight, case.seed, case.integers)


def random_tiles_case(choose: Choose) -> Case:
    """A case of a linear layer on many images, large enough for several tiles of filters and slabs of inputs."""
    channels, filters = choose((64, 1, 6, 36, 300, 610, 1111)), choose((64, 1, 40, 129, 300, 300))
    epilogue = {**{name: choose((False, True)) for name in ("bias", "residual")}, **choose(RELUS)}
    spec = ConvSpec(choose((16, 33, 64, 70, 130, 200)), channels, 1, 1, filters, 1, 1, **epilogue)
    density, structure = choose(DENSITIES), choose(("unstructured", "dead filters", "dead channels", "tiles"))
    seed, integers = choose(range(2**16)), choose((True, False))
    return Case(spec, random_weight(spec, density, structure, seed, integers), seed, integers)


def random_vector_case(choose: Choose) -> Case:
    """A case whose weight has vectors of filters that share their zeros."""
    spec, length = random_spec(choose), choose((8, 4, 16, 32))
    spec = replace(spec, k=spec.groups * length * choose((1, 2, 4)))
    channels = max(1, min(spec.c // spec.groups, 4 * MAX_WEIGHTS // (spec.k * spec.r * spec.s)))
    spec, integers = replace(spec, c=channels * spec.groups), choose((True, False))
    seed = choose(range(2**16))
    return Case(spec, vector_weight(spec, length, choose((0.1, 0.4)), seed, integers), seed, integers)


def random_taps_case(choose: Choose) -> Case:
    """A case of 3x3 taps beside each other with few zeros, without a stride or groups."""
    spec, channels = random_spec(choose), choose((8, 1, 3, 20, 33, 64))
    taps = {"r": 3, "s": 3, "stride": (1, 1), "dilation": (1, 1), "groups": 1}
    padding = tuple(choose((1, 0, 2)) for _ in range(4))
    height, width = max(spec.h, 3), max(spec.w, 3)
    spec = replace(spec, **taps, c=channels, k=choose((8, 1, 17, 40, 70)), h=height, w=width, padding=padding)
    seed, integers = choose(range(2**16)), choose((True, False))
    return Case(spec, random_weight(spec, choose((1.0, 0.4)), "unstructured", seed, integers), seed, integers)


def random_slice_case(choose: Choose) -> Case:
    """A case whose filters share their zeros, or have none: vectors, side by side or not, or slices; in all types."""
    spec, length = random_spec(choose), choose((16, 32, 64))
    spec = replace(spec, k=spec.groups * length * choose((1, 2)), dtype=choose((FLOAT32, FLOAT16, BFLOAT16)))
    seed, integers = choose(range(2**16)), choose((True, False))
    kind = choose(("vectors", "slices", "permuted", "dense", "unstructured"))
    weight = random_weight(spec, 1.0, "unstructured", seed, integers)
    if kind in ("vectors", "permuted"):
        weight = vector_weight(spec, length, choose((0.1, 0.4)), seed, integers)
    elif kind == "unstructured":
        weight = random_weight(spec, 0.1, "unstructured", seed, integers)
    elif kind == "slices":
        shape = (spec.k // length, *spec.weight_shape[1:3], 1)
        weight *= (np.random.default_rng(seed).random(shape) < 0.4).repeat(length, axis=0)
    if kind == "permuted":
        weight = permuted(spec, weight, seed)
    return Case(spec, weight, seed, integers).stored_in(spec.dtype)


def random_first_case(choose: Choose) -> Case:
    """A case of images, of four channels at most, in half precision, of as many taps as there are kernels for."""
    spec, (r, s) = random_spec(choose), choose(((3, 3), (5, 5), (7, 7), (11, 11), (3, 4)))
    dilation = choose(((1, 1), (1, 2), (2, 1))) if r <= 5 else (1, 1)
    height, width = dilation[0] * (r - 1) + choose((1, 4, 9, 20)), dilation[1] * (s - 1) + choose((1, 4, 9, 33))
    shape = {"n": choose((1, 2, 3)), "c": choose((3, 1, 2, 4)), "h": height, "w": width, "k": choose((8, 24, 64, 72))}
    taps = {"r": r, "s": s, "stride": (choose((1, 2, 4)), choose((1, 2, 3))), "dilation": dilation}
    spec = replace(spec, **shape, **taps, groups=1, residual=False, dtype=choose((FLOAT16, BFLOAT16)))
    seed, integers = choose(range(2**16)), choose((True, False))
    weight = random_weight(spec, choose((0.1, 1.0)), "unstructured", seed, integers)
    return Case(spec, weight, seed, integers).stored_in(spec.dtype)


def random_depthwise_case(choose: Choose) -> Case:
    """A case with a filter for each channel, in half precision, of taps and strides that there are kernels for."""
    spec, size, stride = random_spec(choose), *choose(((3, 1), (3, 2), (5, 1), (5, 2)))
    channels, pads = choose((8, 24, 40)), tuple(choose(range(size)) for _ in range(4))
    shape = {"n": choose((1, 2)), "c": channels, "k": channels, "groups": channels}
    taps = {"r": size, "s": size, "stride": (stride, stride), "padding": pads, "dilation": (1, 1)}
    maps = {"h": choose((size, 9, 14)), "w": choose((size, 10, 15))}
    spec = replace(spec, **shape, **taps, **maps, residual=False, dtype=choose((FLOAT16, BFLOAT16)))
    seed, integers = choose(range(2**16)), choose((True, False))
    return Case(spec, random_weight(spec, 1.0, "unstructured", seed, integers), seed, integers).stored_in(spec.dtype)


def random_plane_case(choose: Choose) -> Case:
    """A case whose every 64 filters share their zeros, as slices or vectors do, or do not."""
    spec, seed, integers = random_spec(choose), choose(range(2**16)), choose((True, False))
    spec = replace(spec, k=spec.groups * 64 * choose((1, 2)), dtype=choose((FLOAT32, FLOAT16, BFLOAT16)))
    shared = choose(((1, 1, 1), (1, spec.r, 1), (1, spec.r, spec.s), (64, spec.r, spec.s)))
    shape = (spec.k // 64 * shared[0], spec.c // spec.groups, *shared[1:])
    mask = np.random.default_rng(seed).random(shape) < choose((0.1, 0.4, 1.0))
    weight = random_weight(spec, 1.0, "unstructured", seed, integers) * mask.repeat(spec.k // shape[0], axis=0)
    if choose((True, False)):
        weight = permuted(spec, weight, seed)
    return Case(spec, weight, seed, integers).stored_in(spec.dtype)


def permuted(spec: ConvSpec, weight: np.ndarray, seed: int) -> np.ndarray:
    """`weight` with the filters of each group in another order."""
    within = np.random.default_rng(seed).permutation(spec.k // spec.groups)
    return weight[(np.arange(spec.groups)[:, None] * within.size + within).ravel()]


def random_data_case(choose: Choose) -> Case:
    """A case of any type."""
    return random_case(choose).stored_in(choose((FLOAT32, FLOAT16, BFLOAT16)))


def random_quad_case(choose: Choose, dtypes: Sequence[str] = (FLOAT32, FLOAT16, BFLOAT16)) -> Case:
    """A case with a hundred filters and more, so sparse that few of them use three of four positions, or not."""
    spec = random_spec(choose)
    small = {"h": min(spec.h, 14), "w": min(spec.w, 14), "r": min(spec.r, 5), "s": min(spec.s, 5)}
    channels = choose((1, 5, 16, 40)) if small["r"] * small["s"] <= 9 else choose((1, 3))
    spec = replace(spec, **small, c=spec.groups * channels, k=spec.groups * choose((96, 112, 128, 208, 256, 320)))
    density, seed, integers = choose((0.05, 0.1, 0.3)), choose(range(2**16)), choose((True, False))
    kind = choose(("unstructured", "unstructured", "dead channels", "dead filters", "one a filter", "vectors of 16"))
    if kind == "vectors of 16":
        weight = vector_weight(spec, 16, density, seed, integers)
    else:
        weight = random_weight(spec, density, kind, seed, integers)
    return Case(spec, weight, seed, integers).stored_in(choose(dtypes))


def random_pooled_case(choose: Choose) -> Case:
    """A case with a 2x2 max pool behind it, in rows of whole half warps."""
    case = random_case(choose)
    spec = replace(case.spec, stride=(1, 1), residual=False, k=case.spec.groups * FILTERS * choose((1, 2, 3, 6)))
    channels = max(1, min(spec.c // spec.groups, MAX_WEIGHTS // (spec.k * spec.r * spec.s)))
    spec = replace(spec, c=channels * spec.groups)
    h, w = spec.h - spec.out_h + choose((4, 6, 16, 30)), spec.w - spec.out_w + COLUMNS * choose((1, 2, 3, 5))
    # Padding may be all that there is.
    spec = replace(spec, h=h if h > 0 else h % 2 or 2, w=w if w > 0 else w % COLUMNS or COLUMNS)
    weight = random_weight(spec, choose(DENSITIES), choose(STRUCTURES), case.seed, case.integers)
    return Case(spec, weight, case.seed, case.integers, pools=True)


def random_half_case(choose: Choose) -> Case:
    """A case in float16 whose rows of inputs, and of outputs, have an even number of elements, side by side."""
    case = random_case(choose)
    spec = replace(case.spec, stride=(case.spec.stride[0], 1), w=case.spec.w + case.spec.w % 2)
    spec = replace(spec, padding=(*spec.padding[:3], spec.padding[3] + spec.out_w % 2))
    return replace(case, spec=spec).stored_in(FLOAT16)


def vector_weight(spec: ConvSpec, length: int, density: float, seed: int, integers: bool) -> np.ndarray:
    """A weight (K, C / groups, R, S) float32 of this density whose every `length` filters share their zeros."""
    full = random_weight(spec, 1.0, "unstructured", seed, integers)
    mask = np.random.default_rng(seed).random((spec.k // length, *spec.weight_shape[1:])) < density
    return full * mask.repeat(length, axis=0)


def random_weight(spec: ConvSpec, density: float, structure: str, seed: int, integers: bool) -> np.ndarray:
    """A weight (K, C / groups, R, S) float32 of about this density whose zeros have the given structure.

    Some zeros are -0.0, as a mask leaves them that was multiplied in.
    """
    rng = np.random.default_rng(seed)
    shape = spec.weight_shape
    mask = rng.random(shape) < density
    if structure == "dead filters":
        mask[rng.random(spec.k) < 0.5] = False
    elif structure == "dead channels":
        mask[:, rng.random(shape[1]) < 0.5] = False
    elif structure == "vectors":
        mask[:] = mask[:1]
    elif structure == "tiles":
        tiles = rng.random((-(-shape[0] // 4), -(-shape[1] // 4), 1, 1)) < density
        mask[:] = tiles.repeat(4, axis=0).repeat(4, axis=1)[: shape[0], : shape[1]]
    elif structure == "2:4":
        for start in range(0, shape[1], 4):
            order = rng.random(mask[:, start : start + 4].shape)
            mask[:, start : start + 4] = order.argsort(axis=1).argsort(axis=1) < 2
    elif structure == "one a filter":
        mask[:] = False
        mask.reshape(spec.k, -1)[np.arange(spec.k), rng.integers(0, mask[0].size, spec.k)] = True
    values = rng.integers(1, 5, shape) * rng.choice((-1, 1), shape) if integers else rng.standard_normal(shape)
    return (values * mask).astype(np.float32)


def random_kernel(space: Space, weight: np.ndarray, choose: Choose) -> Kernel:
    """The kernel of `space` with every sampled decision chosen anew, tile sizes by a seed that is chosen.

    Decisions that the space refuses are chosen again; its own are kept where it refuses `ATTEMPTS` times.
    """
    schedule = space.scheduled()

    def decide(instruction: Any, _inputs: Any, attributes: Any, _decision: Any) -> Any:
        return choose(range(len(attributes[0]))) if instruction.kind.name == "SampleCategorical" else None

    for _ in range(ATTEMPTS):
        decided = Schedule(space.func, seed=choose(range(1, 2**16)), debug_mask="none")
        schedule.trace.apply_to_schedule(decided, remove_postproc=False, decision_provider=decide)
        if not space.obstacle_of(decided):
            return apply_decisions(space, weight, space.decisions_of(decided))
    return apply_decisions(space, weight)
