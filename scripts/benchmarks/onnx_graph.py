"""Write ONNX graphs node by node, for the scripts that make models."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8  # the one that came with opset 17, so that older runtimes accept the file


class GraphBuilder:
    """A growing ONNX graph of float32 tensors in NCHW.

    Every method adds one node called `name`, whose constants are ``<name>.weight`` and the like, and returns the
    name of its output, which is `name` too.
    """

    def __init__(self, name: str, input_shape: tuple[int, ...]):
        self.name = name
        self.inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, input_shape)]
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def conv(
        self,
        name: str,
        x: str,
        weight: np.ndarray,
        bias: np.ndarray | None = None,
        *,
        stride: int = 1,
        padding: int = 0,
        groups: int = 1,
    ) -> str:
        """Convolution with `weight` (K, C / groups, R, S) and `bias` (K,); `padding` zeros on all four sides."""
        parameters = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
        shape = {"kernel_shape": weight.shape[2:], "strides": [stride] * 2, "pads": [padding] * 4, "group": groups}
        return self._add("Conv", name, x, parameters=parameters, **shape)

    def batch_norm(self, name: str, x: str, parameters: dict[str, np.ndarray]) -> str:
        """Batch norm for inference; `parameters` are ``weight, bias, running_mean, running_var``, each (C,)."""
        order = ("weight", "bias", "running_mean", "running_var")
        return self._add(
            "BatchNormalization", name, x, parameters={key: parameters[key] for key in order}, epsilon=1e-5
        )

    def relu(self, name: str, x: str) -> str:
        """max(x, 0)."""
        return self._add("Relu", name, x)

    def add(self, name: str, a: str, b: str) -> str:
        """a + b."""
        return self._add("Add", name, a, b)

    def max_pool(self, name: str, x: str, kernel: int, stride: int, padding: int = 0) -> str:
        """Maximum over `kernel` x `kernel` pixels."""
        return self._add("MaxPool", name, x, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[padding] * 4)

    def global_average_pool(self, name: str, x: str) -> str:
        """(N, C, H, W) to (N, C): mean over the pixels."""
        return self.flatten(name, self._add("GlobalAveragePool", f"{name}.pool", x))

    def flatten(self, name: str, x: str) -> str:
        """(N, C, H, W) to (N, C H W)."""
        return self._add("Flatten", name, x, axis=1)

    def linear(self, name: str, x: str, weight: np.ndarray, bias: np.ndarray) -> str:
        """(N, C) to (N, K) with `weight` (K, C) and `bias` (K,)."""
        return self._add("Gemm", name, x, parameters={"weight": weight, "bias": bias}, transB=1)

    def model(self, output: str, shape: tuple[int, ...], name: str) -> onnx.ModelProto:
        """The finished, checked model with one output, `output` (of `shape`) renamed to `name`."""
        self.nodes[-1].output[0] = name
        if self.nodes[-1].name != output:
            raise ValueError(f"{output} is not the last node, {self.nodes[-1].name} is")
        outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)]
        graph = helper.make_graph(self.nodes, self.name, self.inputs, outputs, self.constants)
        opset = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opset, producer_name="tvm-sparse", ir_version=IR_VERSION)
        onnx.checker.check_model(model, full_check=True)
        return model

    def _add(
        self, op: str, name: str, *inputs: str, parameters: Mapping[str, np.ndarray] | None = None, **attributes: Any
    ) -> str:
        parameters = parameters or {}
        for key, value in parameters.items():
            array = np.ascontiguousarray(value, np.float32)
            self.constants.append(numpy_helper.from_array(array, f"{name}.{key}"))
        names = [*inputs, *(f"{name}.{key}" for key in parameters)]
        self.nodes.append(helper.make_node(op, names, [name], name, **attributes))
        return name
