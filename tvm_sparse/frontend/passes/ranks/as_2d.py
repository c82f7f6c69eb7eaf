"""Write convolutions of lines and volumes, and transposed ones, as 2-D convolutions, which have kernels.

A line (N, C, W) is a map of one row, and a volume (N, C, D, H, W) a batch of N * D maps, whose neighbours in depth are
more channels of a convolution. The outputs of a transposed convolution are those of an ordinary one, which interleave
(`phases`). What is computed element by element between such layers is computed on maps too, so that it can be folded
into them, and only what reads a tensor as the model has it pays for its form.
"""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import tvm
from tvm import relax, te
from tvm.ir import Call, Expr, GenericConst, Op, Var

from tvm_sparse.frontend.passes.name_convolutions import layer_name_of
from tvm_sparse.frontend.passes.ranks.convolution import Convolution
from tvm_sparse.frontend.passes.ranks.lines import LINES, PAD
from tvm_sparse.frontend.passes.ranks.moves import interleaved, with_depths
from tvm_sparse.frontend.passes.relax_graph import (
    ELEMENTWISE,
    MODEL_FORMS,
    Graph,
    channel_vector,
    is_float32,
    other_weight,
    rebuild,
    static_shape,
)

_RESHAPING = ("relax.expand_dims", "relax.reshape", "relax.squeeze")
_LINE, _MAP, _VOLUME = 3, 4, 5


def as_2d(module: tvm.IRModule) -> tvm.IRModule:
    """`module` whose convolutions with constant weights are all 2-D; run it once `name_convolutions` has."""
    if not any(other_weight(value) is not None for value in Graph.of(module).definitions.values()):
        return module
    passes = [
        relax.transform.ConvertToDataflow(),
        relax.transform.CanonicalizeBindings(),
        relax.transform.DeadCodeElimination(["main"]),
    ]
    # Maps of a tensor are read wherever it is, in whichever block.
    return tvm.transform.Sequential(passes)(_Rewriting(relax.transform.ToNonDataflow()(module)).run())


class _Rewriting:
    """Rewrites ``main``, a function without dataflow blocks."""

    def __init__(self, module: tvm.IRModule):
        self._module, self._graph = module, Graph.of(module)
        self._builder = relax.BlockBuilder(module)
        # Lines and volumes -> the same as maps.
        self._maps: dict[Expr, Expr] = {}
        # Results of transposed convolutions -> outputs of the ordinary one, and what makes maps of these.
        self._phases: dict[Var, tuple[Var, Convolution]] = {}
        self._bindings: list[tuple[Var, Expr]] = []
        self._forms: dict[str, str] = {}

    def run(self) -> tvm.IRModule:
        """The module with another ``main``."""
        edits: dict[Var, list[tuple[Var, Expr]]] = {}
        for var, value in self._graph.definitions.items():
            self._bindings = []
            weight = other_weight(value)
            if weight is not None:
                self._convolution(var, value, Convolution.of_call(value, weight))
            elif isinstance(value, Call) and isinstance(value.op, Op) and is_float32(var) and static_shape(var):
                self._operator(var, value)
            if self._bindings:
                edits[var] = self._bindings
        module = rebuild(self._builder.get(), edits)
        module["main"] = module["main"].with_attr(MODEL_FORMS, self._forms)
        return module

    def _emit(self, value: Expr) -> Expr:
        value = self._builder.normalize(value)
        var = relax.Var(f"maps{len(self._maps)}", value.ty)
        self._bindings.append((var, value))
        return var

    def _bind(self, var: Var, maps: Expr) -> None:
        """Bind `var` to what has the elements of `maps`."""
        shape = static_shape(var) or ()
        if len(shape) != _MAP:
            maps = self._maps[var] = self._emit(maps)
        if len(shape) == _LINE:
            maps = relax.op.reshape(maps, shape)
        elif len(shape) == _VOLUME:
            n, k, d, h, w = shape
            maps = relax.op.permute_dims(self._emit(relax.op.reshape(maps, (n, d, k, h, w))), (0, 2, 1, 3, 4))
        self._bindings.append((var, maps))

    def _maps_of(self, value: Expr) -> Expr:
        """`value` as maps: a line, a volume or maps."""
        shape = static_shape(value) or ()
        if len(shape) != _MAP and value not in self._maps:
            if len(shape) == _LINE:
                n, c, w = shape
                self._maps[value] = self._emit(relax.op.reshape(value, (n, c, 1, w)))
            else:
                n, c, d, h, w = shape
                moved = self._emit(relax.op.permute_dims(value, (0, 2, 1, 3, 4)))
                self._maps[value] = self._emit(relax.op.reshape(moved, (n * d, c, h, w)))
        return self._maps.get(value, value)

    # Convolutions

    def _convolution(self, var: Var, call: Call, of: Convolution) -> None:
        data = self._maps_of(call.args[0])
        spec = of.spec((static_shape(call.args[0]) or ())[0])
        if of.volumes is not None:
            data = self._emit(self._moved(partial(with_depths, volumes=of.volumes, groups=of.groups), data))
        geometry = (spec.stride, spec.padding, spec.dilation, spec.groups)
        made = relax.op.nn.conv2d(data, relax.const(of.flat_weight), *geometry, out_dtype="float32")
        made = relax.Call(made.op, made.args, made.attrs, made.ty_args, call.span)
        if of.is_interleaved:
            made = self._emit(made)
            self._phases[var] = made, of
            made = self._interleaved(made, of)
        self._bind(var, made)
        self._forms[layer_name_of(call)] = of.model_form(call).to_text()

    def _interleaved(self, made: Expr, of: Convolution) -> Expr:
        return self._moved(partial(interleaved, phases=of.phases, groups=of.groups), made)

    def _moved(self, function: partial[te.Tensor], maps: Expr) -> Expr:
        return self._builder.call_te(function, maps, primfunc_name_hint=function.func.__name__)

    # What lies between them

    def _operator(self, var: Var, call: Call) -> None:
        if call.op.name in _RESHAPING:
            self._reshaped(var, call.args[0])
        elif call.op.name == "relax.concat":
            self._concatenated(var, call.args[0], call.attrs.axis)
        elif call.op.name in LINES and len(call.args) == 1 and len(static_shape(var) or ()) == _LINE:
            # A layer takes in the zeros before it.
            if call.args[0] in self._maps or call.op.name == PAD:
                self._bind(var, LINES[call.op.name](self._maps_of(call.args[0]), call))
        elif call.op.name in ELEMENTWISE and not self._of_phases(var, call):
            self._of_maps(var, call)

    def _reshaped(self, var: Var, source: Expr) -> None:
        """A line that becomes a map of one row, or the other way round."""
        line, row = sorted([static_shape(source) or (), static_shape(var) or ()], key=len)
        if len(line) == _LINE and row == (*line[:2], 1, line[2]):
            if row == static_shape(source):
                self._maps[var] = source
            elif source in self._maps:
                self._bindings.append((var, self._maps[source]))

    def _concatenated(self, var: Var, parts: Expr, axis: int) -> None:
        """Of channels alone."""
        fields = list(parts.fields) if isinstance(parts, relax.Tuple) else []
        if axis == 1 and any(each in self._maps for each in fields):
            arguments = [self._operand(each, static_shape(each) or ()) for each in fields]
            if all(each is not None for each in arguments):
                self._bind(var, relax.op.concat(arguments, 1))

    def _of_phases(self, var: Var, call: Call) -> bool:
        """Whether it was an operator on a transposed convolution and on constants of one value a channel."""
        source = next((each for each in call.args if each in self._phases), None)
        if source is None or self._graph.only_user(source) is None:
            return False
        made, of = self._phases[source]
        shape, channels = static_shape(source) or (), static_shape(made) or ()
        each_channel = tuple(size if axis == 1 else 1 for axis, size in enumerate(shape))

        def operand(value: Expr) -> Expr | None:
            if value.same_as(source) or not isinstance(value.ty, relax.TensorType):
                return made if value.same_as(source) else value
            vector = channel_vector(value, each_channel)
            if vector is None:
                return None
            each_phase = np.repeat(vector.reshape(of.groups, 1, -1), channels[1] // shape[1], axis=1)
            return relax.const(each_phase.reshape(1, -1, 1, 1), "float32")

        arguments = list(map(operand, call.args))
        if any(each is None for each in arguments):
            return False
        made = self._emit(relax.Call(call.op, arguments, call.attrs, call.ty_args, call.span))
        self._phases[var] = made, of
        self._bind(var, self._interleaved(made, of))
        return True

    def _of_maps(self, var: Var, call: Call) -> None:
        if len(static_shape(var) or ()) not in (_LINE, _VOLUME) or not any(each in self._maps for each in call.args):
            return
        arguments = [self._operand(each, static_shape(var) or ()) for each in call.args]
        if all(each is not None for each in arguments):
            self._bind(var, relax.Call(call.op, arguments, call.attrs, call.ty_args, call.span))

    def _operand(self, value: Expr, shape: Sequence[int]) -> Expr | None:
        """An argument of what has a result of this `shape`, on maps; None where it does not lie as maps do."""
        own = static_shape(value)
        if own is None:
            return value
        own = (1,) * (len(shape) - len(own)) + own
        is_line = len(shape) == _LINE
        if not is_line and (own[0], own[2]) not in ((shape[0], shape[2]), (1, 1)):
            return None
        if isinstance(value, GenericConst):
            array = value.value.numpy().reshape(own)
            if not is_line and (own[0], own[2]) != (1, 1):
                return None
            return relax.const(array[:, :, None] if is_line else array[:, :, 0])
        # One that is no map yet is worth the move where it has little or nothing to move.
        is_cheap = value in self._maps or is_line or math.prod(own[2:]) == 1
        return self._maps_of(value) if static_shape(value) == own and is_cheap else None
