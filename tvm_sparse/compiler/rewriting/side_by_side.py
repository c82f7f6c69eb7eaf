"""Branches of small GPU models side by side: each call says what it reads and writes, and memory is planned for that.

At batch 1 a kernel leaves much of a GPU idle, and a network with branches, as GoogLeNet's, has others that could run
meanwhile: docs/lab/cuda-networks.md, "Branches side by side". `runtime.gpu.branches` records them so. TVM uses memory
again in the order of the calls, for which branches would have to wait for each other; here a call uses what calls have
used that it waits for in any case.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import tvm
from tvm import relax, tirx
from tvm.ir import Call, Expr, GlobalVar, Var
from tvm.target import Target

from tvm_sparse.codegen.cuda.launches import launched
from tvm_sparse.compiler.layouts.plan_scratch import scratch_of
from tvm_sparse.frontend.passes.relax_graph import ALLOCATION, SAME_MEMORY, Graph, is_call, rebuild, static_shape
from tvm_sparse.runtime.workspace import NEXT_CALL
from tvm_sparse.scheduling.annotations import KERNEL_LIBRARY
from tvm_sparse.scheduling.cudnn_calls import plan_of
from tvm_sparse.target.gpu import gpu_info

# Calls beside the longest path, at least, for each fork and join, which cost 1.4 to 2 us where a kernel takes about 3.
# GoogLeNet has 0.83 and takes 0.74 times as long side by side, SqueezeNet 0.5 and 1.1 times as long.
LEAST_BESIDE = 0.75
# Share of the level-2 cache that the memory in use takes at most.
MOST_CACHE = 0.5
# Passes that use memory again as calls follow each other.
REUSE = ("StaticPlanBlockMemory", "KillAfterLastUse")
_PLAIN = (Var, relax.Tuple, relax.TupleGetItem, relax.ShapeExpr)


class _Call(NamedTuple):
    """A kernel's call, bound to `var`: the tensors that it writes and reads, and the numbers of all calls before it.

    `parents` are those of them that no other one runs after; `depth` is the number of calls of the longest path that
    ends with it.
    """

    var: Var
    writes: list[Var]
    reads: list[Var]
    earlier: frozenset[int]
    parents: frozenset[int]
    depth: int


@dataclass(eq=False)
class _Storage:
    """Memory, how much of it kernels go through as far as is known, and the numbers of all calls that use it."""

    size_bytes: int = 0
    used_bytes: int = 0
    users: set[int] = field(default_factory=set)


def side_by_side(passes: Sequence[tvm.transform.Pass], target: Target) -> tvm.transform.Pass:
    """TVM's last `passes` for a GPU, with `REUSE` left out and calls announced where branches gain by that."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_sparse.side_by_side")
    def finalized(module: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        calls, chosen = _Calls(module), list(passes)
        if calls.are_worth_it:
            plan = calls.planned()
            used_bytes = sum(each.used_bytes for each in dict.fromkeys(plan.values()))
            if used_bytes <= gpu_info(target).level_2_bytes * MOST_CACHE:
                module = calls.announced(plan)
                chosen = [each for each in passes if each.info.name not in REUSE]
        return tvm.transform.Sequential(chosen)(module)

    return finalized


class _Calls:
    """The calls of ``main``, in their order, and what they know of each other by the tensors that they share."""

    def __init__(self, module: tvm.IRModule):
        graph = Graph.of(module)
        self._module, self._definitions, self._returned = module, graph.definitions, graph.returned
        self._calls: list[_Call] = []
        # Which tensors a variable is, or is a view or a tuple of; those with memory that no call has written yet; and
        # the number of the call that wrote one.
        self._tensors: dict[Var, frozenset[Var]] = {}
        self._unwritten: set[Var] = set()
        # Of scratch memory, what cuDNN may ask for: 8 MB and more, of which its kernels for small layers touch little.
        self._spare_bytes: dict[Var, int] = {}
        self._writers: dict[Var, int] = {}
        self._are_known = all(self._add(var, value) for var, value in self._definitions.items())

    @property
    def are_worth_it(self) -> bool:
        """Whether enough are beside the longest path; never where one does something that it does not say."""
        beside = len(self._calls) - max((each.depth for each in self._calls), default=0)
        children = Counter(parent for each in self._calls for parent in each.parents)
        forks = sum(count - 1 for count in children.values())
        joins = sum(len(each.parents) - 1 for each in self._calls if each.parents)
        return self._are_known and beside > 0 and beside >= LEAST_BESIDE * (forks + joins)

    def _add(self, var: Var, value: Expr) -> bool:
        """Whether it is known what a binding does: it is a kernel's call, or runs none."""
        if is_call(value, ALLOCATION):
            self._tensors[var] = frozenset([var])
            self._unwritten.add(var)
            return static_shape(var) is not None
        if isinstance(value, Call) and isinstance(value.op, GlobalVar):
            return self._add_call(var, value)
        self._tensors[var] = self._tensors_of(relax.analysis.free_vars(value))
        return isinstance(value, _PLAIN) or any(is_call(value, name) for name in SAME_MEMORY)

    def _add_call(self, var: Var, call: Call) -> bool:
        tensors = [each for each in call.args if isinstance(each, Var)]
        # Each call of a kernel gets memory for its outputs, which it is the first to use.
        writes = [each for each in tensors if each in self._unwritten]
        reads = [each for each in tensors if each not in self._unwritten]
        writers = frozenset(self._writers[each] for each in self._tensors_of(reads) if each in self._writers)
        implied = frozenset[int]().union(*(self._calls[each].earlier for each in writers))
        depth = 1 + max((self._calls[each].depth for each in writers), default=0)
        self._unwritten.difference_update(writes)
        self._writers.update(dict.fromkeys(writes, len(self._calls)))
        func = self._module[call.op]
        if isinstance(func, tirx.PrimFunc) and (plan := plan_of(func)) is not None and len(writes) > 1:
            self._spare_bytes[writes[-1]] = plan.after_staging.workspace_bytes
        self._calls.append(_Call(var, writes, reads, writers | implied, writers - implied, depth))
        return bool(writes) and _keeps_nothing(func)

    def _tensors_of(self, variables: Iterable[Var]) -> frozenset[Var]:
        return frozenset[Var]().union(*(self._tensors.get(each, ()) for each in variables))

    def planned(self) -> dict[Var, _Storage]:
        """The memory of each tensor that a call writes: what others have used that it runs after, or new memory."""
        users = {tensor: {number} for tensor, number in self._writers.items()}
        for number, call in enumerate(self._calls):
            for tensor in self._tensors_of(call.reads) & users.keys():
                users[tensor].add(number)
        for tensor in self._tensors_of(self._returned) & users.keys():
            # Who called the model, after whom no call runs.
            users[tensor].add(len(self._calls))
        plan = dict[Var, _Storage]()
        for call in self._calls:
            for tensor in call.writes:
                free = [each for each in dict.fromkeys(plan.values()) if each.users <= call.earlier]
                size_bytes = _size_bytes(tensor)
                storage = min(free, key=lambda each: abs(each.size_bytes - size_bytes), default=_Storage())
                storage.size_bytes = max(storage.size_bytes, size_bytes)
                storage.used_bytes = max(storage.used_bytes, size_bytes - self._spare_bytes.get(tensor, 0))
                storage.users |= users[tensor]
                plan[tensor] = storage
        return plan

    def announced(self, plan: Mapping[Var, _Storage]) -> tvm.IRModule:
        """The module with this memory, and with a call of `NEXT_CALL` before each of its own."""
        edits: dict[Var, list[tuple[Var, Expr]]] = {}
        memory = {each: relax.Var("storage", relax.ObjectType()) for each in dict.fromkeys(plan.values())}
        for tensor in self._definitions.keys() & plan.keys():
            shape, dtype = relax.ShapeExpr(static_shape(tensor)), str(tensor.ty.dtype)
            edits[tensor] = [(tensor, relax.op.memory.alloc_tensor(memory[plan[tensor]], 0, shape, dtype))]
        first = next(each for each in self._definitions if each in plan)
        for storage, var in memory.items():
            shape = relax.ShapeExpr([storage.size_bytes])
            edits[first].insert(0, (var, relax.op.memory.alloc_storage(shape, 0, "global", "uint8")))
        for call in self._calls:
            arguments = [relax.prim_value(len(call.writes)), *call.writes, *call.reads]
            announcement = relax.Call(relax.ExternFunc(NEXT_CALL), arguments, ty_args=[relax.TupleType([])])
            announced = (relax.Var("announced", relax.TupleType([])), announcement)
            edits[call.var] = [announced, (call.var, self._definitions[call.var])]
        return rebuild(self._module, edits)


def _size_bytes(tensor: Var) -> int:
    return math.prod(static_shape(tensor) or ()) * tvm.DataType(str(tensor.ty.dtype)).itemsize


def _keeps_nothing(func: Expr) -> bool:
    """Whether it calls kernels or cuDNN, and has no arrays of its own, which other calls may share."""
    if not isinstance(func, tirx.PrimFunc) or scratch_of(func):
        return False
    return KERNEL_LIBRARY in (func.attrs or {}) or not launched(func)
