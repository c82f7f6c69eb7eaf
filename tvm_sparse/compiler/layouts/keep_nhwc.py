"""Leave what cuDNN computes in NHWC in that layout until something else reads it."""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Literal

import tvm
from tvm import relax, tirx
from tvm.ir import Call, Expr, GlobalVar, Var
from tvm.target import Target

from tvm_sparse.compiler.layouts.layout_cut import LayoutCut, has_maps
from tvm_sparse.compiler.layouts.layout_free import tensors_of, turned
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.cudnn.convolution import Shape
from tvm_sparse.cudnn.layout_change import LayoutChange
from tvm_sparse.cudnn.plan import Plan
from tvm_sparse.frontend.passes.relax_graph import Graph, is_call, new_var, rebuild, static_shape
from tvm_sparse.frontend.prepare import PreparedModel
from tvm_sparse.scheduling.cuda.depthwise.space import DepthwiseSpace, depthwise_layer_of
from tvm_sparse.scheduling.cuda.first.space import FirstSpace, first_layer_of
from tvm_sparse.scheduling.cuda.first.tiling import Pool
from tvm_sparse.scheduling.cudnn_calls import convolution_call, in_layout, layout_change_call, plan_of
from tvm_sparse.scheduling.kernel import Kernel, opaque
from tvm_sparse.target.gpu import GpuInfo, gpu_info

# What follows the name of a layer's function that reads such a layout and writes NHWC.
_CALLED = {"nhwc": "nhwc", "nchw": "to_nhwc", "ncdhw": "volumes_to_nhwc"}


def results_in_nhwc(prepared: PreparedModel, kernels: Mapping[str, Kernel]) -> set[Var]:
    """The variables of ``main`` that are best made in NHWC: by cuDNN, and by what computes in either layout between."""
    layers = prepared.layers
    names = {index: each.name for index, each in enumerate(layers) if has_maps(prepared.groups[index])}
    functions = {index: kernels[name].func for index, name in names.items() if name in kernels}
    found = {index: plan_of(func) for index, func in functions.items()}
    plans = {index: plan for index, plan in found.items() if plan is not None and plan.layout == "nhwc"}
    first = [index for index, func in functions.items() if first_layer_of(func) is not None]
    depthwise = [index for index, func in functions.items() if depthwise_layer_of(func) is not None]
    # What reads an image writes either layout.
    costs = [
        (math.inf, 0.0) if index in plans or index in depthwise else (0.0, 0.0) if index in first else None
        for index in range(len(layers))
    ]
    staged = [*first, *(index for index, plan in plans.items() if plan.staged is not None)]
    # Bytes, and what a launch takes of an H200's time for these.
    cut = LayoutCut(prepared, costs, lambda change: change.moved_bytes + 5e6, staged) if plans else None
    return cut.results if cut is not None else set()


def keep_nhwc(module: tvm.IRModule, in_nhwc: Collection[Var], target: Target) -> tvm.IRModule:
    """`module` with the variables `in_nhwc`, of `results_in_nhwc`, in that layout, and each converted once at most.

    Run it after `replace_convolutions`. A kernel that converts for itself, as the layer's name stands for, stays in the
    module: it is what `verify` runs.
    """
    return _KeepNhwc(module, in_nhwc, gpu_info(target)).run() if in_nhwc else module


class _KeepNhwc:
    def __init__(self, module: tvm.IRModule, in_nhwc: Collection[Var], gpu: GpuInfo):
        self._gpu = gpu
        self._in_nhwc = set(in_nhwc)
        self._builder = relax.BlockBuilder(module)
        self._graph = Graph.of(module)
        functions = [each for each in module.functions_items() if isinstance(each[1], tirx.PrimFunc)]
        plans = {name: plan_of(func) for name, func in functions}
        self._first = {name: spec for name, func in functions if (spec := first_layer_of(func)) is not None}
        self._depthwise = {name: spec for name, func in functions if (spec := depthwise_layer_of(func)) is not None}
        self._plans = {name: plan for name, plan in plans.items() if plan is not None and plan.layout == "nhwc"}
        # Of what is left unclipped for the one who reads it: the largest value.
        self._clipped: dict[Expr, float] = {}
        # A tensor, NCHW, and the same in NHWC.
        self._twins: dict[Expr, Var] = {}
        self._functions: dict[str, GlobalVar] = {}
        self._edits: dict[Var, list[tuple[Var, Expr]]] = {}

    def run(self) -> tvm.IRModule:
        for var, value in self._graph.definitions.items():
            if var in self._in_nhwc and var not in self._edits:
                self._edits[var] = self._bindings(var, value)
        return rebuild(self._builder.get(), self._edits)

    def _plan(self, value: Expr) -> Plan | None:
        """Of a call of cuDNN in NHWC, which shall convert nothing."""
        plan = self._plans.get(value.args[0]) if is_call(value, "relax.call_tir") else None
        if plan is None:
            return None
        if plan.staged is None:
            return replace(plan, converts=False)
        # Written anew from what there is.
        layout: Literal["nchw", "nhwc", "ncdhw"] = "nhwc" if value.args[1][0] in self._in_nhwc else "nchw"
        if plan.staged.spec.volumes is not None and layout == "nchw" and self._volumes_of(value.args[1][0]) is not None:
            layout = "ncdhw"
        return replace(plan, converts=False, staged=replace(plan.staged, layout=layout))

    def _volumes_of(self, maps: Expr) -> Expr | None:
        """The volumes (N, C, D, H, W) of which each is `maps` behind each other; None where they are of none."""
        value = self._graph.definitions.get(maps)
        moved = value.args[0] if value is not None and is_call(value, "relax.reshape") else None
        move = self._graph.definitions.get(moved)
        if move is None or not is_call(move, "relax.permute_dims"):
            return None
        n, d, *rest = static_shape(moved) or ()
        is_move = list(map(int, move.attrs.axes or ())) == [0, 2, 1, 3, 4]
        return move.args[0] if is_move and static_shape(maps) == (n * d, *rest) else None

    def _reads(self, value: Expr) -> list[Expr]:
        """What `value` reads in NHWC, if it is computed so."""
        plan = self._plan(value)
        if self._depthwise_layer(value) is not None:
            return [value.args[1][0]]
        if plan is None:
            return tensors_of(value)
        given = zip(plan.inputs, value.args[1], strict=True)
        return [each for name, each in given if name in ("x", "residual") and plan.layout_of(name) == "nhwc"]

    def _bindings(self, var: Var, call: Expr) -> list[tuple[Var, Expr]]:
        """Of `var` in NHWC, after what the call reads that is not there yet, and before itself, if that is needed."""
        if (spec := self._first_layer(call)) is not None:
            return self._first_bindings(var, call, spec)
        plan, reads, bindings = self._plan(call), self._reads(call), list[tuple[Var, Expr]]()
        for tensor in reads:
            if tensor not in self._twins:
                self._twins[tensor] = self._var(var, tensor)
                bindings.append((self._twins[tensor], self._change(tensor, tensor, "nhwc")))
        twin = self._var(var, var)
        if (depthwise := self._depthwise_layer(call)) is not None:
            bindings.append((twin, self._depthwise_call(call, depthwise, twin)))
        elif plan is None:
            bindings.append((twin, turned(call, self._twins)))
        else:
            changed = {tensor: self._twins[tensor] for tensor in reads}
            layout = plan.layout_of("x")
            if layout == "ncdhw":
                changed[call.args[1][0]] = self._volumes_of(call.args[1][0])
            arguments = relax.Tuple([changed.get(each, each) for each in call.args[1]])
            name = f"{call.args[0].name_hint}_{_CALLED[layout]}"
            if plan.spec.is_clipped and self._clips_inputs(var):
                # cuDNN clips in a pass of its own.
                self._clipped[var] = plan.spec.relu_max
                plan, name = replace(plan, spec=replace(plan.spec, relu_max=math.inf)), f"{name}_unclipped"
            kernel = self._function(name, plan)
            bindings.append((twin, relax.call_tir(kernel, arguments, twin.ty)))
        return [*bindings, *self._kept(var, twin)]

    def _kept(self, var: Var, twin: Var) -> list[tuple[Var, Expr]]:
        """`twin` is `var` in NHWC from here on; what computes it in NCHW too, if that is read."""
        self._twins[var] = twin
        return [(var, self._change(twin, var, "nchw"))] if self._is_read_elsewhere(var) else []

    def _depthwise_layer(self, value: Expr) -> ConvSpec | None:
        """Of a call of a depthwise kernel."""
        return self._depthwise.get(value.args[0]) if is_call(value, "relax.call_tir") else None

    def _clips_inputs(self, var: Var) -> bool:
        """Whether `var` is read in one place, by a kernel that clips what it reads."""
        graph = self._graph
        # What nobody reads is still there.
        users = [each for each in graph.users[var] if graph.users[each] or each in graph.returned]
        if len(users) != 1 or var in graph.returned or users[0] not in self._in_nhwc:
            return False
        return self._depthwise_layer(graph.definitions[users[0]]) is not None

    def _depthwise_call(self, call: Call, spec: ConvSpec, twin: Var) -> Expr:
        tensor, *others = call.args[1]
        space = DepthwiseSpace("", spec, self._gpu, nhwc=True, most=self._clipped.get(tensor, math.inf))
        kernel = self._function(f"{call.args[0].name_hint}_nhwc", space.fastest)
        return relax.call_tir(kernel, relax.Tuple([self._twins[tensor], *others]), twin.ty)

    def _first_layer(self, value: Expr) -> ConvSpec | None:
        """Of a call of a kernel that reads an image."""
        return self._first.get(value.args[0]) if is_call(value, "relax.call_tir") else None

    def _first_bindings(self, var: Var, call: Expr, spec: ConvSpec) -> list[tuple[Var, Expr]]:
        """Of `var`, or with the pool behind it that pool's result, by a kernel that writes NHWC."""
        user = self._graph.only_user(var)
        pool = pool_of(user[1]) if user is not None and user[0] in self._in_nhwc else None
        func = FirstSpace("", spec, self._gpu, pool, nhwc=True).fastest if pool is not None else None
        result = var if user is None or func is None else user[0]
        twin = self._var(result, result)
        kernel = self._function(
            f"{call.args[0].name_hint}_to_nhwc", func or FirstSpace("", spec, self._gpu, nhwc=True).fastest
        )
        bindings = [(twin, relax.call_tir(kernel, call.args[1], twin.ty)), *self._kept(result, twin)]
        if result is var:
            return bindings
        self._edits[result] = bindings
        return []

    def _var(self, beside: Var, tensor: Expr) -> Var:
        """A variable for `tensor` in NHWC."""
        shape, name = _shape(tensor), getattr(tensor, "name", "constant")
        return new_var(self._builder.get(), beside, f"{name}_nhwc", in_layout(shape, "nhwc"), str(tensor.ty.dtype))

    def _change(self, source: Expr, tensor: Expr, to: Literal["nchw", "nhwc"]) -> Expr:
        """`source`, which is `tensor` in its other layout, with the layout `to`."""
        change = LayoutChange(_shape(tensor), str(tensor.ty.dtype), to)
        name = "_".join(map(str, ("tvm_sparse_to", to, *change.shape, change.dtype)))
        kind = relax.TensorType(in_layout(change.shape, to), change.dtype)
        return relax.call_tir(self._function(name, change), relax.Tuple([source]), kind)

    def _function(self, name: str, work: Plan | LayoutChange | tirx.PrimFunc) -> GlobalVar:
        if name not in self._functions:
            if isinstance(work, Plan):
                func = convolution_call(work)
            else:
                func = layout_change_call(work) if isinstance(work, LayoutChange) else work
            self._functions[name] = self._builder.add_func(opaque(func, name), name)
        return self._functions[name]

    def _is_read_elsewhere(self, var: Var) -> bool:
        """Whether anything needs it in NCHW."""
        if var in self._graph.returned:
            return True
        for user in self._graph.users[var]:
            # A set, as equality of variables is an expression.
            if user not in self._in_nhwc or var not in set(self._reads(self._graph.definitions[user])):
                return True
        return False


def call_in_nhwc(module: tvm.IRModule, value: Expr | None) -> tuple[Plan, dict[str, Expr]] | None:
    """Of a call of cuDNN that reads and writes NHWC as it is: its plan, and what it is given, by names."""
    if value is None or not is_call(value, "relax.call_tir") or (plan := plan_of(module[value.args[0]])) is None:
        return None
    if plan.layout != "nhwc" or plan.converts or plan.staged is not None:
        return None
    return plan, dict(zip(plan.inputs, value.args[1], strict=True))


def pool_of(call: Call) -> Pool | None:
    """The max pool of square windows, each within the map in part, that `call` is; None where it is none."""
    if not is_call(call, "relax.nn.max_pool2d") or (call.attrs.layout, call.attrs.out_layout) != ("NCHW", "NCHW"):
        return None
    attrs = call.attrs
    windows, strides, dilations = ({*map(int, each)} for each in (attrs.pool_size, attrs.strides, attrs.dilation))
    top, left, *_ = map(int, attrs.padding)
    if len(windows) > 1 or len(strides) > 1 or dilations != {1} or top != left:
        return None
    (window,), (stride,), (_, _, *size), (_, _, *read) = windows, strides, _shape(call), _shape(call.args[0])
    is_within = all((each - 1) * stride - top < before for each, before in zip(size, read, strict=True))
    return Pool(window, stride, top, (size[0], size[1])) if is_within else None


def _shape(tensor: Expr) -> Shape:
    n, c, h, w = static_shape(tensor) or ()
    return n, c, h, w
