"""Dense weights of convolutions and linear layers by layer name, from a torch module, a torch program or an ONNX model.

The one contract with pruning tools is a dense tensor that holds zeros. Masks that
`torch.nn.utils.prune` has not removed yet (``weight_orig`` and ``weight_mask``) are multiplied in here, into a
copy: the caller's model keeps them.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tvm_sparse.conv.dtypes import HALVES
from tvm_sparse.errors import ModelError, printable
from tvm_sparse.frontend.onnx.graph.constants import Constants

logger = logging.getLogger(__name__)

# ONNX operators of layers -> axes of their weight.
_CONVOLUTION_AXES = (3, 4, 5)
_WEIGHT_AXES = {"Conv": _CONVOLUTION_AXES, "ConvTranspose": _CONVOLUTION_AXES, "Gemm": (2,), "MatMul": (2,)}


def module_weights(module: Any) -> dict[str, np.ndarray]:
    """Weights of convolutions and matrices of a `torch.nn.Module` by layer name; also what parametrisations compute."""
    state = dict(module.state_dict())
    for name, child in module.named_modules():
        # A parametrised weight is computed on access; the state holds only what it is computed from.
        if hasattr(child, "parametrizations") and "weight" in child.parametrizations:
            state[f"{name}.weight" if name else "weight"] = child.weight
    return _from_state(state)


def program_weights(program: Any) -> dict[str, np.ndarray]:
    """Weights of convolutions and matrices of a `torch.export.ExportedProgram`, by layer name."""
    return _from_state({**program.state_dict, **program.constants})


def _from_state(state: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Entries of a state dict of 3 to 5 axes and float32 matrices, masks multiplied in; halves as float32."""
    arrays = {
        name: _to_numpy(value) for name, value in state.items() if getattr(value, "ndim", 0) in (2, *_CONVOLUTION_AXES)
    }
    weights = {}
    for name, array in arrays.items():
        is_weight = array.dtype == np.float32 if array.ndim == 2 else array.dtype.kind == "f"
        if not is_weight or name.endswith("_mask") or ".parametrizations." in name:
            continue
        plain = name.removesuffix("_orig")
        if plain != name and f"{plain}_mask" in arrays:
            logger.info("layer %s: its pruning mask was not removed yet and is applied", layer_name(plain))
            weights[layer_name(plain)] = array * arrays[f"{plain}_mask"].astype(array.dtype)
        else:
            weights[layer_name(name)] = array
    return weights


def layer_name(parameter: str) -> str:
    """The layer that owns `parameter`: its name without ``.weight`` and without control characters."""
    return printable(parameter.removesuffix(".weight"))


def _to_numpy(value: Any) -> np.ndarray:
    """A tensor as an array that shares nothing with it."""
    value = value.detach().cpu()
    return (value.float() if str(value.dtype).removeprefix("torch.") in HALVES else value).numpy().copy()


def onnx_weights(model: Any) -> dict[str, np.ndarray]:
    """Weights of the layers of an `onnx.ModelProto`, by layer name, in the order of the graph; see `layer_nodes`."""
    return {layer: weight for layer, _, weight in _named_nodes(model)}


def layer_nodes(model: Any) -> dict[str, Any]:
    """The nodes of an `onnx.ModelProto` that have a constant weight, by layer name, in their order.

    That is 2-D ``Conv``, and ``Gemm`` and ``MatMul`` with a float32 matrix: what reads and writes tensors as our layers
    do. A weight used again is ``<layer>.2``, ``<layer>.3``, as in `name_convolutions`.
    """
    nodes: dict[str, Any] = {}
    for stem, node, weight in _named_nodes(model):
        layer, copies = stem, 2
        while layer in nodes:
            layer, copies = f"{stem}.{copies}", copies + 1
        nodes[layer] = node if weight.ndim in (2, 4) and node.op_type != "ConvTranspose" else None
    return {layer: node for layer, node in nodes.items() if node is not None}


def _named_nodes(model: Any) -> Iterator[tuple[str, Any, np.ndarray]]:
    """Name, node and weight of each layer."""
    constants = Constants(model)
    for node in model.graph.node:
        axes = _WEIGHT_AXES.get(node.op_type)
        if not axes or node.input[1] not in constants.tensors:
            continue
        parameter = node.input[1]
        layer = layer_name(parameter if parameter.endswith(".weight") else node.name or parameter)
        try:
            weight = constants.array(node.input[1])
        except ModelError as error:
            problem = f"its weight cannot be read ({error.where}: {error.problem})"
            raise ModelError(f"layer {layer}", problem, error.found, error.allowed, error.hint) from None
        if weight.ndim in axes and (weight.ndim > 2 or weight.dtype == np.float32):
            yield layer, node, weight
