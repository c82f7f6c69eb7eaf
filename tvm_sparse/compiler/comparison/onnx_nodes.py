"""Every node of an ONNX model compiled and run alone, to find the first that is wrong."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvm_sparse.compiler.checking.random_inputs import outputs_of
from tvm_sparse.compiler.comparison.differences import worst_difference
from tvm_sparse.compiler.comparison.onnx_process import OnnxProcess
from tvm_sparse.compiler.comparison.reference import Alone, NotCompared, Settled
from tvm_sparse.conv.reference import AGREEMENT
from tvm_sparse.errors import TvmSparseError
from tvm_sparse.frontend.onnx.graph.constants import array_of, onnx_tensors
from tvm_sparse.frontend.onnx.quantised.operators import is_quantising
from tvm_sparse.frontend.optional_imports import onnx
from tvm_sparse.runtime.multi_shape_model import AnyModel

# For ONNX's reference implementation, with one node.
EVALUATOR_S = 10.0
# Constants with more elements are weights: nodes that differ in nothing else are compiled once.
SMALL = 64
# The file of the node that is looked at.
NODE = "node.onnx"


class NodeSearch:
    """The nodes of `model`, in float32 with fixed shapes, one by one on what `engine` gave for those before.

    A node is right that agrees with the engine, or with ONNX's reference implementation. In the second case the engine
    is given our value for what follows.
    """

    def __init__(
        self,
        process: OnnxProcess,
        engine: str,
        model: Any,
        inputs: Sequence[np.ndarray],
        alone: Alone,
        end_s: float,
    ):
        self._process, self._engine, self._model, self._alone, self._end_s = process, engine, model, alone, end_s
        self._constants = {name: array_of(tensor) for name, tensor in onnx_tensors(model).items()}
        names = [value.name for value in model.graph.input if value.name not in self._constants]
        self._given = dict(zip(names, inputs, strict=True))
        # Our values of nodes about which the engine and the reference implementation disagree.
        self._ours: dict[str, np.ndarray] = {}
        # What compiles to the same -> the compiled node, None where it is refused.
        self._compiled: dict[str, AnyModel | None] = {}

    def run(self) -> Settled:
        """Look at node after node; NotCompared where the engine does not show what is between the nodes."""
        tensors, disputed = self._tensors(), []
        for node in self._model.graph.node:
            if time.monotonic() > self._end_s:
                break
            result = self._judged(node, tensors)
            if result is None:
                continue
            found, difference = result
            if difference:
                kind = f"node {node.name or node.output[0]} ({node.op_type})"
                return Settled(wrong=kind, difference=difference)
            disputed.append(f"{node.op_type} {node.name or node.output[0]}")
            self._ours |= zip((name for name in node.output if name), found, strict=True)
            tensors = self._tensors()
        outputs = [tensors[value.name] for value in self._model.graph.output]
        return Settled(outputs=outputs, disputed=tuple(disputed))

    def _tensors(self) -> dict[str, np.ndarray]:
        """Every tensor of the model, as the engine computes it behind `_ours`."""
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        graph = model.graph
        kept = [node for node in graph.node if not self._ours.keys() & set(node.output)]
        names = [name for node in kept for name in node.output if name]
        if not names:
            # An engine runs no model without outputs.
            return {**self._constants, **self._given, **self._ours}
        given = {f"{name}__ours": array for name, array in self._ours.items()}
        del graph.node[:], graph.output[:]
        graph.node.extend(onnx.helper.make_node("Identity", [f"{name}__ours"], [name]) for name in self._ours)
        graph.node.extend(kept)
        graph.input.extend(self._info(name, array) for name, array in given.items())
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
        path = self._process.save(model, f"all-{len(self._ours)}.onnx")
        found = self._process.run(self._engine, path, [*self._given.values(), *given.values()])
        return {**self._constants, **self._given, **self._ours, **dict(zip(names, found, strict=True))}

    def _judged(self, node: Any, tensors: Mapping[str, np.ndarray]) -> tuple[list[np.ndarray], str] | None:
        """Our outputs of a node that differs from the engine, and the difference where it is wrong; else None."""
        arrays = {name: tensors[name] for name in node.input if name}
        if not arrays or any(attribute.HasField("g") for attribute in node.attribute):
            return None
        expected = {name: tensors[name] for name in node.output if name}
        constants = arrays.keys() & self._constants.keys()
        # What a shape or an axis is computed of is constant once the network is imported.
        integers = {name for name, array in arrays.items() if array.dtype.kind in "iu"}
        for constant in (constants, constants | integers):
            # A model needs an input.
            fixed = constant if constant != arrays.keys() else constant & integers
            key = _key(node, arrays, fixed)
            if self._compiled.get(key) is not None and any(arrays[name].size > SMALL for name in fixed):
                return None
            self._write(node, arrays, fixed, expected)
            if key not in self._compiled:
                self._compiled[key] = self._compile()
            compiled = self._compiled[key]
            if compiled is not None:
                inputs = [array for name, array in arrays.items() if name not in fixed]
                return self._differs(node, outputs_of(compiled, inputs), list(expected.values()), inputs)
        return None

    def _compile(self) -> AnyModel | None:
        """The node that was written last; None where it is refused, such as one whose shape depends on values."""
        try:
            return self._alone(self._node_path)
        except TvmSparseError:
            return None

    def _differs(
        self, node: Any, found: list[np.ndarray], expected: list[np.ndarray], inputs: list[np.ndarray]
    ) -> tuple[list[np.ndarray], str] | None:
        """See `_judged`; the node was written last."""
        text = worst_difference(found, expected, AGREEMENT).text
        if not text or (is_quantising(node) and are_a_step_apart(found, expected)):
            return None
        try:
            second = self._process.run("evaluator", self._node_path, inputs, EVALUATOR_S)
        except NotCompared:
            return found, text
        return found, worst_difference(found, second, AGREEMENT).text and text

    @property
    def _node_path(self) -> Path:
        return self._process.path(NODE)

    def _write(
        self, node: Any, arrays: Mapping[str, np.ndarray], fixed: set[str], expected: Mapping[str, np.ndarray]
    ) -> None:
        """Write a model of one node, whose inputs `fixed` are constants."""
        initializers = [onnx.numpy_helper.from_array(arrays[name], name) for name in fixed]
        inputs = [self._info(name, array) for name, array in arrays.items() if name not in fixed]
        outputs = [self._info(*each) for each in expected.items()]
        graph = onnx.helper.make_graph([node], "node", inputs, outputs, initializers)
        model = onnx.helper.make_model(graph, opset_imports=self._model.opset_import, ir_version=self._model.ir_version)
        self._process.save(model, NODE)

    def _info(self, name: str, array: np.ndarray) -> Any:
        return onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def are_a_step_apart(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> bool:
    """Whether integers differ by one at most: quotients of two scales may be rounded in other orders."""
    pairs = zip(found, expected, strict=True)
    return all(y.dtype.kind in "iu" and bool((abs(x.astype(np.int64) - y) <= 1).all()) for x, y in pairs)


def _key(node: Any, arrays: Mapping[str, np.ndarray], fixed: set[str]) -> str:
    """Equal for nodes that are compiled to the same, but for the values of weights."""
    digest = hashlib.sha256(f"{node.domain} {node.op_type} {[bool(name) for name in node.output]}".encode())
    for attribute in sorted(node.attribute, key=lambda each: each.name):
        digest.update(attribute.SerializeToString(deterministic=True))
    names = list(arrays)
    for name in node.input:
        digest.update(f"{names.index(name) if name else None}".encode())
    for name, array in arrays.items():
        digest.update(f"{array.shape} {array.dtype} {name in fixed}".encode())
        if name in fixed and array.size <= SMALL:
            digest.update(array.tobytes())
    return digest.hexdigest()
