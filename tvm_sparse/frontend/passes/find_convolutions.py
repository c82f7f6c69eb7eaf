"""Find the convolutions that our kernels can compute, each with the bias, residual and ReLU that follow it."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import tvm
from tvm.ir import Call, Expr, GenericConst, Var

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec, check_finite
from tvm_sparse.frontend.passes.name_convolutions import layer_name_of
from tvm_sparse.frontend.passes.relax_graph import (
    Graph,
    channel_vector,
    constant_weight,
    is_call,
    is_float32,
    static_shape,
)


@dataclass(frozen=True)
class ConvLayer:
    """One convolution of a model: `weight` (K, C / groups, R, S) and `bias` (K,) or None, both float32."""

    name: str
    spec: ConvSpec
    weight: np.ndarray
    bias: np.ndarray | None

    @cached_property
    def pattern(self) -> SparsityPattern:
        """The zeros of `weight`."""
        return SparsityPattern.of(self.weight)


@dataclass(frozen=True)
class Group:
    """A layer and where it is in ``main``.

    `absorbed` are the variables that vanish when one kernel computes `result` from `data` and `residual`.
    """

    layer: ConvLayer
    data: Expr
    residual: Expr | None
    absorbed: tuple[Var, ...]
    result: Var


def find_convolutions(module: tvm.IRModule) -> list[ConvLayer]:
    """The convolutions of ``main`` in program order.

    A step of the epilogue is fused when nothing else reads what it starts from. Of two convolutions that are added,
    the first to be computed takes the other's result as its residual.

    Raises
    ------
    ModelError
        A bias holds NaN or infinity.
    """
    return [group.layer for group in find_groups(module)]


def find_groups(module: tvm.IRModule) -> list[Group]:
    """`find_convolutions`, with the place of each."""
    graph = Graph.of(module)
    groups: list[Group] = []
    taken: set[Var] = set()
    for var, value in graph.definitions.items():
        if (weight := constant_weight(value)) is not None:
            group = _group(graph, var, weight, taken, f"conv{len(groups)}")
            taken.update((*group.absorbed, group.result))
            groups.append(group)
    return groups


def _group(graph: Graph, var: Var, weight: np.ndarray, taken: set[Var], fallback_name: str) -> Group:
    call = graph.definitions[var]
    variables = [var]
    bias = residual = None
    relu = False
    while not relu and (user := graph.only_user(variables[-1])) is not None and user[0] not in taken:
        following, step = user
        if is_call(step, "relax.nn.relu"):
            relu = True
        elif is_call(step, "relax.add"):
            other = step.args[1] if step.args[0].same_as(variables[-1]) else step.args[0]
            vector = channel_vector(other, len(weight))
            if vector is not None and bias is None and residual is None:
                bias = vector.astype(np.float32)
            elif residual is None and _is_residual(other, var):
                residual = other
            else:
                break
        else:
            break
        variables.append(following)
    spec = _spec(call, weight, bias is not None, residual is not None, relu)
    layer = ConvLayer(layer_name_of(call) or fallback_name, spec, weight, bias)
    if bias is not None:
        check_finite(layer.name, "bias", bias)
    return Group(layer, call.args[0], residual, tuple(variables[:-1]), variables[-1])


def _is_residual(value: Expr, output: Var) -> bool:
    same_shape = static_shape(value) == static_shape(output)
    return same_shape and is_float32(value) and not isinstance(value, GenericConst)


def _spec(call: Call, weight: np.ndarray, bias: bool, residual: bool, relu: bool) -> ConvSpec:
    shape = static_shape(call.args[0])
    assert shape is not None, "constant_weight admits known shapes only"
    n, c, h, w = shape
    k, _, r, s = weight.shape
    top, left, bottom, right = (int(p) for p in call.attrs.padding)
    return ConvSpec(
        n=n,
        c=c,
        h=h,
        w=w,
        k=k,
        r=r,
        s=s,
        stride=(int(call.attrs.strides[0]), int(call.attrs.strides[1])),
        padding=(top, left, bottom, right),
        dilation=(int(call.attrs.dilation[0]), int(call.attrs.dilation[1])),
        groups=int(call.attrs.groups),
        bias=bias,
        residual=residual,
        relu=relu,
    )
