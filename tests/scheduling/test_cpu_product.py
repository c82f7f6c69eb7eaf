"""Dense linear layers: right where images and filters do not fill the register tiles, and these little empty."""

import pytest
from random_convolutions import run
from vector_units import UNITS

from tvm_sparse.conv import reference
from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu.product import ProductSpace
from tvm_sparse.scheduling.kernel import apply_decisions
from tvm_sparse.target.cpu_info import REGISTERS
from tvm_sparse.target.resolve import resolve_target


def linear(images: int, channels: int, filters: int, **options) -> ConvSpec:
    return ConvSpec(images, channels, 1, 1, filters, 1, 1, **options)


SPECS = (
    linear(49, 64, 96, bias=True, relu=True),
    linear(13, 7, 10, bias=True, residual=True),
    # The last tiles go beyond the last image and filter; one image, and one filter.
    linear(11, 24, 200, residual=True, relu=True, relu_max=6.0),
    linear(1, 33, 1000, bias=True),
    linear(5, 40, 1),
)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("unit", ["AVX-512", "AVX2", "SSE"])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.key)
def test_matches_the_reference(spec, unit, threads):
    weight, arguments = normal_weight(spec, 1.0, 1), reference.random_arguments(spec, 2)
    space = ProductSpace("dense_cpu", spec, UNITS[unit].lanes, threads)
    found = run(
        apply_decisions(space, weight),
        spec,
        arguments,
        resolve_target({"kind": "llvm", "opt-level": 0, "num-cores": threads}),
    )
    assert reference.reference(spec, weight=weight, **arguments).worst(found) <= 1


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(("images", "filters"), [(3136, 96), (784, 192), (196, 1536), (49, 768), (197, 2304)])
def test_little_is_computed_beyond_the_end(images, filters, unit):
    """Of ConvNeXt's and ViT's layers, with sums that fit the registers beside weights and images."""
    lanes = UNITS[unit].lanes
    space = ProductSpace("dense_cpu", linear(images, 384, filters), lanes)
    rows, columns = -(-images // space.images) * space.images, -(-filters // space.filters) * space.filters
    assert rows * columns <= 1.03 * images * filters
    assert space.images > 1 and space.images * space.filters <= 3 / 4 * REGISTERS[lanes] * lanes
