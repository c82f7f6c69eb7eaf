"""Operators that compute in either layout: the same numbers, and the others are known as others."""

import numpy as np
import pytest
import zoo
from tvm import relax

from tvm_sparse.compiler.layouts.layout_free import tensors_of, turned

pytestmark = pytest.mark.usefixtures("unoptimised")

SHAPE = (2, 3, 5, 7)
NCHW, NHWC = (0, 3, 1, 2), (0, 2, 3, 1)


def constant(*shape):
    return relax.const(np.random.default_rng(1).uniform(0.5, 2, shape).astype(np.float32))


OPERATORS = {
    "max_pool": lambda x, _: relax.op.nn.max_pool2d(x, (3, 2), (2, 1), (1, 0, 0, 1), (1, 2), ceil_mode=True),
    "avg_pool": lambda x, _: relax.op.nn.avg_pool2d(x, (2, 3), (2, 2), (1, 1), count_include_pad=True),
    "avg_pool without padding": lambda x, _: relax.op.nn.avg_pool2d(x, (2, 3), (1, 2), (1, 1)),
    "concat": lambda x, y: relax.op.concat([x, y, x], axis=1),
    "add": relax.op.add,
    "a constant a channel": lambda x, _: relax.op.subtract(x, constant(1, 3, 1, 1)),
    "a constant a column": lambda x, _: relax.op.divide(constant(1, 1, 1, 7), x),
    "a number": lambda x, _: relax.op.multiply(x, constant()),
    "clip": lambda x, _: relax.op.clip(x, 0.25, 0.75),
    "relu": lambda x, _: relax.op.nn.relu(x),
    "leaky relu": lambda x, _: relax.op.nn.leakyrelu(x, 0.125),
    "silu": lambda x, _: relax.op.nn.silu(x),
    "sigmoid": lambda x, _: relax.op.sigmoid(x),
    "cast": lambda x, _: relax.op.astype(x, "float16"),
}
OTHERS = {
    "mean": lambda x, _: relax.op.mean(x, [2, 3]),
    "concat of columns": lambda x, y: relax.op.concat([x, y], axis=3),
    "a constant of fewer axes": lambda x, _: relax.op.add(x, constant(7)),
    "what is stretched": lambda x, y: relax.op.add(x, relax.op.mean(y, [2, 3], keepdims=True)),
    "pool in another layout": lambda x, _: relax.op.nn.max_pool2d(x, (2, 2), layout="NHWC"),
    "no operator": lambda x, _: x,
}


def module_of(make, shape):
    """A function of two tensors, and the call in it that is looked at."""
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType(shape, "float32")) for name in "xy")
    with builder.function("main", [x, y]):
        with builder.dataflow():
            output = builder.emit_output(builder.normalize(make(x, y)))
        builder.emit_func_output(output)
    return builder.get()


def binding_of(module):
    (block,) = module["main"].body.blocks
    return block.bindings[-1]


@pytest.mark.parametrize("name", OPERATORS)
def test_the_same_in_either_layout(name):
    x, y = (np.random.default_rng(seed).uniform(0.1, 1, SHAPE).astype(np.float32) for seed in range(2))
    (expected,) = zoo.run_relax(module_of(OPERATORS[name], SHAPE), x, y)

    def in_nhwc(own_x, own_y):
        values = [relax.Var(each, relax.TensorType(SHAPE, "float32")) for each in "xy"]
        call = relax.BlockBuilder().normalize(OPERATORS[name](*values))
        assert tensors_of(call)
        return turned(call, dict(zip(values, (own_x, own_y), strict=True)))

    turned_shape = tuple(SHAPE[axis] for axis in NHWC)
    (found,) = zoo.run_relax(module_of(in_nhwc, turned_shape), x.transpose(NHWC).copy(), y.transpose(NHWC).copy())
    np.testing.assert_allclose(found.transpose(NCHW), expected, rtol=1e-6)


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_left_alone(name):
    assert tensors_of(binding_of(module_of(OTHERS[name], SHAPE)).value) == []
