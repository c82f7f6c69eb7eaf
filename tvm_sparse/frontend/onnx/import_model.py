"""ONNX model -> Relax module whose parameters are constants."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call, GenericConst

from tvm_sparse.frontend.onnx.graph.constants import opset_of
from tvm_sparse.frontend.onnx.model import check_shapes, fix_shapes
from tvm_sparse.frontend.onnx.rewriting import deform_conv, pooling, rearrange, resize, sampling
from tvm_sparse.frontend.onnx.rewriting.definitions import define_unknown
from tvm_sparse.frontend.onnx.rewriting.einsum import make_products_explicit
from tvm_sparse.frontend.onnx.rewriting.fold_nodes import fold_nodes
from tvm_sparse.frontend.onnx.rewriting.recurrent import write_out_recurrent
from tvm_sparse.frontend.onnx.rewriting.replace_nodes import replace_nodes
from tvm_sparse.frontend.onnx.rewriting.rewrite import (
    make_output_shapes_explicit,
    make_padding_explicit,
    sort_largest,
    upgrade_operators,
)
from tvm_sparse.frontend.onnx.rules.operators import require_known
from tvm_sparse.frontend.onnx.rules.refuse import refuse_loops
from tvm_sparse.frontend.origins import NotingBuilder, Origin
from tvm_sparse.frontend.passes.relax_graph import is_float32
from tvm_sparse.frontend.relax_import import checked, tvm_frontend
from tvm_sparse.frontend.steps import with_steps

# Operators on images and maps that TVM reads wrongly or not at all, as other nodes of ONNX.
_SUBJECTS = (resize, pooling, rearrange, deform_conv, sampling)
_REWRITES = {operator: rewrite for subject in _SUBJECTS for operator, rewrite in subject.REWRITES.items()}
# TVM's own stack the tensors and reduce the stack, which takes longer and drops NaN.
_PAIRWISE = {"Max": relax.op.maximum, "Min": relax.op.minimum}


def import_onnx(
    where: str,
    model: Any,
    shapes: Mapping[str, Sequence[int]],
    batch: int | None = None,
    tensors: Mapping[str, bool] | None = None,
) -> tvm.IRModule:
    """The Relax module of an `onnx.ModelProto`, which is given `shapes` in place; see `ModelSource.relax_module`.

    With `tensors`, the model's own and whether each is float32, it will be stored in half precision, and knows its
    steps.
    """
    fix_shapes(where, model, shapes, batch)
    fold_nodes(where, model)
    upgrade_operators(where, model)
    inferred = check_shapes(where, model)
    if write_out_recurrent(where, model, inferred):
        fold_nodes(where, model)
        inferred = check_shapes(where, model)
    refuse_loops(where, model)
    make_products_explicit(model)
    make_padding_explicit(model, inferred)
    sort_largest(model)
    make_output_shapes_explicit(where, model, inferred)
    replace_nodes(where, model, _REWRITES)
    if define_unknown(where, model):
        # Definitions are made of operators that TVM may read wrongly too.
        replace_nodes(where, model, _REWRITES)
    require_known(where, model)
    with tvm_frontend(where):
        module = from_onnx(model, tensors)
    return checked(where, module)


class _Unprinted(BaseException):
    """An error that TVM's importer does not see: it prints all inputs of an operator that it cannot convert."""

    def __init__(self, error: Exception):
        super().__init__(error)
        self.error = error


def from_onnx(model: Any, tensors: Mapping[str, bool] | None = None) -> tvm.IRModule:
    """What TVM's ``from_onnx`` makes of an `onnx.ModelProto`, with an `Origin` on operators with indices.

    Nodes without a name are given that of their first output. See `import_onnx` for `tensors`.
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
                found = super()._convert_operator(op_name, inputs, attrs, opset)
                is_step = tensors is not None and isinstance(found, Call) and is_float32(found)
                return builder.emit(found) if is_step else found
            except Exception as error:
                raise _Unprinted(error) from error
            finally:
                self.bb = builder

    for node in model.graph.node:
        node.name = node.name or node.output[0]
    try:
        # Users pass inputs by the names that the file has.
        importer = Importer(None, "float32", sanitize=False)
        module = importer.from_onnx(model.graph, opset_of(model))
    except _Unprinted as hidden:
        raise hidden.error from None
    if tensors is None:
        return module
    kinds = [(value, tensors[name]) for name, value in importer._nodes.items() if name in tensors]
    stored = [value for value, is_wide in kinds if not is_wide]
    return with_steps(module, stored, [value for value, is_wide in kinds if is_wide])
