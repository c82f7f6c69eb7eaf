"""Refuse a model that computes with constants that are no numbers."""

import numpy as np
import tvm
from tvm.ir import Call, Expr, GenericConst

from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.passes.name_convolutions import layer_name_of
from tvm_sparse.frontend.passes.relax_graph import Graph, constant_weight, is_float32


def check_constants(module: tvm.IRModule) -> None:
    """Look at every float32 constant of ``main``; run it after `fold_constants` and `name_convolutions`.

    Infinity is let pass: masks use it. A bias of infinity is refused by `find_convolutions`. ModelError where one holds
    NaN: every result it touches is NaN, or worse, is lost in a ReLU.
    """
    graph = Graph.of(module)
    for value in graph.definitions.values():
        arguments = value.args if isinstance(value, Call) else ()
        if any(_holds_nan(argument) for argument in arguments):
            inputs = [graph.definitions[var] for var in arguments if var in graph.definitions]
            layers = [layer_name_of(each) for each in inputs if constant_weight(each) is not None]
            problem = f"a constant of {value.op.name.removeprefix('relax.')} is NaN"
            hint = "repair the parameters: biases, and statistics of batch norms such as a negative variance"
            raise ModelError(f"layer {layers[0]}" if layers else "model", problem, hint=hint)


def _holds_nan(argument: Expr) -> bool:
    return isinstance(argument, GenericConst) and is_float32(argument) and bool(np.isnan(argument.value.numpy()).any())
