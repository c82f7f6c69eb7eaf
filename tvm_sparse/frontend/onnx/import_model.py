"""ONNX model -> Relax module whose parameters are constants."""

from collections.abc import Mapping, Sequence
from typing import Any

import tvm

from tvm_sparse.frontend.onnx.importer import from_onnx
from tvm_sparse.frontend.onnx.model import check_shapes, fix_shapes
from tvm_sparse.frontend.onnx.rewriting.definitions import define_unknown
from tvm_sparse.frontend.onnx.rewriting.einsum import make_products_explicit
from tvm_sparse.frontend.onnx.rewriting.fold_nodes import fold_nodes
from tvm_sparse.frontend.onnx.rewriting.recurrent import write_out_recurrent
from tvm_sparse.frontend.onnx.rewriting.rewrite import (
    make_output_shapes_explicit,
    make_padding_explicit,
    sort_largest,
    upgrade_operators,
)
from tvm_sparse.frontend.onnx.rewriting.spatial import rewrite_spatial_operators
from tvm_sparse.frontend.onnx.rules.operators import require_known
from tvm_sparse.frontend.onnx.rules.refuse import refuse_loops
from tvm_sparse.frontend.relax_import import checked, tvm_frontend


def import_onnx(where: str, model: Any, shapes: Mapping[str, Sequence[int]], batch: int | None = None) -> tvm.IRModule:
    """The Relax module of an `onnx.ModelProto`, which is given `shapes` in place; see `ModelSource.relax_module`."""
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
    rewrite_spatial_operators(where, model)
    if define_unknown(where, model):
        # Definitions are made of operators that TVM may read wrongly too.
        rewrite_spatial_operators(where, model)
    require_known(where, model)
    with tvm_frontend(where):
        module = from_onnx(model)
    return checked(where, module)
