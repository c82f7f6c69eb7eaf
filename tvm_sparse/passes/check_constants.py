"""Refuse a model that computes with constants that are no numbers."""

from __future__ import annotations

import numpy as np
import tvm
from tvm.ir import Call, GenericConst

from tvm_sparse.errors import ModelError
from tvm_sparse.passes.graph import Graph, constant_weight, is_float32
from tvm_sparse.passes.name_convolutions import layer_name_of


def check_constants(module: tvm.IRModule) -> None:
    """Look at every float32 constant of ``main``; run it after `fold_constants` and `name_convolutions`.

    Infinity is let pass: masks use it. A bias of infinity is refused by `find_convolutions`.

    Raises
    ------
    ModelError
        One holds NaN: every result it touches is NaN, or worse, is lost in a ReLU.
    """
    graph = Graph.of(module)
    for value in graph.definitions.values():
        for argument in value.args if isinstance(value, Call) else ():
            if isinstance(argument, GenericConst) and is_float32(argument) and np.isnan(argument.value.numpy()).any():
                after = [graph.definitions.get(other) for other in value.args if not isinstance(other, GenericConst)]
                layers = [layer_name_of(each) for each in after if each is not None and constant_weight(each) is not None]
                where = f"layer {layers[0]}" if layers else "model"
                problem = f"a constant of {value.op.name.removeprefix('relax.')} is NaN"
                hint = "repair the parameters: biases, and statistics of batch norms such as a negative variance"
                raise ModelError(where, problem, hint=hint)
