"""Folding: specialise a scheduled function for its constant sparse weight.

The dense loop nest is scheduled first, like any other computation, and its innermost multiply-add nest is marked with
the annotation `FOLD`. `bind_weight` then turns the weight argument into an attribute, and late in lowering the pass
FoldWeights replaces every marked nest by straight-line code for the non-zero weights only:

* each input element that some non-zero uses is loaded once, each accumulator is loaded and stored once;
* every non-zero becomes one multiply-add with the weight as an immediate;
* loop variables outside the nest that select weights (the output-channel tile, say) select a copy of the code through
  a binary tree of branches.

The code is in static single assignment form: stores to array elements instead cost the CUDA front end time quadratic
in their number (20,000 multiply-adds: 153 s against 3.5 s). The pass runs just before host and device code are split,
because passes that simplify or eliminate common subexpressions would inline or scan the long chains.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import tvm
import tvm_ffi
from tvm import sym, tirx
from tvm.ir import Call, Expr, Op, TensorLoad
from tvm.tirx import AttrStmt, Bind, BufferStore, For, IntImm, Stmt, Var

from tvm_sparse.codegen.folding.branch_tree import Selection
from tvm_sparse.codegen.folding.fma_assembly import AssemblyChains
from tvm_sparse.codegen.folding.fma_chains import Access, Chain, Code, Deferred
from tvm_sparse.codegen.folding.half_sums import HalfSums, totals
from tvm_sparse.codegen.tir.index_offsets import IndexForm, split_index, variables
from tvm_sparse.codegen.tir.tir_builder import function_name, function_pass, integer, sequence
from tvm_sparse.errors import BuildError
from tvm_sparse.scheduling import code_size
from tvm_sparse.scheduling.annotations import FOLD, HALF_SUMS, WEIGHT_ATTRIBUTE, WEIGHT_CALL
from tvm_sparse.target.cpu_info import CpuInfo

# TVM's attribute for the second argument of ``__launch_bounds__``.
_BLOCKS = "tirx.launch_bounds_min_blocks_per_sm"
# An exception that crosses TVM keeps its class only where TVM knows the class.
tvm_ffi.register_error("BuildError", BuildError)


def fold_weights_pass(deferred: Deferred | None = None) -> tvm.transform.Pass:
    """The pass FoldWeights; functions without a bound weight are left alone.

    With `deferred`, the code of CUDA kernels is left to its `Deferred.write_pass`, and that of CPU kernels is
    assembly where the vector unit has a writer; without it all code is TIR.
    """

    def fold(func: tirx.PrimFunc) -> tirx.PrimFunc:
        if func.attrs is None or WEIGHT_ATTRIBUTE not in func.attrs:
            return func
        weight = func.attrs[WEIGHT_ATTRIBUTE].numpy()
        target = func.attrs.get("target")
        is_cuda = target is not None and target.kind.name == "cuda"
        is_cpu = target is not None and target.kind.name == "llvm"
        assembly = AssemblyChains(CpuInfo.of(target), function_name(func)) if is_cpu and deferred is not None else None
        body = _Folder(func, weight, deferred if is_cuda else None, assembly).run()
        return func.with_body(body).without_attr(WEIGHT_ATTRIBUTE)

    return function_pass("FoldWeights")(fold)


def _is_weight(node: object) -> bool:
    return (
        isinstance(node, Call)
        and node.op.same_as(Op.get("tirx.call_pure_extern"))
        and node.args[0].value == WEIGHT_CALL
    )


def _weight_calls(node: object) -> list[Call]:
    found: list[Call] = []
    tvm_ffi.structural_walk(node, (Call, lambda call: found.append(call) if _is_weight(call) else None))
    return found


def _line(node: object) -> str:
    """The beginning of a node's text, for a message of one line."""
    return " ".join(line for line in map(str.strip, str(node).splitlines()) if not line.startswith("#"))[:200]


@dataclass(frozen=True)
class _MultiplyAdd:
    """The statement ``acc[...] = acc[...] + x[...] * weight[...]`` inside its loops, outermost first."""

    loops: list[For]
    store: BufferStore
    x: TensorLoad
    weight: Call
    lanes: int


class _Folder:
    """Folds every marked nest of one function."""

    def __init__(
        self, func: tirx.PrimFunc, weight: np.ndarray, deferred: Deferred | None, assembly: AssemblyChains | None
    ):
        self.func, self.weight, self.name = func, weight, function_name(func)
        self.deferred, self.assembly = deferred, assembly
        self.extents: dict[Var, int] = {}
        self.values: dict[Var, Expr] = {}
        self.multiply_adds = 0
        # The accumulators whose registers hold float16 sums.
        self.halves: Var | None = None
        # By the first output channel of a tile: products that its float16 sums have where its next nest begins.
        self.products: dict[int, dict[int, int]] = {}
        tvm_ffi.structural_walk(func.body, [((For, AttrStmt, Bind), self._note)], order="pre")

    def _note(self, node: For | AttrStmt | Bind) -> None:
        """Remember the extents of loops and threads and the values of bound variables."""
        if isinstance(node, Bind):
            self.values[node.var] = node.value
        elif isinstance(node, For):
            if isinstance(node.extent, IntImm):
                self.extents[node.loop_var] = int(node.extent)
        elif node.attr_key == "thread_extent" and isinstance(node.value, IntImm):
            self.extents[node.node.var] = int(node.value)

    def run(self) -> tirx.Stmt:
        """The body with every marked nest folded."""
        body = tvm_ffi.structural_map(
            self.func.body, (For, lambda loop: self._fold(loop) if FOLD in loop.annotations else loop), order="post"
        )
        if _weight_calls(body):
            raise BuildError(self.name, "a weight is used outside the marked nest", hint="report this schedule")
        if self.halves is not None:
            body = totals(body, self.halves)
        return body if self.assembly is None else self.assembly.imported(body)

    def _fold(self, loop: For) -> tirx.Stmt:
        nest, in_halves = self._match(loop), HALF_SUMS in loop.annotations
        code = self._folded(nest, in_halves)
        if in_halves:
            self.halves = nest.store.buffer
        blocks = int(loop.annotations[FOLD])
        return code if blocks == 1 else AttrStmt(integer(0), _BLOCKS, integer(blocks), code)

    def _folded(self, nest: _MultiplyAdd, in_halves: bool) -> tirx.Stmt:
        forms = [self._form(self._resolve(index), nest.loops) for index in nest.weight.args[1:]]
        selection = Selection(self.name, [form.base for form in forms], self.extents)
        weights = {origin: self._weights(forms, origin, nest.loops) for origin in selection.origins}
        prologue: list[Stmt] = []
        x, x_offsets = self._access("x", nest.x.source, nest.x.indices, nest.loops, prologue)
        acc, acc_offsets = self._access("acc", nest.store.buffer, nest.store.indices, nest.loops, prologue)

        assembly = self.assembly if self.assembly is not None and self.assembly.takes(x, acc, nest.lanes) else None
        self._count(weights.values(), assembly is not None)

        def emit(origin: tuple[int, ...]) -> Stmt:
            chain = Chain.of(weights[origin], x_offsets, acc_offsets, nest.store.value.ty, nest.lanes)
            if assembly is not None:
                return assembly.call(chain, x, acc)
            code = self._in_halves(chain, nest, origin[0] + int(forms[0].offsets.min()), acc) if in_halves else chain
            if self.deferred is None or any(ramp is not None for ramp in (*x.ramps, *acc.ramps)):
                return code.code(x, acc)
            return self.deferred.call(code, x, acc)

        return sequence([*prologue, selection.code(emit)])

    def _in_halves(self, chain: Chain, nest: _MultiplyAdd, first_filter: int, acc: Access) -> Code:
        """The chain of a nest, two outputs at a time; BuildError where they are none, or inputs at unknown places."""
        base = self._resolve(self._form(nest.x.indices[-1], nest.loops).base)
        # Which k-tile is read: it begins with a row, at an even address like all rows of even length.
        base = tvm_ffi.structural_map(base, (TensorLoad, lambda _turn: integer(0)), order="post")
        known = sym.Analyzer().modular_set(base)
        if known.coeff % 2 or not HalfSums.are_pairs(chain):
            raise BuildError(self.name, "inputs of two outputs are not known to lie side by side", _line(base))
        if len(acc.bases) != 1 or not isinstance(acc.bases[0], IntImm):
            raise BuildError(self.name, "accumulators are not known by their number", acc.bases)
        products = self.products.setdefault(first_filter, {})
        return HalfSums.after(products, int(acc.bases[0]), chain, is_odd=bool(known.base % 2))

    def _count(self, weights: Iterable[np.ndarray], is_assembly: bool) -> None:
        """Add the multiply-adds of a nest to the function's; BuildError where they are too many."""
        self.multiply_adds += sum(int(np.count_nonzero(each)) for each in weights)
        most = code_size.MAX_ASSEMBLED if is_assembly else code_size.MAX_MULTIPLY_ADDS
        if self.multiply_adds > most:
            raise BuildError(
                self.name,
                "the folded code would take too long to compile",
                f"{self.multiply_adds} multiply-adds",
                f"up to {most}",
                "use a smaller tile, or a schedule that reads its weights as data",
            )

    def _resolve(self, index: Expr) -> Expr:
        """`index` with bound variables replaced by their values."""
        while any(v in self.values for v in variables([index])):
            index = tvm_ffi.structural_map(index, (Var, lambda v: self.values.get(v, v)), order="post")
        return index

    def _match(self, loop: For) -> _MultiplyAdd:
        """The multiply-add of a marked nest; BuildError where it is not of the form that schedules produce."""
        loops, store = [], loop
        while isinstance(store, For):
            loops.append(store)
            store = store.body
        value = store.value if isinstance(store, BufferStore) else None
        terms = [value.a, value.b] if isinstance(value, tirx.Add) else []
        products = [term for term in terms if isinstance(term, tirx.Mul)]
        if len(products) != 1 or not all(isinstance(each.extent, IntImm) for each in loops):
            raise BuildError(
                self.name, "the marked nest is not a multiply-add in loops of constant extent", _line(store)
            )
        # Half-precision inputs are widened as they are read.
        factors = [each.value if isinstance(each, tirx.Cast) else each for each in (products[0].a, products[0].b)]
        weighted = [factor for factor in factors if _weight_calls(factor)]
        inputs = [factor for factor in factors if isinstance(factor, TensorLoad)]
        if len(weighted) != 1 or len(inputs) != 1:
            raise BuildError(self.name, "the marked nest does not multiply an input by the weight", _line(products[0]))
        lanes = weighted[0].lanes if isinstance(weighted[0], tirx.Broadcast) else 1
        return _MultiplyAdd(loops, store, inputs[0], _weight_calls(weighted[0])[0], int(lanes))

    def _form(self, index: Expr, loops: list[For]) -> IndexForm:
        form = split_index(index, [each.loop_var for each in loops], [int(each.extent) for each in loops])
        if form is None:
            raise BuildError(self.name, "an index is not a sum of loop variables and outer terms", index)
        return form

    def _access(
        self, name: str, buffer: Var, indices: list, loops: list[For], prologue: list[Stmt]
    ) -> tuple[Access, list[np.ndarray]]:
        """What the nest reads or writes, and the offsets of each dimension over its loops.

        Added to `prologue` are the parts of the indices that all copies share.
        """
        bases, ramps, offsets = [], [], []
        for index in indices:
            ramp = index if isinstance(index, tirx.Ramp) else None
            form = self._form(index if ramp is None else ramp.base, loops)
            base = form.base
            if not isinstance(base, IntImm):
                base = Var(f"{name}_base", form.base.ty)
                prologue.append(Bind(base, form.base))
            bases.append(base)
            ramps.append(ramp)
            offsets.append(form.offsets)
        return Access(buffer, bases, ramps), offsets

    def _weights(self, forms: list[IndexForm], origin: tuple[int, ...], loops: list[For]) -> np.ndarray:
        """The weight at every point of the nest; 0 where the index lies outside (a padded tile)."""
        positions = [start + form.offsets for start, form in zip(origin, forms, strict=True)]
        inside = np.ones([int(each.extent) for each in loops], bool)
        for position, extent in zip(positions, self.weight.shape, strict=True):
            inside = inside & (position >= 0) & (position < extent)
        clipped = [np.clip(p, 0, extent - 1) for p, extent in zip(positions, self.weight.shape, strict=True)]
        return np.where(inside, self.weight[tuple(clipped)], 0)
