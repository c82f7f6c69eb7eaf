"""Find the layers that our kernels can compute, each with the bias, residual and ReLU that follow it.

That is convolutions, and linear layers with a sparse weight, which are 1x1 convolutions of maps of one pixel.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.ir import Call, Expr, GenericConst, Var

from tvm_sparse.conv.codes import CODES, holds_codes, holds_signed_codes
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.interleaving import Interleaving
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import NO_CODES, ConvSpec, check_finite
from tvm_sparse.conv.storage import is_half, stored
from tvm_sparse.conv.structure import DENSE
from tvm_sparse.conv.volumes import Volumes
from tvm_sparse.frontend.passes.model_form import ModelForm
from tvm_sparse.frontend.passes.name_convolutions import layer_name_of
from tvm_sparse.frontend.passes.next_to_layers import interleaved_behind, maps_before, pool_behind
from tvm_sparse.frontend.passes.relax_graph import (
    Graph,
    channel_vector,
    constant_weight,
    is_call,
    is_float32,
    one_a_channel,
    static_shape,
)

# Operators each of whose results is one of the numbers of the input.
_MOVING = ("relax.nn.max_pool2d", "relax.reshape", "relax.strided_slice")
# The weight of a layer that is looked for, as `constant_weight` gives it, or None.
WeightOf = Callable[[Expr], np.ndarray | None]


@dataclass(frozen=True)
class ConvLayer:
    """One convolution of a model: `weight` (K, C / groups, R, S), float32, and `bias` (K,) or None, of the spec's type.

    A linear layer is the convolution ``n=rows, h=w=r=s=1``: its input (..., C) and output (..., K) lie in memory as
    (N, C, 1, 1) and (N, K, 1, 1) do. `has_pool`: its one reader is a max pool of 2x2 windows side by side. `feeds`: the
    name of the layer that is its one reader, if that is a layer. `model_form`: what it is in the model, where that is
    no 2-D convolution. `interleaving`: how its one reader interleaves its outputs, if that does. `volumes`: how its
    input is made of the maps of volumes, if that is done for it alone.
    """

    name: str
    spec: ConvSpec
    weight: np.ndarray
    bias: np.ndarray | None
    is_linear: bool = False
    has_pool: bool = False
    feeds: str | None = None
    model_form: ModelForm | None = None
    interleaving: Interleaving | None = None
    volumes: Volumes | None = None

    @cached_property
    def is_quantised(self) -> bool:
        """Whether `weight` is one in eight bits, less its zero point."""
        return holds_codes(self.weight)

    @cached_property
    def pattern(self) -> SparsityPattern:
        """The zeros of `weight`."""
        return SparsityPattern.of(self.weight, self.spec.groups)

    @property
    def kind(self) -> str:
        """What it is in the model."""
        return "linear" if self.is_linear else self._form.kind

    @property
    def shape_text(self) -> str:
        """It in a few characters, as the model has it: input, filters, and what is unusual about it."""
        return f"{self.spec.n}x{self.spec.c}, {self.spec.k}" if self.is_linear else self._form.shape_text(self.spec)

    @property
    def model_weight(self) -> np.ndarray:
        """`weight` by filters and channels of the model, and with zeros where there are no weights."""
        return self.weight if self.model_form is None else self.model_form.weight(self.weight, self.spec.groups)

    @cached_property
    def model_pattern(self) -> SparsityPattern:
        """The zeros among the weights of the model."""
        if self.model_form is None:
            return self.pattern
        size, pattern = self.model_form.size(self.spec), SparsityPattern.of(self.model_weight, self.spec.groups)
        return replace(pattern, size=size, structure="dense" if pattern.nnz > DENSE * size else pattern.structure)

    @property
    def is_pruned(self) -> bool:
        """Whether it has enough zeros to count as pruned."""
        return self.model_pattern.density <= DENSE

    @property
    def _form(self) -> ModelForm:
        return self.model_form or ModelForm.of_spec(self.spec)


@dataclass(frozen=True)
class Group:
    """A layer and where it is in ``main``.

    `absorbed` are the variables that vanish when one kernel computes `result` from `data` and `residual`. Of a linear
    layer these have shapes of their own, whose elements lie as those of the layer's spec. `behind` is the result of the
    layer's pool, or of what interleaves its outputs, if it has one. `maps` are those of the volumes of which `data` is
    made, if the layer has `volumes`.
    """

    layer: ConvLayer
    data: Expr
    residual: Expr | None
    absorbed: tuple[Var, ...]
    result: Var
    behind: Var | None = None
    maps: Expr | None = None


def find_convolutions(module: tvm.IRModule) -> list[ConvLayer]:
    """The convolutions and sparse linear layers of ``main`` in program order.

    A step of the epilogue is fused when nothing else reads what it starts from. Of two convolutions that are added, the
    first to be computed takes the other's result as its residual. Of a model stored in half precision a layer is of
    that type where all that it reads is, and where its result is rounded to it (`store_half`). ModelError where a bias
    holds NaN or infinity.
    """
    return [group.layer for group in find_groups(Graph.of(module))]


def find_groups(graph: Graph, weight_of: WeightOf = constant_weight) -> list[Group]:
    """`find_convolutions`, with the place of each; of other layers where `weight_of` gives the weight of those."""
    groups: list[Group] = []
    taken: set[Var] = set()
    for var, value in graph.definitions.items():
        if (weight := weight_of(value)) is not None:
            group = _group(graph, var, weight, taken, len(groups))
            taken.update((*group.absorbed, group.result))
            groups.append(group)
    first = {(*group.absorbed, group.result)[0]: group for group in groups}
    return [_with_reader(graph, group, first) for group in groups]


def _with_reader(graph: Graph, group: Group, first: Mapping[Var, Group]) -> Group:
    """`group`, which knows the one layer that reads its result; `first` has all by the variables they begin with."""
    user = graph.only_user(group.result)
    reader = first.get(user[0]) if user is not None else None
    if reader is None or not group.result.same_as(reader.data):
        return group
    return replace(group, layer=replace(group.layer, feeds=reader.layer.name))


def _group(graph: Graph, var: Var, weight: np.ndarray, taken: set[Var], position: int) -> Group:
    call = graph.definitions[var]
    is_linear = is_call(call, "relax.matmul")
    variables = [var]
    bias = residual = None
    relu, relu_max = False, math.inf
    while not relu and (user := graph.only_user(variables[-1])) is not None and user[0] not in taken:
        following, step = user
        if following in graph.wide and variables[-1] not in graph.wide:
            # What comes before is rounded.
            break
        if is_call(step, "relax.nn.relu"):
            relu = True
        elif (most := _clips_at(step)) is not None:
            relu, relu_max = True, most
        elif is_call(step, "relax.add"):
            other = step.args[1] if step.args[0].same_as(variables[-1]) else step.args[0]
            vector = channel_vector(other, one_a_channel(call, variables[-1]))
            if vector is not None and bias is None and residual is None:
                bias = vector.astype(np.float32)
            elif residual is None and _is_residual(other, variables[-1]):
                residual = other
            else:
                break
        elif not (is_linear and _keeps_rows(step, following, len(weight))):
            break
        variables.append(following)
    data, dtype = call.args[0], FLOAT32
    half = _half_tensors(graph, data, residual, variables[-1])
    if half is not None:
        data, residual, result = half
        variables, dtype = [*variables, result], str(result.ty.dtype)
    spec = _spec(call, weight, bias is not None, residual is not None, relu)
    if dtype == FLOAT32 and not is_linear and holds_signed_codes(weight):
        spec = replace(spec, least=least_code(graph, data))
    spec = replace(spec, relu_max=relu_max, dtype=dtype)
    name = layer_name_of(call) or f"{'linear' if is_linear else 'conv'}{position}"
    if bias is not None:
        check_finite(name, "bias", bias)
        bias = stored(bias, dtype)
    pool, mixed = pool_behind(graph, variables[-1]), interleaved_behind(graph, variables[-1])
    form = graph.model_forms.get(name)
    interleaving = form.interleaving if form is not None and mixed is not None else None
    weight = np.ascontiguousarray(weight)
    maps = maps_before(graph, data) if form is not None and dtype == FLOAT32 else None
    volumes = form.volumes if form is not None and maps is not None else None
    layer = ConvLayer(name, spec, weight, bias, is_linear, pool is not None, None, form, interleaving, volumes)
    behind = pool if mixed is None else mixed
    return Group(layer, data, residual, tuple(variables[:-1]), variables[-1], behind, maps)


def _half_tensors(graph: Graph, data: Expr, residual: Expr | None, result: Var) -> tuple[Expr, Expr | None, Var] | None:
    """What `data` and `residual` are widened from and `result` is rounded to, where that is one half-precision type."""

    def source(value: Expr) -> Expr | None:
        definition = graph.definitions.get(value)
        return definition.args[0] if definition is not None and is_call(definition, "relax.astype") else None

    user = graph.only_user(result)
    rounded = user[0] if user is not None and is_call(user[1], "relax.astype") else None
    dtype = "" if rounded is None else str(rounded.ty.dtype)
    sources = [source(each) for each in (data, residual) if each is not None]
    if rounded is None or not is_half(dtype) or any(each is None or str(each.ty.dtype) != dtype for each in sources):
        return None
    return sources[0], sources[1] if residual is not None else None, rounded


def _keeps_rows(step: Call, result: Var, channels: int) -> bool:
    """Whether `step` reshapes all axes but the last, as torch.export does behind linear layers of many axes."""
    return is_call(step, "relax.reshape") and (static_shape(result) or ())[-1:] == (channels,)


def _clips_at(step: Expr) -> float | None:
    """The largest value of a ReLU that has one, such as ReLU6; None where `step` is none."""
    if not is_call(step, "relax.clip"):
        return None
    numbers = [float(each.value) for each in step.args[1:] if isinstance(each, tirx.FloatImm | tirx.IntImm)]
    # As the kernels and TVM's own clip know it.
    numbers = [float(np.float32(each)) for each in numbers]
    return numbers[1] if len(numbers) == 2 and numbers[0] == 0 < numbers[1] < math.inf else None


def least_code(graph: Graph, data: Expr) -> int:
    """The least of the integers that a tensor has, of 256 at most; `NO_CODES` where nothing rounds it to such."""
    value, bounds = graph.definitions.get(data), None
    while value is not None and any(is_call(value, each) for each in (*_MOVING, "relax.clip")):
        if is_call(value, "relax.clip"):
            # The last to be applied counts.
            bounds = bounds or [float(each.value) for each in value.args[1:]]
        value = graph.definitions.get(value.args[0])
    if bounds is None or value is None or not is_call(value, "relax.round"):
        return NO_CODES
    least, most = bounds
    is_whole = least.is_integer() and most.is_integer()
    return int(least) if is_whole and least <= 0 <= most < least + CODES else NO_CODES


def _is_residual(value: Expr, output: Var) -> bool:
    same_shape = static_shape(value) == static_shape(output)
    return same_shape and is_float32(value) and not isinstance(value, GenericConst)


def _spec(call: Call, weight: np.ndarray, bias: bool, residual: bool, relu: bool) -> ConvSpec:
    shape = static_shape(call.args[0])
    assert shape is not None, "constant_weight admits known shapes only"
    k, _, r, s = weight.shape
    geometry: dict[str, Any] = {}
    if is_call(call, "relax.matmul"):
        # Rows of all axes are images: (N, T, C) lies in memory as (N T, C, 1, 1) does, whereas (N, C, T, 1), with rows
        # as pixels, would cost a transposition on either side. A kernel that wants one does it as it packs its input.
        shape = (math.prod(shape[:-1]), shape[-1], 1, 1)
    else:
        attrs = call.attrs
        names = {"stride": attrs.strides, "padding": attrs.padding, "dilation": attrs.dilation}
        geometry = {name: tuple(map(int, values)) for name, values in names.items()} | {"groups": int(attrs.groups)}
    n, c, h, w = shape
    return ConvSpec(n=n, c=c, h=h, w=w, k=k, r=r, s=s, **geometry, bias=bias, residual=residual, relu=relu)
