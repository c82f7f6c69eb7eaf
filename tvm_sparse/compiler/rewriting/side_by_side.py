"""Branches of small GPU models side by side: each call says what it reads and writes, and memory is not used twice.

At batch 1 a kernel leaves much of a GPU idle, and a network with branches, as GoogLeNet's, has others that could run
meanwhile: its 81 kernels took 257 us one after the other on an H200 and 187 side by side, where no path is longer than
36. `runtime.gpu.branches` records them so. Memory that is used again would have branches wait for each other (226 us).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import tvm
from tvm import relax, tirx
from tvm.ir import Call, Expr, GlobalVar, Var
from tvm.target import Target

from tvm_sparse.codegen.cuda.launches import launched
from tvm_sparse.compiler.layouts.plan_scratch import scratch_of
from tvm_sparse.frontend.passes.relax_graph import Graph, is_call, rebuild, static_shape
from tvm_sparse.runtime.workspace import NEXT_CALL
from tvm_sparse.scheduling.annotations import KERNEL_LIBRARY
from tvm_sparse.target.gpu import gpu_info

# It pays where the longest path has at most this share of all kernels, and tensors stay in the level-2 cache, of which
# they take at most the other one.
MOST_SHARE, MOST_CACHE = 0.9, 0.5
# Passes that use memory again within a call.
REUSE = ("StaticPlanBlockMemory", "KillAfterLastUse")
_ALLOCATION, _VIEWS = "relax.builtin.alloc_tensor", ("relax.reshape", "relax.memory.view")
_PLAIN = (Var, relax.Tuple, relax.TupleGetItem, relax.ShapeExpr)


class _Kernels(NamedTuple):
    """What the calls of ``main`` write and read, by the variables that they are bound to.

    `longest` is the number of calls of the longest path, `size_bytes` what all tensors that calls write take.
    """

    writes: dict[Var, list[Var]]
    reads: dict[Var, list[Var]]
    longest: int
    size_bytes: int


def side_by_side(passes: Sequence[tvm.transform.Pass], target: Target) -> tvm.transform.Pass:
    """TVM's last `passes` for a GPU, with `REUSE` left out and calls announced where branches gain by that."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_sparse.side_by_side")
    def finalized(module: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        kernels, chosen = _kernels(module), list(passes)
        if kernels is not None and _pay(kernels, target):
            module = _announced(module, kernels)
            chosen = [each for each in passes if each.info.name not in REUSE]
        return tvm.transform.Sequential(chosen)(module)

    return finalized


def _pay(kernels: _Kernels, target: Target) -> bool:
    fits = kernels.size_bytes <= MOST_CACHE * gpu_info(target).level_2_bytes
    return fits and kernels.longest <= MOST_SHARE * len(kernels.writes)


def _kernels(module: tvm.IRModule) -> _Kernels | None:
    """None where not every call says what it writes: it runs something else than kernels, or keeps something to itself.

    Each call of a kernel gets memory for its outputs, which it is the first to use.
    """
    writes, reads = dict[Var, list[Var]](), dict[Var, list[Var]]()
    unwritten, depths = set[Var](), dict[Var, int]()
    size_bytes = 0
    for var, value in Graph.of(module).definitions.items():
        depth = max((depths.get(each, 0) for each in relax.analysis.free_vars(value)), default=0)
        if is_call(value, _ALLOCATION):
            shape = static_shape(var)
            if shape is None:
                return None
            size_bytes += math.prod(shape) * tvm.DataType(str(var.ty.dtype)).itemsize
            unwritten.add(var)
        elif isinstance(value, Call) and isinstance(value.op, GlobalVar):
            tensors = [each for each in value.args if isinstance(each, Var)]
            writes[var] = [each for each in tensors if each in unwritten]
            reads[var] = [each for each in tensors if each not in unwritten]
            if not writes[var] or not _keeps_nothing(module[value.op]):
                return None
            unwritten.difference_update(writes[var])
            depths.update(dict.fromkeys(writes[var], depth + 1))
        elif not isinstance(value, _PLAIN) and not any(is_call(value, name) for name in _VIEWS):
            return None
        depths.setdefault(var, depth)
    return _Kernels(writes, reads, max(depths.values(), default=0), size_bytes)


def _keeps_nothing(func: Expr) -> bool:
    """Whether it launches kernels, none of them cuDNN's, and has no arrays of its own, which other calls may share."""
    if not isinstance(func, tirx.PrimFunc) or scratch_of(func):
        return False
    return KERNEL_LIBRARY in (func.attrs or {}) or not launched(func)


def _announced(module: tvm.IRModule, kernels: _Kernels) -> tvm.IRModule:
    """`module` with a call of `NEXT_CALL` before each of its own."""
    edits: dict[Var, list[tuple[Var, Expr]]] = {}
    definitions = Graph.of(module).definitions
    for var, outputs in kernels.writes.items():
        arguments = [relax.prim_value(len(outputs)), *outputs, *kernels.reads[var]]
        call = relax.Call(relax.ExternFunc(NEXT_CALL), arguments, ty_args=[relax.TupleType([])])
        edits[var] = [(relax.Var("announced", relax.TupleType([])), call), (var, definitions[var])]
    return rebuild(module, edits)
