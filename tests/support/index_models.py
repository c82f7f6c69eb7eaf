"""Small models with every operator that reads or writes where its input says, and inputs meant to lead it astray."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from torch.nn import functional as F

X = (2, 3, 8)
IMAGE = (2, 3, 7, 5)
FLOATS = (np.nan, np.inf, -np.inf, 1e30, -1e30, 2.0**31, -(2.0**31) - 1e3, 2.0**63, 1e-45)


@dataclass(frozen=True)
class Input:
    """One input: indices below `size`, or floating-point numbers without one."""

    shape: tuple[int, ...]
    size: int = 0
    dtype: str = "int64"

    def draw(self, rng: np.random.Generator, hostile: bool) -> np.ndarray:
        """Random values; with `hostile` some that must not be followed."""
        if not self.size:
            array = np.asarray(rng.standard_normal(self.shape) * 3, np.float32)
            return _sown(rng, array, FLOATS) if hostile else array
        array = np.asarray(rng.integers(0, self.size, self.shape), self.dtype)
        info, n = np.iinfo(self.dtype), self.size
        far = (n, n + 1, -1, -n, -n - 1, 2**31, 2**31 - 1, 2**32 + 1, -(2**31), info.min, info.max, info.min + 1)
        return _sown(rng, array, [each for each in far if info.min <= each <= info.max]) if hostile else array


def _sown(rng, array, values):
    flat = array.reshape(-1)
    flat[rng.integers(0, flat.size, rng.integers(1, 3))] = rng.choice(np.asarray(values, array.dtype))
    return array


@dataclass(frozen=True)
class Case:
    """A model with example inputs; `reference` computes the same, or raises. Without, results are not compared."""

    source: Callable[[], tuple[object, tuple | None]]
    inputs: Sequence[Input]
    reference: Callable[[list[np.ndarray]], list[np.ndarray]] | None

    @property
    def is_of_indices(self) -> bool:
        """Whether a call is wrong exactly where the reference says so."""
        return any(each.size for each in self.inputs)


def _onnx_case(nodes, inputs, constants=(), compared=True, opset=18):
    """A graph whose inputs are x0, x1, ... and whose output is y."""
    kinds = {"int64": TensorProto.INT64, "int32": TensorProto.INT32}
    infos = [
        helper.make_tensor_value_info(f"x{i}", kinds[each.dtype] if each.size else TensorProto.FLOAT, each.shape)
        for i, each in enumerate(inputs)
    ]
    tensors = [numpy_helper.from_array(value, name) for name, value in dict(constants).items()]
    result = helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)
    graph = helper.make_graph(nodes, "graph", infos, [result], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    model = onnx.shape_inference.infer_shapes(model)

    def source():
        path = Path(tempfile.mkdtemp()) / "model.onnx"
        onnx.save(model, path)
        return path, None

    def reference(arrays):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return session.run(None, {f"x{i}": array for i, array in enumerate(arrays)})

    return Case(source, inputs, reference if compared else None)


class _Module(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function, self.embedding = function, nn.Embedding(11, 4)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def _torch_case(function, *inputs, compared=True):
    torch.manual_seed(0)
    module = _Module(function).eval()
    examples = [each.draw(np.random.default_rng(0), hostile=False) for each in inputs]

    def reference(arrays):
        with torch.no_grad():
            return [module(*map(torch.from_numpy, arrays)).numpy()]

    return Case(lambda: (module, tuple(map(torch.from_numpy, examples))), inputs, reference if compared else None)


def _node(kind, *inputs, **attributes):
    return helper.make_node(kind, inputs, ["y"], name=f"the_{kind}", **attributes)


def _grid(**attributes):
    return _onnx_case([_node("GridSample", "x0", "x1", **attributes)], [Input(IMAGE), Input((2, 4, 5, 2))], opset=16)


def _scatter(kind, shape, updates, **attributes):
    size = 2 if kind == "ScatterND" else X[attributes.get("axis", 0)]
    return _onnx_case([_node(kind, "x0", "x1", "x2", **attributes)], [Input(X), Input(shape, size), Input(updates)])


def _sizes_alike(node, *inputs, **constants):
    return _onnx_case([node], inputs, constants)


_ROIS = [Input(IMAGE), Input((4, 4)), Input((4,), 2)]
_WEIGHT = np.random.default_rng(1).standard_normal((3, 3, 3, 3)).astype(np.float32)


def _rois(**attributes):
    # ONNX Runtime does not look at the batch indices.
    node = _node("RoiAlign", "x0", "x1", "x2", output_height=2, output_width=3, sampling_ratio=2, **attributes)
    return _onnx_case([node], _ROIS, compared=False)


def _cast_then_gather():
    nodes = [
        helper.make_node("Cast", ["x1"], ["i"], to=TensorProto.INT32),
        helper.make_node("Clip", ["i", "low", "high"], ["j"]),
        _node("Gather", "x0", "j", axis=2),
    ]
    constants = {"low": np.int32(0), "high": np.int32(7)}
    return _onnx_case(nodes, [Input(X), Input((3, 2))], constants, compared=False)


CASES: dict[str, Callable[[], Case]] = {
    "Gather": lambda: _sizes_alike(_node("Gather", "x0", "x1", axis=1), Input(X), Input((2, 2), 3)),
    "Gather int32": lambda: _sizes_alike(_node("Gather", "x0", "x1", axis=2), Input(X), Input((5,), 8, "int32")),
    "Gather scalar": lambda: _sizes_alike(_node("Gather", "x0", "x1", axis=1), Input(X), Input((), 3)),
    "Gather of a constant": lambda: _sizes_alike(
        _node("Gather", "table", "x1"), Input(X), Input((2, 3), 10), table=np.random.rand(10, 16).astype(np.float32)
    ),
    "GatherElements": lambda: _sizes_alike(_node("GatherElements", "x0", "x1", axis=2), Input(X), Input(X, 8)),
    "GatherElements axis 0": lambda: _sizes_alike(_node("GatherElements", "x0", "x1"), Input(X), Input((5, 3, 8), 2)),
    "GatherND": lambda: _sizes_alike(_node("GatherND", "x0", "x1"), Input(X), Input((4, 2), 2)),
    "GatherND whole": lambda: _sizes_alike(_node("GatherND", "x0", "x1"), Input(X), Input((4, 3), 2)),
    "GatherND batch": lambda: _sizes_alike(_node("GatherND", "x0", "x1", batch_dims=1), Input(X), Input((2, 4, 2), 3)),
    "ScatterElements": lambda: _scatter("ScatterElements", X, X, axis=2),
    "ScatterElements add": lambda: _scatter("ScatterElements", (2, 3, 5), (2, 3, 5), axis=2, reduction="add"),
    "ScatterND": lambda: _scatter("ScatterND", (4, 2), (4, 8)),
    "ScatterND add": lambda: _scatter("ScatterND", (4, 3), (4,), reduction="add"),
    "OneHot": lambda: _sizes_alike(
        _node("OneHot", "x1", "depth", "values"),
        Input(X),
        Input((3, 2), 6),
        depth=np.int64(6),
        values=np.array([0, 1], np.float32),
    ),
    "GridSample": lambda: _grid(mode="bilinear", padding_mode="zeros"),
    "GridSample border": lambda: _grid(mode="bilinear", padding_mode="border", align_corners=1),
    "GridSample reflection": lambda: _grid(mode="bilinear", padding_mode="reflection"),
    "GridSample nearest": lambda: _grid(mode="nearest", padding_mode="zeros"),
    "GridSample cubic": lambda: _grid(mode="bicubic", padding_mode="reflection"),
    "RoiAlign": _rois,
    "RoiAlign max": lambda: _rois(mode="max"),
    "MaxRoiPool": lambda: _onnx_case(
        [_node("MaxRoiPool", "x0", "x1", pooled_shape=[2, 2])], [Input(IMAGE), Input((3, 5))], compared=False
    ),
    "Cast": _cast_then_gather,
    "Resize": lambda: _sizes_alike(
        _node("Resize", "x0", "", "scales", mode="linear"), Input(IMAGE), scales=np.array([1, 1, 2, 3], np.float32)
    ),
    "MaxPool": lambda: _sizes_alike(
        _node("MaxPool", "x0", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]), Input(IMAGE)
    ),
    "AveragePool": lambda: _sizes_alike(
        _node("AveragePool", "x0", kernel_shape=[3, 3], pads=[1, 0, 1, 2], strides=[2, 1]), Input(IMAGE)
    ),
    "Conv": lambda: _sizes_alike(_node("Conv", "x0", "w", pads=[1, 1, 1, 1]), Input(IMAGE), w=_WEIGHT),
    "TopK": lambda: _onnx_case(
        [helper.make_node("TopK", ["x0", "k"], ["v", "i"]), _node("GatherElements", "x0", "i", axis=2)],
        [Input(X)],
        {"k": np.array([3])},
        compared=False,
    ),
    "MaxUnpool": lambda: _onnx_case(
        [_node("MaxUnpool", "x0", "x1", kernel_shape=[2, 2], strides=[2, 2])],
        [Input((1, 1, 3, 3)), Input((1, 1, 3, 3), 36)],
        compared=False,
    ),
    "NonMaxSuppression": lambda: _onnx_case(
        [_node("NonMaxSuppression", "x0", "x1", "k", "t")],
        [Input((1, 6, 4)), Input((1, 1, 6))],
        {"k": np.array([3]), "t": np.array([0.5], np.float32)},
        compared=False,
    ),
    "torch embedding": lambda: _torch_case(lambda m, i: m.embedding(i), Input((3, 2), 11)),
    "torch embedding int32": lambda: _torch_case(lambda m, i: m.embedding(i), Input((5,), 11, "int32")),
    "torch gather": lambda: _torch_case(lambda m, x, i: x.gather(1, i), Input(X), Input((2, 2, 8), 3)),
    "torch index": lambda: _torch_case(lambda m, x, i: x[:, i], Input(X), Input((2, 2), 3)),
    "torch index pair": lambda: _torch_case(lambda m, x, i: x[i, i], Input(X), Input((4,), 2)),
    "torch index_select": lambda: _torch_case(lambda m, x, i: x.index_select(2, i), Input(X), Input((5,), 8)),
    "torch take": lambda: _torch_case(lambda m, x, i: x.take(i), Input(X), Input((5, 2), 48)),
    "torch take_along_dim": lambda: _torch_case(lambda m, x, i: x.take_along_dim(i, 2), Input(X), Input(X, 8)),
    "torch scatter": lambda: _torch_case(
        lambda m, x, i, u: x.scatter(2, i, u), Input(X), Input((2, 3, 2), 8), Input((2, 3, 2))
    ),
    "torch scatter value": lambda: _torch_case(lambda m, x, i: x.scatter(2, i, 1.5), Input(X), Input((2, 3, 1), 8)),
    "torch index_put": lambda: _torch_case(
        lambda m, x, i: x.index_put((i, i, i), torch.tensor(2.0)), Input((4, 4, 4)), Input((3,), 4)
    ),
    "torch index_fill": lambda: _torch_case(
        lambda m, x, i: x.index_fill(1, i, 2.0), Input((3, 8)), Input((2,), 8), compared=False
    ),
    "torch one_hot": lambda: _torch_case(lambda m, i: F.one_hot(i, 6).float(), Input((3, 2), 6)),
    "torch grid_sample": lambda: _torch_case(
        lambda m, x, g: F.grid_sample(x, g, align_corners=False), Input(IMAGE), Input((2, 4, 5, 2)), compared=False
    ),
    "torch long then index": lambda: _torch_case(lambda m, x, f: x[:, f.long()], Input(X), Input((4,))),
    "torch sort": lambda: _torch_case(lambda m, x: x.sort(2).values, Input(X), compared=False),
    "torch argmax then gather": lambda: _torch_case(
        lambda m, x: x.gather(2, x.argmax(2, keepdim=True)), Input(X), compared=False
    ),
    "torch bucketize": lambda: _torch_case(
        lambda m, x: torch.bucketize(x, torch.arange(5.0)), Input(X), compared=False
    ),
    "torch interpolate": lambda: _torch_case(
        lambda m, x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), Input(IMAGE), compared=False
    ),
}
