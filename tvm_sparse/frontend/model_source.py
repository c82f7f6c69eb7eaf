"""A model file or object, opened once: the weights of its layers by name, and its Relax module."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.spec import check_weight
from tvm_sparse.conv.storage import is_half
from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.batch import examples_of, require_batch, require_shapes
from tvm_sparse.frontend.onnx.import_model import import_onnx
from tvm_sparse.frontend.onnx.model import check_shapes, load_onnx
from tvm_sparse.frontend.onnx.quantised.rewrite import write_in_floats
from tvm_sparse.frontend.onnx.rewriting import half as onnx_half
from tvm_sparse.frontend.onnx.rewriting.fold_nodes import fold_nodes
from tvm_sparse.frontend.onnx.rewriting.rewrite import upgrade_first_operators
from tvm_sparse.frontend.onnx.rules.refuse import refuse_training
from tvm_sparse.frontend.precision import Precision
from tvm_sparse.frontend.scales import LayerScales
from tvm_sparse.frontend.torch.graph import is_quantising as is_quantising_node
from tvm_sparse.frontend.torch.import_program import export_module, import_program
from tvm_sparse.frontend.torch.pt2_file import load_exported_program
from tvm_sparse.frontend.torch.rewriting import half as torch_half
from tvm_sparse.frontend.torch.rewriting.autocast import autocast_off, with_casts
from tvm_sparse.frontend.weights import layer_nodes, module_weights, onnx_weights, program_weights
from tvm_sparse.untrusted.regular_file import open_regular

SUFFIXES = (".onnx", ".pt2")
# Of a file. ONNX's format ends at 2 GiB: more weights are in files beside it.
MOST_BYTES = {".onnx": 1 << 31, ".pt2": 1 << 33}
PICKLE_SUFFIXES = (".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt")


class ModelSource:
    """An opened model: a `torch.nn.Module`, a `torch.export.ExportedProgram`, or an .onnx or .pt2 file.

    It is not changed. Files are read as data only; a pickle is refused, because it can run code. A model in half
    precision is read as a float32 one of the same numbers; `precision` says how it stores them, of a torch module once
    `relax_module` was called. ModelError where the file is missing, damaged or of an unknown kind. UsageError where the
    package that reads this kind of file is not installed.
    """

    def __init__(self, source: Any, dtype: str | None = None):
        # Torch is not loaded to find out: who has an object of it has loaded it.
        torch = sys.modules.get("torch")
        self._where, self._model = "model", source
        self.precision: Precision | None = None
        # In which it will be stored, where that is not the model's own.
        self._dtype = dtype
        # Of an ONNX file that will be stored in half precision, its own tensors: whether each is of another type.
        self._tensors: dict[str, bool] | None = None
        self._is_module = torch is not None and isinstance(source, torch.nn.Module)
        self._is_onnx, self._in_integers = False, dtype in (None, FLOAT32)
        # Of layers of a torch model that is quantised, once it was exported.
        self.quantised: dict[str, np.ndarray] = {}
        # By the names of layers of a quantised model, of a torch model once it was exported.
        self.scales: dict[str, LayerScales] = {}
        if not self._is_module and (torch is None or not isinstance(source, torch.export.ExportedProgram)):
            path = _model_path(source)
            self._where, self._is_onnx = str(path), path.suffix == ".onnx"
            self._model = load_onnx(path) if self._is_onnx else load_exported_program(path)
        if self._is_onnx:
            types = onnx_half.types_of(self._model)
            self.precision = onnx_half.precision_of(self._where, self._model, types)
            if self._is_half:
                self._tensors = self._types(types)
            if self.precision.dtype != FLOAT32:
                # Widened, tensors would fit that do not.
                check_shapes(self._where, self._model)
                onnx_half.widen(self._model, types if dtype is None else None)
            upgrade_first_operators(self._where, self._model)
            scales = write_in_floats(self._where, self._model, (dtype or self.precision.dtype) == FLOAT32)
            # Weights take their last form; what normalises only them does so in training mode.
            fold_nodes(self._where, self._model)
            refuse_training(self._where, self._model)
            nodes = layer_nodes(self._model) if scales else {}
            self.scales = {layer: scales[node.name] for layer, node in nodes.items() if node.name in scales}
        elif not self._is_module:
            with autocast_off():
                self._model = self._in_floats(with_casts(self._model))

    @property
    def outputs(self) -> tuple[str, ...]:
        """What an ONNX file calls its outputs; empty of others, whose outputs have no names."""
        return tuple(value.name for value in self._model.graph.output) if self._is_onnx else ()

    def weights(self) -> dict[str, np.ndarray]:
        """Every 4-D weight and every float32 matrix, in the order of the model.

        ModelError where a 4-D weight is neither float32 nor half precision, or holds NaN or infinity.

        Returns
        -------
        dict
            Layer name -> float32 array (K, C / groups, R, S), of a linear layer (K, C) or (C, K), of a half-precision
            weight too. A layer is named after its parameter without ``.weight`` (``layer1.0.conv1``), an ONNX node
            whose weight has no such name after the node. Not every matrix is a layer's.
        """
        read = module_weights if self._is_module else onnx_weights if self._is_onnx else program_weights
        weights = read(self._model)
        for layer, weight in weights.items():
            # A matrix may be a mask of infinities; one that is a layer's is checked where that is found.
            if weight.ndim == 4:
                check_weight(layer, weight)
        return weights

    def relax_module(
        self,
        example_inputs: Any = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        batch: int | None = None,
    ) -> tvm.IRModule:
        """A Relax module with one function ``main(inputs...)``, every shape known.

        An ONNX model is fixed to its shapes by it: open the file again for others. ModelError where the model has an
        operator TVM does not know, is in training mode, leaves a shape open, or has no such batch.

        * `example_inputs`: for a torch module only: the tensor, or tuple of tensors, it is called with.
        * `shapes`: input name -> shape; of an ONNX file for the inputs whose shape it leaves open, of a torch module,
          whose inputs are called like the arguments of ``forward``, in the place of what the example says.
        * `batch`: the first dimension of every input, in the place of what the example, the shape or the file says.
        """
        if self._is_onnx:
            module = import_onnx(self._where, self._model, shapes or {}, batch, self._tensors)
        elif self._is_module:
            inputs = examples_of(self._model, example_inputs, shapes, batch)
            module = import_program(self._where, self._in_floats(export_module(self._model, inputs)), self._is_half)
        else:
            module = import_program(self._where, self._model, self._is_half)
            require_shapes(self._where, module, shapes, batch)
        if batch is not None:
            require_batch(self._where, module, batch)
        return module

    def _types(self, types: Mapping[str, str]) -> dict[str, bool]:
        """Every tensor of an ONNX file, and whether it stays in float32, in which `types` have it."""
        names = [each.name for each in self._model.graph.input]
        names += [name for node in self._model.graph.node for name in node.output]
        return {name: self._dtype is None and types.get(name) == FLOAT32 for name in names}

    @property
    def _is_half(self) -> bool:
        """Whether tensors will be stored in half precision."""
        assert self.precision is not None, "known once the model is"
        return is_half(self._dtype or self.precision.dtype)

    def _in_floats(self, program: Any) -> Any:
        """A `torch.export.ExportedProgram` in float32, whose `precision` is noted, and `quantised` weights."""
        self.precision = torch_half.precision_of(self._where, program)
        if self.precision.dtype != FLOAT32:
            program = torch_half.widened(self._where, program, self._dtype is None)
        if any(map(is_quantising_node, program.graph.nodes)):
            # It imports torch, which who has a program did before.
            from tvm_sparse.frontend.torch.rewriting.quantised import in_floats

            in_integers = self._in_integers and self.precision.dtype == FLOAT32
            program, self.scales = in_floats(self._where, program, in_integers)
            self.quantised = program_weights(program)
        return program


def _model_path(source: Any) -> Path:
    """`source` as the path of a model file; ModelError where it is none."""
    if not isinstance(source, (str, Path)):
        found, allowed = type(source).__name__, f"torch.nn.Module or {', '.join(SUFFIXES)}"
        raise ModelError("model", "this cannot be read", found, allowed)
    path = Path(source)
    if path.suffix in PICKLE_SUFFIXES:
        problem = "this is a pickle, which can run code when it is opened"
        export = "torch.export.save(torch.export.export(model, inputs), 'model.pt2')"
        raise ModelError(str(path), problem, hint=f"load it yourself and pass the module, or write {export}")
    if path.suffix not in SUFFIXES:
        raise ModelError(str(path), "unknown kind of file", path.suffix or "no suffix", ", ".join(SUFFIXES))
    try:
        open_regular(path, MOST_BYTES[path.suffix]).close()
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise ModelError(str(path), "no such file", hint="check the path") from None
        raise ModelError(str(path), f"cannot be read ({error.strerror})", hint="check the path") from None
    return path
