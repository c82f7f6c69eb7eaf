"""Dense linear layers on integers of eight bits: exact, and taken where the weight and what it multiplies are such."""

import numpy as np
import pytest
from byte_machines import MACHINES
from tvm import relax

from tvm_sparse.compiler.layouts.byte_products import byte_products
from tvm_sparse.frontend.passes.relax_graph import Graph
from tvm_sparse.scheduling.cpu.byte_product import constants, product


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize(("rows", "k", "c", "least"), [(1, 300, 12, -3), (3, 17, 20, -128)])
def test_products_are_exact(name, rows, k, c, least):
    machine = MACHINES[name]
    if why_not := machine.why_not():
        pytest.skip(why_not)
    unit = machine.unit
    rng = np.random.default_rng(0)
    weight = rng.integers(-128, 128, (k, c)).astype(np.float32)
    x = (rng.integers(0, 256, (rows, c)) + least).astype(np.float32)
    y = np.full((rows, k), np.nan, np.float32)
    found = machine.call(product(rows, k, c, least, unit), [x, *constants(weight, least, unit), y])
    assert np.array_equal(found, x @ weight.T)


@pytest.mark.parametrize(
    ("largest", "bounds", "is_taken"), [(-128, (0, 255), True), (128, (0, 255), False), (127, (0, 256), False)]
)
def test_layers_of_integers_are_taken(largest, bounds, is_taken):
    weight = np.random.default_rng(0).integers(-127, 128, (8, 16)).astype(np.float32)
    weight[0, 0] = largest
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((2, 8), "float32"))
    with builder.function("main", [x]):
        codes = builder.emit(relax.op.clip(builder.emit(relax.op.round(x)), *bounds))
        builder.emit_func_output(builder.emit(relax.op.matmul(codes, relax.const(weight))))
    module = builder.get()
    found = byte_products(relax.BlockBuilder(module), Graph.of(module), [], MACHINES["AVX2"].unit)
    assert bool(found) == is_taken
