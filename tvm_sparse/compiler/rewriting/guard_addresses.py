"""No address outside of a tensor, whatever the data: the last line of defence, for every operator that TVM has.

Where an index of a load or store is computed from other loads, it is clamped into its tensor. And a floating-point
number that is converted to an integer always gives one: LLVM leaves NaN, infinity and numbers that are too large
undefined, so that a comparison that guards an address may be optimised away.
"""

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Range, TensorLoad, TensorRegion, Var
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import Bind, BufferRegion, BufferStore, Cast, For

from tvm_sparse.conv.dtypes import FLOAT32, HALVES

_INT32, _INT64 = "int32", "int64"
_BITS = {_INT32: 31, _INT64: 63}


@tvm.transform.module_pass(opt_level=0, name="tvm_sparse.guard_addresses")
def guard_addresses(module: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
    """`module` with such addresses and conversions in every function but our own kernels, which are scheduled."""
    result = module.clone()
    for name, func in module.functions_items():
        if isinstance(func, tirx.PrimFunc) and "tirx.is_scheduled" not in (func.attrs or {}):
            body = tvm_ffi.structural_map(func.body, (Cast, _defined), order="post")
            body = _Clamping(body).run()
            if not body.same_as(func.body):
                result[name] = func.with_body(body)
    return result


def _defined(node: Cast) -> Expr:
    """The conversion of the nearest number that the integer type has, in 32 or 64 bits; of the least for NaN."""
    source, target = str(node.value.ty.dtype), str(node.ty.dtype)
    if "float" not in source or "int" not in target or "x" in target:
        return node
    wide = _INT64 if "64" in target or target == "uint32" else _INT32
    value = tirx.Cast(FLOAT32, node.value) if source in HALVES else node.value
    dtype = str(value.ty.dtype)
    limit = np.asarray(2.0 ** _BITS[wide], dtype)
    # Written so that each gives its second number for NaN.
    above = tirx.max(value, tirx.const(float(-limit), dtype))
    inside = tirx.min(above, tirx.const(float(np.nextafter(limit, np.zeros_like(limit))), dtype))
    return tirx.Cast(target, tirx.Cast(wide, inside))


class _Clamping:
    """Clamps what depends on loads in the indices of a function's body."""

    def __init__(self, body: tirx.Stmt):
        self.body = body
        # Variables whose value depends on a load.
        self.loaded: list[Var] = []

    def run(self) -> tirx.Stmt:
        """The body, itself where no index depends on a load."""
        on = [(Bind, self._bind), (For, self._loop), (SBlockRealize, self._block)]
        tvm_ffi.structural_walk(self.body, on, order="pre")
        rewrites = [(TensorLoad, self._load), (BufferStore, self._store), (SBlock, self._regions)]
        return tvm_ffi.structural_map(self.body, rewrites, order="post")

    def _bind(self, node: Bind) -> None:
        self._note(node.var, node.value)

    def _loop(self, node: For) -> None:
        self._note(node.loop_var, node.min, node.extent)

    def _block(self, node: SBlockRealize) -> None:
        for iteration, value in zip(node.block.iter_vars, node.iter_values, strict=True):
            self._note(iteration.var, value)

    def _note(self, var: Var, *values: Expr) -> None:
        if any(map(self._is_loaded, values)):
            self.loaded.append(var)

    def _is_loaded(self, value: Expr) -> bool:
        found: list[Expr] = []

        def note(node: Expr) -> None:
            if isinstance(node, TensorLoad) or any(node.same_as(var) for var in self.loaded):
                found.append(node)

        tvm_ffi.structural_walk(value, [(TensorLoad, note), (Var, note)], order="pre")
        return bool(found)

    def _clamped(self, tensor: Var, indices: list[Expr]) -> list[Expr] | None:
        """`indices` of `tensor`, each in its range; None where all are by themselves."""
        shape = tensor.ty.shape
        are_loaded = [self._is_loaded(index) for index in indices]
        if not any(are_loaded) or len(shape) != len(indices):
            return None
        triples = zip(indices, are_loaded, shape, strict=True)
        return [_within(index, size) if is_loaded else index for index, is_loaded, size in triples]

    def _load(self, node: TensorLoad) -> Expr:
        indices = self._clamped(node.source, list(node.indices))
        return node if indices is None else tirx.BufferLoad(node.source, indices)

    def _store(self, node: BufferStore) -> tirx.Stmt:
        indices = self._clamped(node.buffer, list(node.indices))
        return node if indices is None else BufferStore(node.buffer, node.value, indices)

    def _regions(self, node: SBlock) -> SBlock:
        """The block, which reads and writes anywhere along an axis that an index runs along."""
        reads, writes = list(map(self._region, node.reads)), list(map(self._region, node.writes))
        rest = (node.name_hint, node.body, node.init, node.alloc_buffers, node.match_buffers, node.annotations)
        pairs = zip((*reads, *writes), (*node.reads, *node.writes), strict=True)
        return node if all(new.same_as(old) for new, old in pairs) else SBlock(node.iter_vars, reads, writes, *rest)

    def _region(self, region: TensorRegion) -> TensorRegion:
        if not any(self._is_loaded(each.min) for each in region.region):
            return region
        pairs = zip(region.region, region.source.ty.shape, strict=True)
        ranges = [Range(0, size) if self._is_loaded(each.min) else each for each, size in pairs]
        return BufferRegion(region.source, ranges)


def _within(index: Expr, size: Expr) -> Expr:
    wide = index if str(index.ty.dtype) in (_INT32, _INT64) else tirx.Cast(_INT64, index)
    dtype = str(wide.ty.dtype)
    last = tirx.const(int(size) - 1, dtype) if isinstance(size, tirx.IntImm) else tirx.Cast(dtype, size) - 1
    return tirx.max(tirx.min(wide, last), tirx.const(0, dtype))
