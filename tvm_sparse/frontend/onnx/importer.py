"""TVM's importer of ONNX graphs, which notes what node an operator with indices comes from."""

import functools
from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvm_sparse.frontend.onnx.graph.constants import opset_of
from tvm_sparse.frontend.origins import NotingBuilder, Origin

# TVM's own stack the tensors and reduce the stack, which takes longer and drops NaN.
_PAIRWISE = {"Max": relax.op.maximum, "Min": relax.op.minimum}


class _Unprinted(BaseException):
    """An error that TVM's importer does not see: it prints all inputs of an operator that it cannot convert."""

    def __init__(self, error: Exception):
        super().__init__(error)
        self.error = error


def from_onnx(model: Any) -> tvm.IRModule:
    """What TVM's ``from_onnx`` makes of an `onnx.ModelProto`, with an `Origin` on operators with indices.

    Nodes without a name are given that of their first output.
    """
    from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

    class Importer(ONNXGraphImporter):
        bb: Any

        def _convert_operator(self, op_name: str, inputs: Any, attrs: Any, opset: int) -> Any:
            builder, name = self.bb, attrs.get("tvm_custom", {}).get("name")
            self.bb = NotingBuilder(builder, Origin(f"node {name} ({op_name})" if name else f"a {op_name} node"))
            try:
                if op_name in _PAIRWISE and not all(isinstance(each, GenericConst) for each in inputs):
                    return functools.reduce(lambda x, y: builder.normalize(_PAIRWISE[op_name](x, y)), inputs)
                return super()._convert_operator(op_name, inputs, attrs, opset)
            except Exception as error:
                raise _Unprinted(error) from error
            finally:
                self.bb = builder

    for node in model.graph.node:
        node.name = node.name or node.output[0]
    try:
        # Users pass inputs by the names that the file has.
        return Importer(None, "float32", sanitize=False).from_onnx(model.graph, opset_of(model))
    except _Unprinted as hidden:
        raise hidden.error from None
