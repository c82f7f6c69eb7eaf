"""A model file or object, opened once: the weights of its layers by name, and its Relax module."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from tvm_sparse.conv.spec import check_weight
from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.onnx_model import load_onnx
from tvm_sparse.frontend.optional_imports import require
from tvm_sparse.frontend.relax_import import export_module, import_onnx, import_program
from tvm_sparse.frontend.weights import module_weights, onnx_weights, program_weights

PICKLE_SUFFIXES = (".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt")


class ModelSource(ABC):
    """An opened model, called `where` in messages; `open_model` makes it."""

    def __init__(self, where: str, model: Any):
        self._where, self._model = where, model

    def weights(self) -> dict[str, np.ndarray]:
        """Every 4-D weight, in the order of the model.

        Returns
        -------
        dict
            Layer name -> float32 array (K, C / groups, R, S). A layer is named after its parameter without
            ``.weight`` (``layer1.0.conv1``), an ONNX node whose weight has no such name after the node.

        Raises
        ------
        ModelError
            A weight is not float32 or holds NaN or infinity.
        """
        weights = self._weights()
        for layer, weight in weights.items():
            check_weight(layer, weight)
        return weights

    @abstractmethod
    def relax_module(
        self, example_inputs: Any = None, shapes: Mapping[str, Sequence[int]] | None = None
    ) -> tvm.IRModule:
        """A Relax module with one function ``main(inputs...)``, every shape known.

        Parameters
        ----------
        example_inputs
            For a torch module only: the tensor, or tuple of tensors, it is called with.
        shapes
            For ONNX only: input name -> shape, for the inputs whose shape the file leaves open.

        Raises
        ------
        ModelError
            The model has an operator TVM does not know, is in training mode, or leaves a shape open.
        """

    @abstractmethod
    def _weights(self) -> dict[str, np.ndarray]: ...


class TorchModule(ModelSource):
    """A `torch.nn.Module` in evaluation mode; its weights are the module's, also where a mask is still separate."""

    def relax_module(self, example_inputs: Any = None, shapes: Any = None) -> tvm.IRModule:
        return import_program(self._where, export_module(self._model, example_inputs))

    def _weights(self) -> dict[str, np.ndarray]:
        return module_weights(self._model)


class TorchProgram(ModelSource):
    """A `torch.export.ExportedProgram`."""

    def relax_module(self, example_inputs: Any = None, shapes: Any = None) -> tvm.IRModule:
        return import_program(self._where, self._model)

    def _weights(self) -> dict[str, np.ndarray]:
        return program_weights(self._model)


class OnnxModel(ModelSource):
    """An `onnx.ModelProto`, which importing completes in place."""

    def relax_module(
        self, example_inputs: Any = None, shapes: Mapping[str, Sequence[int]] | None = None
    ) -> tvm.IRModule:
        return import_onnx(self._where, self._model, shapes or {})

    def _weights(self) -> dict[str, np.ndarray]:
        return onnx_weights(self._model)


def open_model(source: Any) -> ModelSource:
    """Open the model in `source`: a `torch.nn.Module`, a `torch.export.ExportedProgram`, or an .onnx or .pt2 file.

    It is not changed. Files are read as data only; a pickle is refused, because it can run code.

    Raises
    ------
    ModelError
        The file is missing, damaged or of an unknown kind.
    UsageError
        The package that reads this kind of file is not installed.
    """
    # Only who has loaded torch can have an object of it; torch is not loaded to find out.
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(source, torch.nn.Module):
        return TorchModule("model", source)
    if torch is not None and isinstance(source, torch.export.ExportedProgram):
        return TorchProgram("model", source)
    if not isinstance(source, (str, Path)):
        found = type(source).__name__
        raise ModelError("model", "this cannot be read", found, "torch.nn.Module or .onnx, .pt2")
    path = Path(source)
    if path.suffix in PICKLE_SUFFIXES:
        raise ModelError(
            str(path),
            "this is a pickle, which can run code when it is opened",
            hint="load it yourself and pass the module, or write torch.export.save(torch.export.export(model, inputs), "
            "'model.pt2')",
        )
    if path.suffix not in (".onnx", ".pt2"):
        raise ModelError(str(path), "unknown kind of file", path.suffix or "no suffix", ".onnx, .pt2")
    if not path.is_file():
        raise ModelError(str(path), "no such file", hint="check the path")
    if path.suffix == ".onnx":
        return OnnxModel(str(path), load_onnx(path))
    require("torch", "torch")
    from tvm_sparse.frontend.torch_export import load_exported_program

    return TorchProgram(str(path), load_exported_program(path))
