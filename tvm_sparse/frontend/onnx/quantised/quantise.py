"""Float models of ONNX in eight bits, by ONNX Runtime's quantiser."""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.errors import ModelError, first_line
from tvm_sparse.frontend.onnx.graph.constants import opset_of
from tvm_sparse.frontend.onnx.quantised.operators import is_quantising
from tvm_sparse.frontend.onnx.rewriting.half import precision_of
from tvm_sparse.frontend.onnx.rewriting.rewrite import convert_operators
from tvm_sparse.frontend.optional_imports import require

# Of what is written: it names files that are kept.
FORM = "QDQ, activations uint8, weights int8 per channel, least and largest"
# The first operator set with a scale for each channel.
_AXIS_OPSET = 13


def quantise(where: str, model: Any, feeds: Iterable[Mapping[str, np.ndarray]]) -> bytes:
    """The file of a float32 `onnx.ModelProto` with `QuantizeLinear` and `DequantizeLinear` around its layers.

    `feeds` are the inputs, by name, on which the ranges of its tensors are found. Zeros stay zeros, and fours of them
    fours. ModelError where the model is quantised already, or in half precision, or where the quantiser cannot do it.
    UsageError where onnxruntime is not installed.
    """
    if any(map(is_quantising, model.graph.node)):
        raise ModelError(where, "it is quantised already", hint="leave dtype out")
    if (dtype := precision_of(where, model).dtype) != FLOAT32:
        raise ModelError(where, "only models in float32 are quantised", dtype, FLOAT32, "export it in float32")
    if opset_of(model) < _AXIS_OPSET:
        convert_operators(where, model, _AXIS_OPSET)
    quantization = require("onnxruntime.quantization", "ort")
    preprocess = require("onnxruntime.quantization.shape_inference", "ort").quant_pre_process
    kinds = quantization.QuantType
    with tempfile.TemporaryDirectory() as folder:
        given, plain, result = (Path(folder, f"{name}.onnx") for name in ("given", "plain", "quantised"))
        try:
            # Folds batch norms, so that scales are those of the layers that run; of a file, as of a model that is in
            # memory onnxruntime 1.32 cannot where all its weights are small.
            given.write_bytes(model.SerializeToString())
            preprocess(given, plain, skip_symbolic_shape=True)
            quantization.quantize_static(
                plain,
                result,
                _reader(quantization, iter(feeds)),
                quant_format=quantization.QuantFormat.QDQ,
                per_channel=True,
                activation_type=kinds.QUInt8,
                weight_type=kinds.QInt8,
            )
        # It reports what it cannot do by exceptions of any kind.
        except Exception as error:
            problem = f"onnxruntime cannot quantise it ({first_line(error)})"
            raise ModelError(where, problem, hint="see onnxruntime.ai/docs/performance/model-optimizations") from error
        return result.read_bytes()


def _reader(quantization: Any, feeds: Iterator[Mapping[str, np.ndarray]]) -> Any:
    class Reader(quantization.CalibrationDataReader):
        def get_next(self) -> Any:
            return next(feeds, None)

    return Reader()
