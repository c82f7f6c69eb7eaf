"""Leave what cuDNN computes in NHWC in that layout until something else reads it."""

from dataclasses import replace

import tvm
from tvm import relax
from tvm.ir import Expr, GlobalVar, Var

from tvm_sparse.cudnn.convolution import Shape
from tvm_sparse.cudnn.layout_change import LayoutChange
from tvm_sparse.cudnn.plan import Plan
from tvm_sparse.frontend.passes.relax_graph import Graph, is_call, new_var, rebuild, static_shape
from tvm_sparse.scheduling.cudnn_calls import convolution_call, in_layout, layout_change_call, plan_of


def keep_nhwc(module: tvm.IRModule) -> tvm.IRModule:
    """`module` with calls of cuDNN in NHWC that take and give such tensors, and each tensor converted once at most.

    Run it after `replace_convolutions`. A kernel that converts for itself, as the layer's name stands for, stays in the
    module: it is what `verify` runs.
    """
    return _KeepNhwc(module).run()


class _KeepNhwc:
    def __init__(self, module: tvm.IRModule):
        self._builder = relax.BlockBuilder(module)
        self._graph = Graph.of(module)
        plans = {name: plan_of(func) for name, func in module.functions_items() if isinstance(func, tvm.tirx.PrimFunc)}
        self._plans = {name: plan for name, plan in plans.items() if plan is not None and plan.layout == "nhwc"}
        # A tensor, NCHW, and the same in NHWC.
        self._twins: dict[Expr, Var] = {}
        self._functions: dict[str, GlobalVar] = {}
        self._edits: dict[Var, list[tuple[Var, Expr]]] = {}

    def run(self) -> tvm.IRModule:
        for var, value in self._graph.definitions.items():
            if self._plan(value) is not None:
                self._edits[var] = self._bindings(var, value)
        return rebuild(self._builder.get(), self._edits)

    def _plan(self, value: Expr) -> Plan | None:
        """Of a call of cuDNN in NHWC."""
        return self._plans.get(value.args[0]) if is_call(value, "relax.call_tir") else None

    def _bindings(self, var: Var, call: Expr) -> list[tuple[Var, Expr]]:
        """Of `var` in NHWC, after what the call reads that is not there yet, and before itself, if that is needed."""
        plan = self._plan(call)
        assert plan is not None, "only such calls are edited"
        bindings: list[tuple[Var, Expr]] = []
        names = [name for name in plan.arguments if name not in ("scratch", "y")]
        arguments = dict(zip(names, call.args[1], strict=True))
        for name in {"x", "residual"} & arguments.keys():
            tensor = arguments[name]
            if tensor not in self._twins:
                self._twins[tensor] = self._var(var, tensor)
                bindings.append((self._twins[tensor], self._change(tensor, tensor, "nhwc")))
            arguments[name] = self._twins[tensor]
        self._twins[var] = twin = self._var(var, var)
        kernel = self._function(f"{call.args[0].name_hint}_nhwc", replace(plan, converts=False))
        bindings.append((twin, relax.call_tir(kernel, relax.Tuple(list(arguments.values())), twin.ty)))
        if self._is_read_elsewhere(var):
            bindings.append((var, self._change(twin, var, "nchw")))
        return bindings

    def _var(self, beside: Var, tensor: Expr) -> Var:
        """A variable for `tensor` in NHWC."""
        shape, name = _shape(tensor), getattr(tensor, "name", "constant")
        return new_var(self._builder.get(), beside, f"{name}_nhwc", in_layout(shape, "nhwc"), str(tensor.ty.dtype))

    def _change(self, source: Expr, tensor: Expr, to: str) -> Expr:
        """`source`, which is `tensor` in its other layout, with the layout `to`."""
        change = LayoutChange(_shape(tensor), str(tensor.ty.dtype), "nhwc" if to == "nhwc" else "nchw")
        name = "_".join(map(str, ("tvm_sparse_to", to, *change.shape, change.dtype)))
        kind = relax.TensorType(in_layout(change.shape, to), change.dtype)
        return relax.call_tir(self._function(name, change), relax.Tuple([source]), kind)

    def _function(self, name: str, work: Plan | LayoutChange) -> GlobalVar:
        if name not in self._functions:
            func = convolution_call(work) if isinstance(work, Plan) else layout_change_call(work)
            # Scheduled, and opaque for Relax's fusion, as `kernel_of` says it of all kernels.
            func = func.with_attr({"tirx.is_scheduled": True, "op_pattern": 8, "global_symbol": name})
            self._functions[name] = self._builder.add_func(func, name)
        return self._functions[name]

    def _is_read_elsewhere(self, var: Var) -> bool:
        """Whether anything but such calls of cuDNN needs it."""
        users = self._graph.users[var]
        return var in self._graph.returned or any(self._plan(self._graph.definitions[user]) is None for user in users)


def _shape(tensor: Expr) -> Shape:
    n, c, h, w = static_shape(tensor) or ()
    return n, c, h, w
