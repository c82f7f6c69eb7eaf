"""Kernels that multiply eight-bit integers: exact whatever the cut, and taken for quantised layers alone."""

import dataclasses
import re

import numpy as np
import pytest
from byte_machines import ARM, MACHINES, steps_off, target_of

from tvm_sparse.codegen.lowering import build
from tvm_sparse.compiler.plan.predict import predicted
from tvm_sparse.conv.byte_form import ByteForm, Stage
from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.schedules import byte_cpu
from tvm_sparse.scheduling.cpu import byte_depthwise, byte_kernel, byte_space
from tvm_sparse.scheduling.cpu.byte_groups import of_fours
from tvm_sparse.scheduling.cpu.byte_space import ByteDepthwiseSpace, ByteSpace
from tvm_sparse.scheduling.cpu.line_space import tiles
from tvm_sparse.scheduling.kernel import apply_decisions
from tvm_sparse.scheduling.space import divisors
from tvm_sparse.target.resolve import resolve_target

MAIN, *OTHERS = MACHINES
MACHINE = MACHINES[MAIN]
VNNI = MACHINE.target
PADDED = ConvSpec(1, 16, 6, 7, 8, 3, 3, padding=(1, 1, 1, 1), bias=True, relu=True, least=-100)
FLAT = ConvSpec(2, 16, 4, 4, 8, 1, 1, residual=True, least=0)
LONG = ConvSpec(1, 8, 3, 250, 8, 3, 3, padding=(0, 2, 1, 1), stride=(2, 2), dilation=(1, 2), least=-255)
# Channels that are no fours, and an image that lies as a tile does.
REST = ConvSpec(1, 6, 8, 8, 8, 1, 1, bias=True, least=-7)
# Groups of a four; of two channels and as many filters, of which several are computed as one, as an image lies; and of
# one channel and four filters, all as one.
GROUPED = ConvSpec(2, 16, 6, 7, 128, 3, 3, padding=(1, 1, 1, 1), groups=4, bias=True, least=-100)
PAIRS = ConvSpec(2, 64, 4, 4, 64, 1, 1, groups=32, least=-9)
ALONE = ConvSpec(1, 6, 5, 9, 24, 3, 3, padding=(2, 2, 2, 2), dilation=(2, 2), groups=6, least=-30)
needs_vnni = pytest.mark.skipif(bool(MACHINE.why_not()), reason=MACHINE.why_not())


def on_machines(*names):
    """A test on those of `MACHINES`."""
    chosen = [(MACHINES[each], MACHINES[each].why_not()) for each in names or MACHINES]
    skip = pytest.mark.skipif
    values = [pytest.param(each, id=each.mcpu, marks=skip(bool(why), reason=why or "runs")) for each, why in chosen]
    return pytest.mark.parametrize("machine", values)


def space_of(spec, weight, machine=MACHINE, lines=None):
    """The space of a tile, by default the first."""
    lines = lines or tiles(of_fours(spec), machine.cpu)[0]
    return ByteSpace("byte_cpu", spec, lines, SparsityPattern.of(weight, spec.groups), machine.unit, threads=1)


@needs_vnni
@pytest.mark.parametrize("spec", [PADDED, FLAT, LONG, REST, GROUPED, PAIRS, ALONE])
@pytest.mark.parametrize(("channels", "filters"), [(4, 8), (1, 4)])
def test_sums_are_exact_whatever_the_cut(spec, channels, filters):
    weight = normal_weight(spec, 0.3, 1)
    decisions = {"channels": min(channels, of_fours(spec).c), "filters": min(filters, of_fours(spec).k)}
    for lines in tiles(of_fours(spec), MACHINE.cpu)[::5]:
        space = space_of(spec, weight, lines=lines)
        assert steps_off(MACHINE, space, None, weight, decisions, seed=3) == 0, (lines.rows, lines.width)


@on_machines()
def test_the_largest_products_do_not_saturate(machine):
    spec = dataclasses.replace(FLAT, c=64, residual=False)
    weight = np.full(spec.weight_shape, 127, np.float32)
    weight[::2, 1::2] = -128
    weight[1::4] = -128
    assert steps_off(machine, space_of(spec, weight, machine), None, weight, None, seed=3) == 0


@on_machines()
@pytest.mark.parametrize("channel", range(4))
def test_the_least_weight_alone_in_its_four_is_multiplied(machine, channel):
    spec = dataclasses.replace(FLAT, residual=False)
    weight = np.zeros(spec.weight_shape, np.float32)
    weight[:, channel::4] = -128
    assert steps_off(machine, space_of(spec, weight, machine), None, weight, None, seed=3) == 0


@pytest.mark.parametrize(
    ("spec", "target", "reason"),
    [
        (dataclasses.replace(FLAT, least=1), VNNI, "not known to be integers"),
        (dataclasses.replace(FLAT, c=12, groups=2), VNNI, "groups of 6 channels"),
        (dataclasses.replace(FLAT, c=40_000), VNNI, "40000 products an output, at most 32768"),
        (FLAT, resolve_target({"kind": "llvm", "mcpu": "nehalem"}), "no instructions for them"),
        # Of 32 bits, with dot products.
        (FLAT, target_of("cortex-a76", mtriple="armv8.2a-linux-gnueabihf"), "no instructions for them"),
    ],
)
def test_others_are_not_served(spec, target, reason):
    weight = normal_weight(spec, 0.3, 1)
    assert reason in byte_cpu.FAMILY.can_serve(spec, SparsityPattern.of(weight, spec.groups), target)


@pytest.mark.parametrize(
    ("least", "mcpu", "expected"),
    [(0, "cascadelake", "byte_cpu"), (0, "x86-64-v3", "byte_cpu"), (1, "cascadelake", "csr_cpu")],
)
def test_a_quantised_layer_gets_it_where_it_is_served(least, mcpu, expected):
    target = resolve_target({"kind": "llvm", "mcpu": mcpu, "num-cores": 1})
    spec = ConvSpec(1, 256, 14, 14, 256, 3, 3, padding=(1, 1, 1, 1), least=least)
    weight = normal_weight(dataclasses.replace(spec, least=0), 0.1, 1)
    assert predicted(spec, SparsityPattern.of(weight), target).schedule == expected


# Of sums, one that is clipped further than its tensor, and one that adds a bias in floats and a residual.
_OWN = np.linspace(0.002, 0.02, 8, dtype=np.float32)


def clipped(filters):
    return ByteForm((Stage(np.resize(_OWN, filters), None, -100, 100),), -120)


PLAIN, CLIPPED = ByteForm(), clipped(8)
_SHIFTED = Stage(_OWN[:1], None, -128, 127, shift=np.linspace(-9, 9, 8, dtype=np.float32))
ADDED = ByteForm((_SHIFTED, Stage(np.float32([0.75]), np.float32(0.25), 0, 200)), 0, -3)


@needs_vnni
@pytest.mark.parametrize(
    ("spec", "form"),
    [
        *[(PADDED, CLIPPED), (PADDED, ADDED), (FLAT, PLAIN), (FLAT, ADDED), (LONG, CLIPPED), (REST, CLIPPED)],
        *[(each, clipped(each.k)) for each in (GROUPED, PAIRS, ALONE)],
    ],
)
def test_bytes_are_read_and_written(spec, form, monkeypatch):
    monkeypatch.setattr(byte_kernel, "SUMS_BYTES", 1)
    spec = dataclasses.replace(spec, residual=False, relu=False)
    assert_bytes_are_right(MACHINE, spec, form)


@on_machines(*OTHERS)
@pytest.mark.parametrize(("spec", "form"), [(PADDED, CLIPPED), (PADDED, ADDED), (FLAT, PLAIN), (FLAT, CLIPPED)])
def test_other_machines_read_and_write_bytes(machine, spec, form):
    assert_bytes_are_right(machine, dataclasses.replace(spec, residual=False, relu=False), form)


def assert_bytes_are_right(machine, spec, form):
    weight, fours = normal_weight(spec, 0.3, 1), of_fours(spec)
    decisions = {"channels": min(2, fours.c), "filters": min(8, fours.k)}
    off = steps_off(machine, space_of(spec, weight, machine), form, weight, decisions, seed=1)
    # Products of two scales may be added in one operation.
    assert off <= (0 if form.is_exact else 1)


def depthwise(channels, height, width, rows, columns, stride, padding, **rest):
    """A convolution of each channel."""
    geometry = {"stride": stride, "padding": padding, "groups": channels}
    return ConvSpec(1, channels, height, width, channels, rows, columns, **geometry, **rest)


DEPTHWISE = [
    (depthwise(8, 6, 7, 3, 3, (1, 1), (1, 1, 1, 1), bias=True, least=-100), ADDED),
    (depthwise(6, 3, 3, 3, 3, (1, 1), (1, 1, 1, 1), bias=True, relu=True, least=-9), None),
    (depthwise(8, 9, 40, 3, 3, (2, 2), (0, 0, 1, 1), least=0), CLIPPED),
    (depthwise(8, 9, 20, 5, 5, (1, 1), (2, 2, 2, 2), least=-3), CLIPPED),
    (depthwise(4, 9, 19, 4, 5, (2, 3), (0, 2, 1, 1), bias=True, least=-255), PLAIN),
]


@needs_vnni
@pytest.mark.parametrize(("spec", "form"), DEPTHWISE)
def test_depthwise_ones_read_and_write_bytes(spec, form, monkeypatch):
    # Of the output rows as few in a task as there can be.
    monkeypatch.setattr(byte_depthwise, "PACKED_BYTES", 1)
    assert_depthwise_are_right(MACHINE, spec, form)


@on_machines(*OTHERS)
@pytest.mark.parametrize(("spec", "form"), DEPTHWISE[:3])
def test_depthwise_ones_of_other_machines(machine, spec, form):
    assert_depthwise_are_right(machine, spec, form)


def assert_depthwise_are_right(machine, spec, form):
    weight = normal_weight(spec, 1, 1)
    space = ByteDepthwiseSpace("byte_cpu", spec, machine.unit, threads=1)
    off = steps_off(machine, space, form, weight, {"fours": 1}, seed=1)
    assert off <= (0 if form is None or form.is_exact else 1)


@pytest.mark.parametrize(
    ("mcpu", "instruction"), [("alderlake", r"\{vex\}\s+vpdpbusd"), ("cortex-a76", "sdot"), ("neoverse-v1", "usdot")]
)
def test_the_instructions_are_those_of_the_processor(mcpu, instruction):
    spec, arm = dataclasses.replace(FLAT, residual=False), {} if mcpu == "alderlake" else ARM
    weight, target = normal_weight(spec, 0.3, 1), target_of(mcpu, **arm)
    kernel = apply_decisions(byte_cpu.spaces(spec, SparsityPattern.of(weight), target)[0], weight)
    assert re.search(rf"\s{instruction}\s", str(build(kernel.func, target).inspect_source("s")))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("machine", "part"),
    [
        pytest.param(each, part, id=f"{each.mcpu}-{part}", marks=pytest.mark.skipif(bool(why), reason=why or "runs"))
        for each, why in ((each, each.why_not()) for each in MACHINES.values())
        for part in range(50 if each is MACHINE else 1 if each.is_emulated else 5)
    ],
)
def test_random_quantised_convolutions_are_exact(machine, part, monkeypatch):
    """5,000 on AVX-512 VNNI, 100 a part, and some on others."""
    rng, checked = np.random.default_rng(part), 0
    while checked < 100:
        n, h, w, r, s, *steps = map(int, rng.integers(1, (3, 20, 40, 5, 5, 4, 4, 3, 3)))
        padding = tuple(map(int, rng.integers(0, 3, 4)))
        least, c, k = -int(rng.integers(0, 256)), int(rng.integers(1, 33)), 4 * int(rng.integers(1, 9))
        if (r - 1) * steps[2] >= h or (s - 1) * steps[3] >= w:
            continue
        geometry = {"stride": tuple(steps[:2]), "dilation": tuple(steps[2:]), "padding": padding}
        is_depthwise, is_grouped = (rng.integers(4) == each for each in (0, 1))
        if is_depthwise:
            c, geometry = k, geometry | {"groups": k, "dilation": (1, 1)}
        elif is_grouped:
            groups = int(rng.choice(divisors(k)))
            c, geometry = groups * int(rng.choice([1, 2, 4, 8])), geometry | {"groups": groups}
            is_depthwise = byte_space.is_depthwise(ConvSpec(n, c, h, w, k, r, s, **geometry))
        spec = ConvSpec(n, c, h, w, k, r, s, **geometry, bias=bool(rng.integers(2)), least=least)
        own = rng.uniform(1e-4, 0.02, k).astype(np.float32)
        last = Stage(rng.uniform(0.2, 1.5, 1).astype(np.float32), np.float32(rng.uniform(0.1, 1)), 0, 255)
        clipped = ByteForm((Stage(own, None, least, least + 255),), least)
        form = [PLAIN, clipped, ByteForm((Stage(own, None, -90, 90), last), 0, least)][rng.integers(3)]
        weight = normal_weight(spec, float(rng.choice([0.1, 0.5, 1])), part)
        if is_depthwise:
            monkeypatch.setattr(byte_depthwise, "PACKED_BYTES", rng.choice([1, 2048, 1 << 14]))
            space = ByteDepthwiseSpace("byte_cpu", spec, machine.unit, threads=1)
            values = {"fours": divisors(k // 4)}
        else:
            lines = rng.choice(np.array(tiles(of_fours(spec), machine.cpu), object))
            space = space_of(spec, weight, machine, lines)
            values = {
                "channels": divisors(lines.spec.c),
                "filters": [each for each in divisors(lines.spec.k) if each % 4 == 0],
            }
        decisions = {name: int(rng.choice(each)) for name, each in values.items()}
        off = steps_off(machine, space, form, weight, decisions, seed=checked)
        assert off <= (0 if form.is_exact else 1), (spec, form, space.variant, decisions)
        checked += 1
