"""Kernels whose tensors lie in blocks of channels: right in all layouts, and evenly shared."""

from __future__ import annotations

import functools
import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
import tvm
import tvm_ffi
from parameters import by_turns, sampled
from random_convolutions import random_spec
from random_convolutions import run as of_kernel
from tvm.tirx import For, ForKind
from vector_units import UNITS

from tvm_sparse.codegen.lowering import build
from tvm_sparse.conv import error_bounds, reference
from tvm_sparse.conv.conv2d_winograd import TileBlocks, transformed_weight
from tvm_sparse.conv.nchwc import NCHW, Layouts
from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu.depthwise_nchwc import DepthwiseNCHWcSpace
from tvm_sparse.scheduling.cpu.fit import MANY_REGISTERS
from tvm_sparse.scheduling.cpu.nchwc import NCHWcSpace
from tvm_sparse.scheduling.cpu.register_tile import depthwise_tile, pixels_of_tile
from tvm_sparse.scheduling.cpu.winograd import WinogradSpace
from tvm_sparse.scheduling.kernel import kernel_of
from tvm_sparse.scheduling.space import Space
from tvm_sparse.target.cpu_info import LINE, CpuInfo
from tvm_sparse.target.resolve import resolve_target

AVX512, AVX2 = CpuInfo(16, "", True), CpuInfo(8, "ymm")
ALL, ALL_OF_8 = (Layouts(cpu.lanes, True, True, True) for cpu in (AVX512, AVX2))
TWO_THREADS = resolve_target({"kind": "llvm", "opt-level": 0, "num-cores": 2})
FULL = {"bias": True, "residual": True, "relu": True}


def conv(c: int, k: int, size: int, taps: int = 1, **options) -> ConvSpec:
    return ConvSpec(1, c, size, size, k, taps, taps, **{"padding": (taps // 2,) * 4, **options})


Make = type[NCHWcSpace] | type[WinogradSpace] | type[DepthwiseNCHWcSpace]


@functools.lru_cache(4)
def built(make: Make, spec: ConvSpec, layouts: Layouts, threads: int) -> tuple[Space, tvm.runtime.Module]:
    """The space and its compiled kernel, which takes any weight."""
    space = make("dense_cpu", spec, AVX2 if layouts.channels == AVX2.lanes else AVX512, layouts, threads)
    kernel = kernel_of(space, space.scheduled(), normal_weight(spec, 1.0, 0))
    return space, compiled(kernel.func, threads)


def computed(
    make: Make, spec: ConvSpec, layouts: Layouts, weight: np.ndarray, arguments: dict[str, np.ndarray], threads: int = 1
) -> np.ndarray:
    """What the kernel writes; outputs are NaN before."""
    space, library = built(make, spec, layouts, threads)
    return run(library, space.constants(weight), layouts, spec, arguments)


def compiled(func: tvm.tirx.PrimFunc, threads: int = 1) -> tvm.runtime.Module:
    return build(func, resolve_target({"kind": "llvm", "opt-level": 0, "num-cores": threads}))


def run(
    library: tvm.runtime.Module,
    constants: tuple[np.ndarray, ...],
    layouts: Layouts,
    spec: ConvSpec,
    arguments: dict[str, np.ndarray],
) -> np.ndarray:
    """What the function writes; outputs are NaN before."""
    arguments = {**arguments, "y": np.full(spec.output_shape, np.nan, np.float32)}
    x, *rest = (layouts.laid_out(name, array) for name, array in arguments.items())
    tensors = [tvm.runtime.tensor(each) for each in (x, *constants, *rest)]
    library["main"](*tensors)
    return layouts.as_nchw("y", tensors[-1].numpy(), spec.output_shape)


def worst_error(
    make: Make,
    spec: ConvSpec,
    layouts: Layouts,
    threads: int = 1,
    integers: bool = False,
    seed: int = 1,
) -> float:
    """Largest error of the kernel as a fraction of its bound."""
    weight = normal_weight(spec, 1.0, seed)
    weight = np.round(2 * weight) if integers else weight
    arguments = reference.random_arguments(spec, seed, integers=integers)
    expected = reference.reference(spec, weight=weight, **arguments)
    found = computed(make, spec, layouts, weight, arguments, threads)
    if make is WinogradSpace:
        return expected.within(error_bounds.WINOGRAD, weight).worst(found)
    assert not integers or np.array_equal(found, expected.value)
    return expected.worst(found)


DILATED = conv(32, 32, 14, 3, padding=(12,) * 4, dilation=(12, 12), **FULL)
SPECS = (
    conv(16, 32, 7, **FULL),
    # Three vectors of filters, as two do not divide them.
    conv(32, 48, 14, 3, **FULL),
    # Filters and channels that leave a part of the last block empty.
    conv(24, 40, 14, 3, **FULL),
    conv(72, 24, 8, **FULL),
    # Five and seven vectors of filters, and half of one.
    conv(8, 80, 14, bias=True, relu=True),
    conv(16, 112, 7, **FULL),
    conv(40, 8, 12, **FULL),
    # Rows that tiles do not divide: in one step but for that, and of blocks of channels.
    conv(16, 32, 17, **FULL),
    conv(192, 48, 17, 3, **FULL),
    ConvSpec(2, 32, 9, 35, 40, 1, 7, stride=(1, 2), padding=(0, 3, 0, 3), **FULL),
    # Several blocks of filters, and of input channels; a residual without ReLU.
    conv(192, 64, 14, bias=True, residual=True),
    conv(512, 32, 6, relu=True),
    conv(32, 64, 8, 3, **FULL),
    conv(48, 32, 15, 3, stride=(2, 2), bias=True, relu=True, relu_max=6.0),
    # A first layer, whose input cannot lie in blocks.
    conv(3, 32, 28, 7, stride=(2, 2), bias=True, relu=True),
    # One tap that skips pixels, images one after the other, and taps that lie apart with padding on one side.
    ConvSpec(3, 32, 9, 11, 32, 1, 1, stride=(2, 2), bias=True),
    ConvSpec(2, 16, 9, 12, 32, 2, 3, dilation=(2, 2), padding=(0, 0, 3, 2), **FULL),
    # Groups of one block of channels and of several, of two vectors of filters and of three.
    conv(64, 128, 14, 3, groups=4, **FULL),
    conv(96, 96, 8, 3, groups=2, stride=(2, 2), bias=True),
    # Groups of one block, of whose seven pixels the sums hide less than a latency.
    conv(48, 48, 7, 3, groups=3, **FULL),
    # Much of what taps read is padding: above and below, and below alone, of one step and of blocks of channels.
    DILATED,
    ConvSpec(2, 192, 7, 12, 32, 5, 1, stride=(2, 1), padding=(0, 0, 6, 0), **FULL),
)


def layouts_of(cpu, spec):
    """Whether the input, the residual and the output lie in blocks, as kernels are made for."""
    return [
        (x, residual, y)
        for x, residual, y in itertools.product((True, False), repeat=3)
        # What is added to filters that leave a part of a block empty lies as they do.
        if (spec.k % cpu.lanes == 0 or residual >= y or not spec.residual) and (NCHWcSpace.reads(spec, cpu) or not x)
    ]


IN_LAYOUTS = [
    [(cpu, spec, each) for each in layouts_of(cpu, spec)] for cpu, spec in itertools.product((AVX512, AVX2), SPECS)
]


@pytest.mark.parametrize(
    ("cpu", "spec", "lies"),
    # Each of the convolutions in some layout, by turns of the processors.
    sampled(
        [*itertools.chain(*IN_LAYOUTS)],
        [each[i % len(each)] for i, each in enumerate(IN_LAYOUTS) if (i % len(SPECS) + i // len(SPECS)) % 2 == 0],
    ),
    ids=lambda each: (
        each.key if isinstance(each, ConvSpec) else f"{each.lanes} lanes" if each in (AVX512, AVX2) else None
    ),
)
def test_all_layouts_match_the_reference(cpu, spec, lies):
    """Exactly, where sums are; of the three tensors each lies in blocks or not."""
    assert NCHWcSpace.writes(spec, cpu)
    assert worst_error(NCHWcSpace, spec, Layouts(cpu.lanes, *lies), integers=True) <= 1
    assert worst_error(NCHWcSpace, spec, Layouts(cpu.lanes, NCHWcSpace.reads(spec, cpu), True, True)) <= 1


def test_what_is_computed_has_a_cut_in_any_layout():
    """Such as rows of four pixels of three vectors: of channels that lie apart a tile has no room for four."""
    for k, width, cpu in itertools.product((8, 20, 24, 40, 56), range(1, 10), (AVX2, AVX512)):
        spec = ConvSpec(1, 8, 6, width, k, 3, 3, padding=(1, 1, 1, 1))
        if NCHWcSpace.computes(spec, cpu):
            assert NCHWcSpace("dense_cpu", spec, cpu, NCHW).cut.tile
            assert NCHWcSpace("dense_cpu", spec, cpu, Layouts(cpu.lanes, True, True, False)).cut.tile


@pytest.mark.parametrize("threads", sampled([2, 3, 7], [3]))
def test_any_number_of_threads_is_right(threads):
    """In the default run each in two layouts, by turns."""
    layouts, few = (ALL, Layouts(16), ALL_OF_8, Layouts(8)), threads == 3
    specs = conv(64, 96, 28, **FULL), conv(32, 64, 28, 3, stride=(2, 2), relu=True), conv(16, 64, 19, 3)
    for number, spec in enumerate(specs):
        for each in layouts[number % 2 :: 2] if few else layouts:
            assert worst_error(NCHWcSpace, spec, each, threads, integers=True) <= 1
    for size, layouts in ((28, ALL), (35, ALL), (14, ALL_OF_8)):
        assert worst_error(WinogradSpace, conv(32, 96, size, 3, **FULL), layouts, threads) <= 1


@pytest.mark.parametrize(
    "spec",
    [
        conv(16, 32, 8, 3, **FULL),
        conv(128, 64, 14, 3, bias=True),
        # Odd sizes, whose last tiles are cut; padding on one side; several images.
        conv(64, 32, 7, 3, **FULL),
        ConvSpec(2, 32, 11, 16, 32, 3, 3, padding=(0, 2, 3, 0), residual=True, relu=True),
    ],
    ids=lambda spec: spec.key,
)
@pytest.mark.parametrize("seed", sampled([1, 2], [1]))
def test_winograd_matches_the_reference(spec, seed):
    for cpu, layouts in ((AVX512, ALL), (AVX2, ALL_OF_8)):
        assert WinogradSpace.writes(spec, cpu)
        assert worst_error(WinogradSpace, spec, layouts, seed=seed) <= 1


OF_ROWS = (
    ConvSpec(1, 6, 9, 9, 40, 3, 3, padding=(1,) * 4, bias=True, relu=True),
    # Rows whose width no tile divides, without padding too; filters that come in fours and that do not.
    ConvSpec(2, 3, 17, 17, 20, 1, 1, residual=True),
    ConvSpec(1, 4, 5, 25, 33, 3, 3, bias=True),
    ConvSpec(1, 3, 23, 23, 8, 7, 7, stride=(2, 2), padding=(3, 3, 3, 3)),
    ConvSpec(1, 5, 12, 20, 7, 3, 5, padding=(2, 4, 1, 3), dilation=(2, 2)),
    # Half precision, which is widened as it is copied.
    ConvSpec(1, 12, 14, 14, 18, 1, 1, bias=True, residual=True, relu=True, dtype="float16"),
)
OF_ROWS_BY_WINOGRAD = (
    ConvSpec(1, 5, 7, 9, 33, 3, 3, padding=(1,) * 4, bias=True, residual=True),
    ConvSpec(1, 64, 6, 60, 16, 3, 3, padding=(1,) * 4, residual=True, relu=True, relu_max=6.0),
    ConvSpec(2, 40, 14, 14, 20, 3, 3, padding=(1,) * 4, relu=True),
    ConvSpec(1, 4, 12, 20, 7, 3, 3, padding=(2, 0, 1, 3), bias=True),
)


@pytest.mark.parametrize("unit", sampled([*UNITS], ["NEON", "AVX2"]))
@pytest.mark.parametrize("make", [NCHWcSpace, WinogradSpace])
def test_tensors_that_lie_as_they_are_match_the_reference(make, unit):
    """With vectors of each length, which any processor computes with those that it has; for several threads too."""
    for spec in OF_ROWS if make is NCHWcSpace else OF_ROWS_BY_WINOGRAD:
        assert make.computes(spec, UNITS[unit])
        weight, arguments = normal_weight(spec, 1.0, 1), reference.random_arguments(spec, 2)
        space = make("dense_cpu", spec, UNITS[unit], NCHW, 2)
        kernel = kernel_of(space, space.scheduled(), weight)
        expected = reference.reference(spec, weight=weight, **arguments)
        expected = expected if make is NCHWcSpace else expected.within(error_bounds.WINOGRAD, weight)
        assert expected.worst(of_kernel(kernel, spec, arguments, TWO_THREADS)) <= 1


def test_a_bound_of_winograds_is_of_the_largest_input():
    """Beside a large input, which a direct kernel multiplies by zero, an output is off by more than its bound there."""
    spec = ConvSpec(1, 1, 8, 8, 1, 3, 3, padding=(1,) * 4)
    weight, x = np.zeros(spec.weight_shape, np.float32), np.full(spec.input_shape, 1e-4, np.float32)
    weight[0, 0, 0, 0], x[0, 0, 3, 3] = 1, 3e4
    space = WinogradSpace("winograd_cpu", spec, AVX2, NCHW)
    y = of_kernel(kernel_of(space, space.scheduled(), weight), spec, {"x": x}, TWO_THREADS)
    expected = reference.reference(spec, x, weight)
    own = expected.within(error_bounds.WINOGRAD, weight)
    assert expected.worst(y) > 100 and own.worst(y) < 1
    # One channel: 13 roundings of four times the input, at nine positions whose weights are 1, 1/2 or 1/4.
    assert own.bound.max() < 1.02 * 13 * error_bounds.FLOAT32_ROUNDOFF * 4 * 3e4 * 4


def test_there_is_no_bound_of_winograds_where_sums_may_overflow():
    spec = ConvSpec(1, 1, 4, 4, 1, 3, 3)
    x, weight = np.full(spec.input_shape, 1e37, np.float32), np.ones(spec.weight_shape, np.float32)
    expected = reference.reference(spec, x, weight)
    assert np.isfinite(expected.bound).all() and np.isinf(expected.within(error_bounds.WINOGRAD, weight).bound).all()


def test_nan_reaches_the_outputs_that_read_it():
    """No others of Winograd's tiles: each output is of those transformed numbers only that its own inputs are in."""
    spec = ConvSpec(1, 2, 8, 8, 4, 3, 3, padding=(1,) * 4)
    weight, arguments = normal_weight(spec, 1.0, 0), reference.random_arguments(spec, 0)
    for pixel in (2, 3):
        arguments["x"][0, 1, pixel, pixel] = np.nan
    space = WinogradSpace("winograd_cpu", spec, AVX2, NCHW)
    y = of_kernel(kernel_of(space, space.scheduled(), weight), spec, arguments, TWO_THREADS)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(reference.conv2d(spec, arguments["x"], weight)))


def test_transformed_weights_lie_in_the_order_of_use():
    weight = normal_weight(ConvSpec(1, 6, 8, 8, 5, 3, 3), 1.0, 0)
    found = transformed_weight(weight, TileBlocks(filters=4, channels=3, rows=1, tiles=1))
    assert found.shape == (2, 4, 4, 6, 4) and found.dtype == np.float32
    # Corners are the filter's, the others sums of its taps.
    assert np.array_equal(found[1, 0, 3, 2], [weight[4, 2, 0, 2], 0, 0, 0])
    assert np.isclose(found[0, 1, 1, 5, 3], weight[3, 5].sum() / 4, rtol=1e-6)


@pytest.mark.parametrize("seed", sampled(range(32), range(6)))
def test_random_convolutions_match_the_reference(seed):
    """With any padding, strides, dilation and epilogues."""
    choose = random.Random(seed).choice
    channels, filters = 16 * choose((1, 2, 5, 12)), 32 * choose((1, 2, 3))
    drawn = (random_spec(choose) for _ in range(10_000))
    changed = (replace(each, c=channels, k=filters, groups=1) for each in drawn)
    make = choose((NCHWcSpace, NCHWcSpace, WinogradSpace))
    cpu, layouts = choose(((AVX512, ALL), (AVX2, ALL_OF_8)))
    spec = next(each for each in changed if make.writes(each, cpu))
    assert worst_error(make, spec, layouts, choose((1, 2, 4)), seed=seed) <= 1


def test_arrays_keep_their_elements():
    array = np.arange(2 * 32 * 3 * 5, dtype=np.float32).reshape(2, 32, 3, 5)
    found = ALL.laid_out("x", array)
    assert found.shape == ALL.shape("x", array.shape) == (2, 2, 3, 5, 16) and found[1, 1, 2, 3, 4] == array[1, 20, 2, 3]
    assert np.array_equal(ALL.as_nchw("x", found, array.shape), array)
    for layouts, name in ((NCHW, "x"), (Layouts(16, y=True), "x")):
        assert layouts.laid_out(name, array) is array and layouts.as_nchw(name, array, array.shape) is array
    array = array[:, :24]
    found = ALL.laid_out("x", array)
    assert found.shape == ALL.shape("x", array.shape) == (2, 2, 3, 5, 16) and not found[:, 1, :, :, 8:].any()
    assert np.array_equal(ALL.as_nchw("x", found, array.shape), array)


def test_a_bias_is_as_long_as_the_output():
    bias = np.arange(1, 25, dtype=np.float32)
    assert ALL.laid_out("bias", bias).tolist() == [*bias.tolist(), *[0.0] * 8]
    assert Layouts(16, x=True).laid_out("bias", bias) is bias


DEPTHWISE = (
    conv(32, 32, 14, 3, groups=32, **FULL),
    conv(48, 48, 15, 5, groups=48, stride=(2, 2), bias=True, relu=True, relu_max=6.0),
    conv(72, 72, 14, 3, groups=72, **FULL),
    ConvSpec(2, 16, 12, 10, 16, 2, 3, groups=16, dilation=(2, 2), padding=(0, 3, 2, 1), residual=True),
    # Rows that tiles do not divide, in several of them, and of fewer pixels than hide a latency.
    conv(32, 32, 19, 3, groups=32, **FULL),
    conv(16, 16, 35, 5, groups=16, stride=(2, 2), bias=True),
    conv(16, 16, 3, 3, groups=16, residual=True),
    conv(16, 16, 1, 3, groups=16, relu=True),
    # Taps beyond both ends of a row, and padding wider than a tile.
    ConvSpec(1, 16, 5, 6, 16, 3, 3, groups=16, dilation=(7, 7), padding=(7,) * 4, **FULL),
    ConvSpec(1, 16, 4, 5, 16, 2, 2, groups=16, padding=(3, 17, 9, 20), **FULL),
    # Much of what taps read is padding.
    conv(32, 32, 7, 5, groups=32, **FULL),
)


@pytest.mark.parametrize(("make", "spec"), [(NCHWcSpace, DILATED), (DepthwiseNCHWcSpace, DEPTHWISE[-1])])
def test_rows_of_padding_are_not_multiplied_with(make, spec):
    """Infinite times zero would be NaN in those rows of the output whose upper taps read padding."""
    weight = normal_weight(spec, 1.0, 1)
    weight[:, :, 0] = np.inf
    found = computed(make, spec, ALL, weight, reference.random_arguments(spec, 1))
    top = spec.padding[0]
    assert np.isfinite(found[:, :, :top]).all() and not np.isfinite(found[:, :, top:]).all()


@pytest.mark.parametrize("spec", DEPTHWISE, ids=lambda spec: spec.key)
def test_depthwise_convolutions_match_the_reference(spec):
    assert DepthwiseNCHWcSpace.writes(spec, AVX512) and not DepthwiseNCHWcSpace.writes(spec, CpuInfo(4, "v"))
    for threads, integers, layouts in ((1, True, ALL), (1, False, ALL), (3, True, ALL), (3, True, ALL_OF_8)):
        assert worst_error(DepthwiseNCHWcSpace, spec, layouts, threads, integers) <= 1


def test_other_depthwise_convolutions_are_not_served():
    for changes in ({"c": 6, "k": 6, "groups": 6}, {"dtype": "float16"}, {"k": 64}):
        assert not DepthwiseNCHWcSpace.writes(replace(DEPTHWISE[0], **changes), AVX512)


@pytest.mark.parametrize("make", [NCHWcSpace, WinogradSpace])
def test_others_are_not_served(make):
    def serves(cpu: CpuInfo = AVX512, **changes) -> bool:
        return make.writes(replace(conv(32, 32, 14, 3), **changes), cpu)

    assert serves()
    # Channels that leave most of a block empty, small groups, half precision, and vectors of four.
    assert not serves(k=6) and not serves(groups=4) and not serves(dtype="float16")
    assert not NCHWcSpace.reads(conv(6, 32, 14), AVX512)
    assert serves(AVX2) and not serves(CpuInfo(4, "v"))
    # A row of three pixels hides nothing, nor do two tiles of Winograd's.
    size = 3 if make is NCHWcSpace else 2
    assert not serves(h=size, w=size)


@pytest.mark.parametrize("threads", [1, 2, 3, 8, 16])
def test_threads_have_equal_shares(threads):
    """Of ResNet-50's layers: the busiest has at most 1.35 times its share."""
    for spec in (conv(64, 256, 56), conv(128, 512, 28), conv(1024, 256, 14), conv(512, 2048, 7), conv(2048, 512, 7)):
        space = NCHWcSpace("dense_cpu", spec, AVX512, ALL, threads)
        tasks = space.cut.tasks(spec, 16)
        assert -(-tasks // threads) * threads <= 1.35 * tasks


@pytest.mark.parametrize(
    ("threads", "layouts"), by_turns((2, 3, 5, 8, 16), (ALL, Layouts(16, x=True), Layouts(16)), 3), ids=str
)
def test_rows_that_nothing_divides_are_shared(threads, layouts):
    """Of Inception v3's 17x17 maps: their rows are in groups, of which the last may be smaller, and are right."""
    spec = ConvSpec(1, 192, 17, 17, 192, 7, 1, padding=(3, 0, 3, 0), **FULL)
    cut = NCHWcSpace("dense_cpu", spec, AVX512, ALL, threads).cut
    busiest = -(-cut.tasks(spec, 16) // threads) * cut.rows * cut.group * cut.vectors
    assert busiest <= 1.3 * 17 * 12 / threads
    assert worst_error(NCHWcSpace, replace(spec, c=32), layouts, threads, integers=True) <= 1


def test_blocks_of_weights_fit_a_level_1_cache():
    """And tiles fetch few lines of the next one."""
    fit = MANY_REGISTERS
    for c, size, taps in ((2048, 7, 1), (1024, 14, 1), (512, 28, 1), (128, 56, 3)):
        spec = conv(c, 512, size, taps)
        space = NCHWcSpace("dense_cpu", spec, AVX512, ALL)
        (weight,) = space.constants(np.zeros(spec.weight_shape, np.float32))
        floats, rows = int(np.prod(weight.shape[2:])), space.cut.rows
        vectors = space.cut.vectors
        assert 4 * floats <= (fit.wide_block_bytes if vectors == 4 else fit.block_bytes)
        assert weight.size == c * 512 * taps * taps
        assert floats / LINE <= fit.fetched_lines * rows * size / pixels_of_tile(size, AVX512, vectors)


def test_the_most_vectors_are_of_weights_in_a_level_1_cache_or_of_many_pixels():
    """Of many registers alone: of 128 channels, of more than 256 unless weights are read for few pixels."""
    for c, size, taps, vectors in ((128, 56, 1, 4), (256, 28, 1, 2), (512, 14, 1, 4), (512, 7, 1, 2), (128, 28, 3, 2)):
        spec = conv(c, 512, size, taps)
        assert NCHWcSpace("dense_cpu", spec, AVX512, ALL).cut.vectors == vectors
        assert NCHWcSpace("dense_cpu", spec, AVX2, ALL_OF_8).cut.vectors == 2


@pytest.mark.parametrize("make", [NCHWcSpace, DepthwiseNCHWcSpace])
def test_the_first_tasks_are_rows_of_all_filters_where_there_are_more_pixels(make):
    """And else filters of all rows; each thread's tasks follow each other."""
    for size, k, are_rows in ((28, 256, True), (14, 512, False)):
        spec = conv(64, k, size) if make is NCHWcSpace else conv(k, k, size, 3, groups=k)
        space = make("dense_cpu", spec, AVX512, ALL, 2)
        kernel = kernel_of(space, space.scheduled(), normal_weight(spec, 1.0, 1))
        arguments = reference.random_arguments(spec, 1)
        found = run(compiled(half_of_tasks(kernel.func)), kernel.constants, ALL, spec, arguments)
        written = np.isfinite(found)
        assert (written[:, :, 0].all(), written[:, 0].all()) == (are_rows, not are_rows)


def half_of_tasks(func: tvm.tirx.PrimFunc) -> tvm.tirx.PrimFunc:
    """`func` with the first half of its parallel loop."""

    def loop(node: For) -> For:
        extent = node.extent // 2 if node.kind == ForKind.PARALLEL else node.extent
        return For(node.loop_var, node.min, extent, node.kind, node.body, annotations=node.annotations)

    return func.with_body(tvm_ffi.structural_map(func.body, (For, loop), order="post"))


def test_depthwise_tiles_compute_few_pixels_twice():
    for cpu, most in ((AVX512, 14), (AVX2, 8)):
        for pixels in range(1, 230):
            tile = depthwise_tile(pixels, cpu)
            assert 1 <= tile <= most and -(-pixels // tile) * tile <= max(1.2 * pixels, pixels + 1)
