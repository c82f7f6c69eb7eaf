"""Fold what follows a layer channel by channel (bias, batch norm, scaling) into its weight and one bias.

A batch norm arrives as four operations with constants of one value a channel, whichever front end it came through and
whether a bias stands before it or not. So this folds any chain of additions, subtractions, multiplications and
divisions by such constants, in float64. Zeros stay zeros.
"""

from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, Expr, Var

from tvm_sparse.conv.codes import holds_codes
from tvm_sparse.frontend.passes.relax_graph import (
    Graph,
    channel_vector,
    constant_weight,
    is_call,
    one_a_channel,
    rebuild,
    with_weight,
)


@dataclass(frozen=True)
class _Affine:
    """``scale * y + shift``, one value a channel, float64."""

    scale: np.ndarray
    shift: np.ndarray

    def then(self, call: Call, y: Var, shape: tuple[int, ...]) -> "_Affine | None":
        """This followed by `call` on its result `y`, or None where that is not affine.

        `shape` is that of one value for each channel of `y`.
        """
        if len(call.args) != 2:
            return None
        left = call.args[0].same_as(y)
        other = channel_vector(call.args[1 if left else 0], shape)
        if other is None:
            return None
        if is_call(call, "relax.add"):
            return _Affine(self.scale, self.shift + other)
        if is_call(call, "relax.multiply"):
            return _Affine(self.scale * other, self.shift * other)
        if is_call(call, "relax.subtract"):
            sign = 1 if left else -1
            return _Affine(sign * self.scale, sign * (self.shift - other))
        if is_call(call, "relax.divide") and left and other.all():
            return _Affine(self.scale / other, self.shift / other)
        return None


def fold_batch_norm(module: tvm.IRModule) -> tvm.IRModule:
    """`module` where each layer is followed by at most one addition of a constant per channel.

    A layer whose result something else reads as well keeps its chain, and so does one whose folded weight would
    overflow float32. The weight of a quantised layer stays as it is: sums of integers are exact.
    """
    graph = Graph.of(module)
    edits: dict[Var, list[tuple[Var, Expr]]] = {}
    for var, value in graph.definitions.items():
        weight = constant_weight(value)
        if weight is None or holds_codes(weight):
            continue
        shape = one_a_channel(value, var)
        chain, affine = _chain(graph, var, shape)
        # One addition is the form wanted already.
        if len(chain) < 2 and (affine.scale == 1).all():
            continue
        with np.errstate(over="ignore"):
            scaled = (weight * affine.scale[:, None, None, None]).astype(np.float32)
            bias = affine.shift.astype(np.float32).reshape(shape)
        if np.isfinite(scaled).all() and np.isfinite(bias).all():
            edits.update({absorbed: [] for absorbed in chain[:-1]})
            edits[var] = [(var, with_weight(value, scaled))]
            edits[chain[-1]] = [(chain[-1], relax.op.add(var, relax.const(bias)))]
    return rebuild(module, edits)


def _chain(graph: Graph, var: Var, shape: tuple[int, ...]) -> tuple[list[Var], _Affine]:
    """The variables of the affine operations that follow `var`, and what they compute together."""
    chain: list[Var] = []
    affine = _Affine(np.ones(max(shape)), np.zeros(max(shape)))
    while (user := graph.only_user(chain[-1] if chain else var)) is not None:
        following = affine.then(user[1], chain[-1] if chain else var, shape)
        if following is None:
            break
        chain.append(user[0])
        affine = following
    return chain, affine
