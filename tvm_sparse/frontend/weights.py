"""Dense convolution weights by layer name, from a torch module or a model file.

The one contract with pruning tools is a dense tensor that holds zeros. Masks that
`torch.nn.utils.prune` has not removed yet (``weight_orig`` and ``weight_mask``) are multiplied in here, into a
copy: the caller's model keeps them. Files are read as data only; a pickle is refused, because it can run code.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tvm_sparse.conv.spec import check_weight
from tvm_sparse.errors import ModelError, printable
from tvm_sparse.frontend.model_source import (
    MODEL_SUFFIXES,
    existing_file,
    is_exported_program,
    is_torch_module,
)
from tvm_sparse.frontend.onnx_model import load_onnx
from tvm_sparse.frontend.optional_imports import require

logger = logging.getLogger(__name__)


def load_weights(source: Any) -> dict[str, np.ndarray]:
    """Every 4-D weight of `source`, by layer name, in the order of the model.

    Parameters
    ----------
    source
        A `torch.nn.Module`, a `torch.export.ExportedProgram`, or the path of a ``.pt2``, ``.onnx`` or
        ``.safetensors`` file. It is not changed.

    Returns
    -------
    dict
        Layer name -> float32 array (K, C / groups, R, S). A layer is named after its parameter without ``.weight``
        (``layer1.0.conv1``), an ONNX node whose weight has no such name after the node.

    Raises
    ------
    ModelError
        The file is missing, damaged or of an unknown kind; a weight is not float32 or holds NaN or infinity.
    UsageError
        The package that reads this kind of file is not installed.
    """
    if is_torch_module(source):
        weights = _from_state(_module_state(source))
    elif is_exported_program(source):
        weights = _from_state({**source.state_dict, **source.constants})
    else:
        path = existing_file(source, (*MODEL_SUFFIXES, ".safetensors"))
        weights = {".onnx": _from_onnx, ".pt2": _from_pt2, ".safetensors": _from_safetensors}[path.suffix](path)
    for layer, weight in weights.items():
        check_weight(layer, weight)
    return weights


def _module_state(module: Any) -> dict[str, Any]:
    state = dict(module.state_dict())
    for name, child in module.named_modules():
        # A parametrised weight is computed on access; the state holds only what it is computed from.
        if hasattr(child, "parametrizations") and "weight" in child.parametrizations:
            state[f"{name}.weight" if name else "weight"] = child.weight
    return state


def _from_state(state: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """4-D floating-point entries of a state dict, masks multiplied in."""
    arrays = {name: _to_numpy(value) for name, value in state.items() if getattr(value, "ndim", 0) == 4}
    weights = {}
    for name, array in arrays.items():
        if array.dtype.kind != "f" or name.endswith("_mask") or ".parametrizations." in name:
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
    if isinstance(value, np.ndarray):
        return value.copy()
    value = value.detach().cpu()
    # NumPy has no bfloat16; the check on the element type needs only to see that it is not float32.
    return (value.half() if str(value.dtype) == "torch.bfloat16" else value).numpy().copy()


def _from_pt2(path: Path) -> dict[str, np.ndarray]:
    require("torch", "torch")
    from tvm_sparse.frontend.torch_export import load_exported_program

    program = load_exported_program(path)
    return _from_state({**program.state_dict, **program.constants})


def _from_safetensors(path: Path) -> dict[str, np.ndarray]:
    safetensors = require("safetensors", "onnx")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            names = [name for name in list(file.keys()) if len(file.get_slice(name).get_shape()) == 4]
            state = {name: file.get_tensor(name) for name in names}
    except (safetensors.SafetensorError, TypeError, OSError) as error:
        raise ModelError(str(path), f"the .safetensors file cannot be read ({error})", hint="save it again") from None
    return _from_state(state)


def _from_onnx(path: Path) -> dict[str, np.ndarray]:
    return onnx_weights(load_onnx(path))


def onnx_weights(model: Any) -> dict[str, np.ndarray]:
    """Weights of the 2-D ``Conv`` nodes of an `onnx.ModelProto`, by layer name, in the order of the graph."""
    tensors = _onnx_tensors(model)
    return {layer: _onnx_array(layer, tensors[node.input[1]]) for layer, node in _named_nodes(model, tensors)}


def conv_nodes(model: Any) -> dict[str, Any]:
    """The 2-D ``Conv`` nodes of an `onnx.ModelProto` that have a constant weight, by layer name, in their order.

    A weight used again is ``<layer>.2``, ``<layer>.3``, as in `name_convolutions`.
    """
    nodes: dict[str, Any] = {}
    for stem, node in _named_nodes(model, _onnx_tensors(model)):
        layer, copies = stem, 2
        while layer in nodes:
            layer, copies = f"{stem}.{copies}", copies + 1
        nodes[layer] = node
    return nodes


def _named_nodes(model: Any, tensors: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for node in model.graph.node:
        if node.op_type == "Conv" and node.input[1] in tensors and len(tensors[node.input[1]].dims) == 4:
            parameter = node.input[1]
            yield layer_name(parameter if parameter.endswith(".weight") else node.name or parameter), node


def _onnx_tensors(model: Any) -> dict[str, Any]:
    """Constants of the graph, as `onnx.TensorProto`."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            tensors[node.output[0]] = node.attribute[0].t
    return tensors


def _onnx_array(layer: str, tensor: Any) -> np.ndarray:
    try:
        return require("onnx.numpy_helper", "onnx").to_array(tensor)
    except (KeyError, ValueError, TypeError) as error:
        raise ModelError(
            f"layer {layer}", f"its weight cannot be read ({error})", hint="export the model again"
        ) from None
