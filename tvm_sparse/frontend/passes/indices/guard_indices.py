"""Keep every operator that reads or writes where its input says within its tensors.

Indices that are constants are checked here. Others are clamped into their range, and the lowest and the highest of them
come out of ``main`` behind its own results: where one was out of range, `settle_checks` refuses the model if they turn
out to be constants, and the runtime refuses the call.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, Expr, GenericConst, Var

from tvm_sparse.conv.index_check import INT64, IndexCheck
from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.origins import INDEXED, origin_of
from tvm_sparse.frontend.passes.indices.index_operands import IndexOperand, first_column, operands_of, with_operands
from tvm_sparse.frontend.passes.indices.main_results import results_of, with_results
from tvm_sparse.frontend.passes.relax_graph import Graph, is_call, static_shape

# Types that hold the size of any tensor.
_WIDE = ("int32", INT64)
# Operators that do not change which elements a tensor has.
_REARRANGING = ("relax.reshape", "relax.squeeze", "relax.expand_dims", "relax.permute_dims", "relax.flatten")


def guard_indices(module: tvm.IRModule) -> tuple[tvm.IRModule, list[IndexCheck]]:
    """`module` with safe indices, and what is to be checked; run it before anything that computes constants.

    For each check, ``main`` returns one more tensor, int64 (`IndexCheck.size`,), as `IndexCheck.wrong` takes it.
    ModelError where a constant index is out of range; or an operator in a branch has other indices, or takes from an
    empty tensor.
    """
    definitions = Graph.of(module).definitions
    _check_branches(definitions.values())
    if not any(_is_indexed(value) for value in definitions.values()):
        return module, []
    guarded = relax.transform.ToNonDataflow()(module)
    guard = _Guard(guarded)
    found = guard.run()
    if not guard.is_changed:
        return module, []
    passes = [relax.transform.ConvertToDataflow(), relax.transform.DeadCodeElimination(["main"])]
    return tvm.transform.Sequential(passes)(found), guard.checks


def _is_indexed(value: Expr) -> bool:
    return isinstance(value, Call) and isinstance(value.op, tvm.ir.Op) and value.op.name in INDEXED


def _check_branches(values: Iterable[Expr]) -> None:
    """Branches cannot return what was found, so that all of their indices must be constants."""
    for branch in (value for value in values if isinstance(value, relax.If)):
        calls: list[Call] = []
        relax.analysis.post_order_visit(branch, lambda each, found=calls: _is_indexed(each) and found.append(each))
        for call in calls:
            if any(_checked_constant(call, operand, operand.index) is None for operand in operands_of(call, {})):
                problem, hint = "its indices, in a branch, are known at run time only", "export the model without it"
                raise ModelError(origin_of(call).name, problem, hint=hint)


def _checked_constant(
    call: Call, operand: IndexOperand, index: Expr, counts_back: bool | None = None
) -> np.ndarray | None:
    """The indices of `operand`, none negative, where `index` is constant; ModelError where one is out of range."""
    if not isinstance(index, GenericConst):
        return None
    array = index.value.numpy()
    check = _check_of(call, operand, counts_back)
    if array.size:
        axes = tuple(range(array.ndim - 1)) if operand.has_coordinates else None
        bounds = [int(each) for reduce in (np.min, np.max) for each in np.ravel(reduce(array, axis=axes))]
        require_in_range(check, bounds)
    sizes = np.asarray(operand.sizes if operand.has_coordinates else operand.sizes[0])
    return np.where(array < 0, array + sizes, array).astype(array.dtype)


def _check_of(call: Call, operand: IndexOperand, counts_back: bool | None = None) -> IndexCheck:
    """The check of `operand`; where `counts_back` is None its operator says whether negative indices do."""
    origin = origin_of(call)
    is_signed = (origin.counts_back if counts_back is None else counts_back) and not operand.is_float
    return IndexCheck(origin.name, tuple((-size if is_signed else 0, size - 1) for size in operand.sizes))


def require_in_range(check: IndexCheck, bounds: Sequence[int]) -> None:
    """Raise ModelError where `bounds`, as `IndexCheck.wrong` takes them, are not in the range of `check`."""
    wrong = check.wrong(bounds)
    if wrong is not None:
        found, allowed = wrong
        raise ModelError(check.where, "a constant index of it is out of range", found, allowed, "repair the model")


def _is_same(one: Expr, other: Expr) -> bool:
    if isinstance(one, GenericConst) and isinstance(other, GenericConst):
        return np.array_equal(one.value.numpy(), other.value.numpy())
    return one.same_as(other)


class _Guard:
    """Rewrites ``main``, a function without dataflow blocks."""

    def __init__(self, module: tvm.IRModule):
        self.module, self.builder = module, relax.BlockBuilder(module)
        self.definitions = Graph.of(module).definitions
        self.bindings: list[relax.Binding] = []
        self.checks: list[IndexCheck] = []
        self.bounds: list[Var] = []
        self.is_changed = False

    def run(self) -> tvm.IRModule:
        """The module with another ``main``."""
        main = self.module["main"]
        for block in main.body.blocks:
            for binding in block.bindings:
                if _is_indexed(binding.value):
                    self.is_changed |= is_call(binding.value, "relax.take")
                    safe = self.builder.normalize(self._guarded(binding.value))
                    self.bindings.append(relax.VarBinding(binding.var, safe))
                else:
                    self.bindings.append(binding)
        results = [*results_of(main.body.body, self.definitions, self._bind), *self.bounds]
        return with_results(self.module, self.bindings, results)

    def _bind(self, value: Expr) -> Var:
        value = self.builder.normalize(value)
        var = relax.Var(f"index{len(self.bindings)}", value.ty)
        self.bindings.append(relax.VarBinding(var, value))
        return var

    def _guarded(self, call: Call) -> Call:
        safe = []
        for operand in operands_of(call, self.definitions):
            if operand.is_float:
                column, others = first_column(operand, self._bind)
                safe.append(self._bind(relax.op.concat([self._safe(call, column), others], 1)))
            else:
                safe.append(self._safe(call, operand))
        return with_operands(call, safe)

    def _safe(self, call: Call, operand: IndexOperand) -> Expr:
        """The indices of `operand`, all in range where the model is right or the bounds tell that it is not."""
        index = operand.index
        if 0 in (static_shape(index) or (1,)):
            return index
        if 0 in operand.sizes:
            problem, hint = "it takes elements of an empty tensor", "leave it out of the model"
            raise ModelError(origin_of(call).name, problem, hint=hint)
        raw, is_normalised = self._raw(operand)
        # What the model has normalised itself counts back, whatever the operator does.
        counts_back = is_normalised or None
        array = _checked_constant(call, operand, raw, counts_back)
        if array is not None:
            if isinstance(index, GenericConst) and np.array_equal(index.value.numpy(), array):
                return index
            self.is_changed = True
            # Without its type int64 becomes int32.
            return relax.const(array.reshape(static_shape(index) or ()), str(index.ty.dtype))
        self.is_changed = True
        check = _check_of(call, operand, counts_back)
        self._note(check, raw, operand)
        return self._clamped(index, operand, check.ranges[0][0] < 0 and not is_normalised)

    def _raw(self, operand: IndexOperand) -> tuple[Expr, bool]:
        """What the model gave for an index, before narrower types and other shapes, and without what stands for -1.

        And whether that was among it: what is negative then was out of range.
        """
        index, is_ordered, is_normalised = operand.index, operand.has_coordinates, False
        while isinstance(index, Var) and isinstance(value := self.definitions.get(index), Call):
            is_narrowed = is_call(value, "relax.astype") and "int" in str(value.args[0].ty.dtype)
            if is_narrowed or (not is_ordered and any(is_call(value, name) for name in _REARRANGING)):
                index = value.args[0]
            elif (plain := self._before_normalisation(value, operand)) is not None:
                index, is_normalised = plain, True
            else:
                break
        return index, is_normalised

    def _before_normalisation(self, value: Call, operand: IndexOperand) -> Expr | None:
        """``x`` of ``where(x < 0, x + size, x)``, as TVM's importer of ONNX writes it."""
        if not is_call(value, "relax.where"):
            return None
        condition, moved, plain = (self.definitions.get(each, each) for each in value.args)
        plain = value.args[2]
        is_one = is_call(condition, "relax.less") and is_call(moved, "relax.add")
        if not is_one or not all(_is_same(each.args[0], plain) for each in (condition, moved)):
            return None
        zero, added = (self.definitions.get(each.args[1], each.args[1]) for each in (condition, moved))
        sizes = np.asarray(operand.sizes if operand.has_coordinates else operand.sizes[0])
        if isinstance(added, GenericConst):
            is_size = bool((added.value.numpy() == sizes).all())
        else:
            is_size = self._is_of_shapes(added)
        return plain if is_size and isinstance(zero, GenericConst) and not zero.value.numpy().any() else None

    def _is_of_shapes(self, value: Expr) -> bool:
        """Whether no input of the model decides `value`: it is the importer's, computed of the tensor's shape."""
        if isinstance(value, Var):
            return value in self.definitions and self._is_of_shapes(self.definitions[value])
        if not isinstance(value, Call) or is_call(value, "relax.shape_of"):
            return True
        return all(map(self._is_of_shapes, value.args))

    def _note(self, check: IndexCheck, raw: Expr, operand: IndexOperand) -> None:
        values = self._bind(relax.op.astype(raw, INT64)) if str(raw.ty.dtype) != INT64 else raw
        axes = list(range(len(raw.ty.shape) - 1)) if operand.has_coordinates else None
        if axes == []:
            found = [values, values]
        else:
            found = [self._bind(reduce(values, axes)) for reduce in (relax.op.min, relax.op.max)]
        flat = [self._bind(relax.op.reshape(each, (len(check.ranges),))) for each in found]
        self.bounds.append(self._bind(relax.op.concat(flat, 0)))
        self.checks.append(check)

    def _clamped(self, index: Expr, operand: IndexOperand, counts_back: bool) -> Expr:
        if operand.is_float:
            whole = self._clamped(self._bind(relax.op.astype(index, INT64)), replace(operand, is_float=False), False)
            return self._bind(relax.op.astype(whole, str(index.ty.dtype)))
        if str(index.ty.dtype) not in _WIDE:
            index = self._bind(relax.op.astype(index, INT64))
        dtype = str(index.ty.dtype)
        sizes = np.asarray(operand.sizes if operand.has_coordinates else operand.sizes[0], dtype)
        zero = relax.const(0, dtype)
        if counts_back:
            is_negative = self._bind(relax.op.less(index, zero))
            moved = self._bind(relax.op.add(index, relax.const(sizes, dtype)))
            index = self._bind(relax.op.where(is_negative, moved, index))
        above = self._bind(relax.op.maximum(index, zero))
        return self._bind(relax.op.minimum(above, relax.const(sizes - 1, dtype)))
