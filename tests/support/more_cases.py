"""Cases of one node, written here, of what neither ONNX's node tests nor changes of them cover."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from made_cases import array_as, with_expected
from node_tests import Case
from onnx import TensorProto, helper, numpy_helper

FLOATS = ("float32", "float64", "float16")
TYPES = (*FLOATS, "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")


def array(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    """Normal numbers, as `dtype` has them."""
    return array_as(np.random.default_rng(seed).standard_normal(shape).astype("float32"), dtype)


def case(
    name: str,
    opset: int,
    operator: str,
    inputs: list[Any],
    constants: int = 0,
    outputs: int = 1,
    by_runtime: bool = False,
    **attributes: Any,
) -> Case:
    """A node whose last `constants` inputs are initializers; an input that is None is left out."""
    names = ["" if each is None else f"x{index}" for index, each in enumerate(inputs)]
    given = [(name, np.asarray(each)) for name, each in zip(names, inputs, strict=True) if name]
    first = len(given) - constants
    node = helper.make_node(operator, names, [f"y{index}" for index in range(outputs)], name="node", **attributes)
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
        for name, each in given[:first]
    ]
    tensors = [numpy_helper.from_array(each, name) for name, each in given[first:]]
    graph = helper.make_graph([node], "graph", values, [], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    found = with_expected(Case(f"more|{operator}|{name}", model, [each for _, each in given[:first]], []), by_runtime)
    assert found is not None, name
    return found


def more_cases() -> Iterator[Case]:
    """All of them."""
    yield from casts()
    yield from layers()
    yield from shapes()


def casts() -> Iterator[Case]:
    """From each type to each."""
    for source, wanted in itertools.product(TYPES, TYPES):
        to = helper.np_dtype_to_tensor_dtype(np.dtype(wanted))
        yield case(f"{source} to {wanted}", 13, "Cast", [array(3, 5, dtype=source)], to=to)
    for opset in (9, 19, 21, 23, 24, 25, 28):
        yield case(f"of opset {opset}", opset, "Cast", [array(3, 5)], to=TensorProto.INT32)


def layers() -> Iterator[Case]:
    """Convolutions of every rank, with groups and dilation, and normalisations."""
    for operator, opset, axes in itertools.product(("Conv", "ConvTranspose"), (9, 11, 22), (1, 2, 3)):
        weights = [array(4, 2, *[3] * axes), array(4)]
        settings = {"group": 2, "strides": [2] * axes, "pads": [1] * axes + [0] * axes, "dilations": [2] * axes}
        x = array(1, 4, *[7] * axes)
        yield case(f"{axes} axes, opset {opset}", opset, operator, [x, *weights], 2, **settings)
    for mode, axes in itertools.product(("SAME_UPPER", "SAME_LOWER"), (1, 2, 3)):
        x, w = array(1, 4, *[7] * axes), array(4, 2, *[4] * axes)
        settings = {"auto_pad": mode, "kernel_shape": [4] * axes, "strides": [2] * axes}
        for operator in ("Conv", "ConvTranspose"):
            yield case(f"{mode}, {axes} axes", 11, operator, [x, w], 1, group=2, **settings)
        for operator in ("AveragePool", "LpPool", "MaxPool"):
            yield case(f"{mode}, {axes} axes", 11, operator, [x], by_runtime=True, **settings)
    for opset, dtype in itertools.product((6, 22), ("float32", "float64")):
        x, vector = array(2, 3, 4, 5, dtype=dtype), array(3, dtype=dtype)
        yield case(f"{dtype}, opset {opset}", opset, "InstanceNormalization", [x, vector, vector], 2)
    weights = [array(4, 2, 3, 3), array(2)]
    yield case("computed weights", 11, "ConvTranspose", [array(1, 4, 5, 5), *weights])
    inputs = [array(3, 4), np.float32(0.5), np.asarray(False)]
    yield case("not in training", 13, "Dropout", inputs, 2, by_runtime=True)
    for axes in (1, 2, 3):
        yield case(f"{axes} axes", 17, "GlobalLpPool", [array(1, 2, *[3] * axes)], by_runtime=True, p=1)
    for size in (1, 3, 5, 7, 9):
        yield case(f"size {size}", 13, "LRN", [array(2, 8, 4, 5)], by_runtime=True, size=size, alpha=0.5)
    for dtype in ("float32", "float64"):
        x, matrix = array(2, 3, 4, 5, dtype=dtype), array(4, 5, dtype=dtype)
        yield case(dtype, 17, "LayerNormalization", [x, matrix, matrix], 2, axis=2)


def shapes() -> Iterator[Case]:
    """What moves numbers, of operator sets in which more of it were attributes."""
    for mode in ("constant", "edge", "reflect"):
        yield case(mode, 10, "Pad", [array(2, 3, 4, 5)], mode=mode, pads=[0, 0, 1, 2, 0, 0, 2, 1])
    # Any order is right where none is asked for, so that which is asked for is.
    top = case("sorted or not", 11, "TopK", [array(3, 8), np.int64([3])], 1, 2, sorted=1)
    top.model.graph.node[0].attribute[0].i = 0
    yield top
    grid = array(1, 3, 4, 2) / 2
    for mode in ("bilinear", "bicubic", "nearest"):
        yield case(f"{mode} of opset 16", 16, "GridSample", [array(1, 2, 5, 6), grid], by_runtime=True, mode=mode)
    for dtype in ("int8", "uint8"):
        zero = np.asarray(3, dtype)
        # Scales that are constants are written out.
        yield case(f"{dtype} of opset 13", 13, "QuantizeLinear", [array(3, 4), np.float32(0.1), zero])
    for mode in ("nearest", "linear"):
        yield case(mode, 9, "Upsample", [array(1, 2, 4, 5), np.float32([1, 1, 2, 2])], 1, mode=mode)
