"""Thread blocks that compute partial sums of the same outputs, joined in one kernel as a cluster.

A schedule whose input channels are divided between thread blocks (`tvm_sparse.split`) is two kernels: one that writes
partial sums to global memory, one that adds them up. `JoinParts` makes one of them. Blocks that work on the same
outputs become a cluster, which the GPU runs at the same time on neighbouring multiprocessors; each keeps its partial
sums in its own shared memory, and behind a barrier of the cluster each adds up its share of the outputs, reading the
others' shared memory, in a fixed order. Nothing is kept in global memory, so launches on several streams do not meet,
and there is nothing to allocate or to reset: CUDA graphs may record the kernel like any other.

Clusters need compute capability 9.0 (CUDA programming guide, "Thread Block Clusters").
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import sym, tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.ir import Range, TensorLoad
from tvm.tirx import AllocBuffer, AttrStmt, BufferStore, Evaluate, For, IntImm, IterVar, SeqStmt, Stmt, Var

from tvm_sparse.codegen.tir.thread_axes import CLUSTER_AXIS, PART_AXIS, Nest, is_thread_axis, statements_of
from tvm_sparse.codegen.tir.tir_builder import substituted
from tvm_sparse.errors import BuildError
from tvm_sparse.scheduling.annotations import PARTS

# Attribute around the end of a kernel that all tiles and parts have in common.
COMMON = "tvm_sparse.common"
# The barrier of a cluster in two halves. What comes between them overlaps with waiting for the other blocks; what a
# thread stored to global memory before it arrives is waited for.
_ARRIVE, _WAIT = "tvm_sparse_arrive", "tvm_sparse_wait"
_HALF = """
__forceinline__ __device__ void tvm_sparse_{half}() {{
  __asm__ __volatile__("barrier.cluster.{half}.aligned;" ::: "memory");
}}
"""
_LOAD = "tvm_sparse_part"
# The address's conversion is the same for all outputs of a thread. The load may move across accesses of global memory,
# but not across a barrier: neither is removed or reordered among what is volatile.
_LOAD_SOURCE = """
__forceinline__ __device__ float tvm_sparse_part(const float* base, int rank, int offset) {
  unsigned int address = __cvta_generic_to_shared(base), remote;
  float value;
  __asm__("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  __asm__ __volatile__("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(remote + 4 * offset));
  return value;
}
"""


def join_parts_pass() -> tvm.transform.Pass:
    """The pass `JoinParts`; functions without an annotated loop are left alone."""

    @tirx.transform.prim_func_pass(opt_level=0, name="tvm_sparse.JoinParts")
    def join(func: tirx.PrimFunc, _module: tvm.IRModule, _context: object) -> tirx.PrimFunc:
        loops: list[For] = []
        tvm_ffi.structural_walk(
            func.body, (For, lambda loop: loops.append(loop) if PARTS in loop.annotations else None)
        )
        if not loops:
            return func
        name = str(func.attrs["global_symbol"]) if "global_symbol" in func.attrs else "kernel"
        body = _Join(name, func.body, int(loops[0].annotations[PARTS])).joined()
        return tirx.PrimFunc(func.params, body, func.ret_type, func.attrs)

    return join


class _Join:
    """The two kernels of a function, the partial sums between them, and the kernel made of them."""

    def __init__(self, name: str, body: Stmt, parts: int):
        self.name, self.parts = name, parts
        statements = statements_of(body)
        self.before, kernels = statements[:-2], statements[-2:]
        found = [each for each in self.before if isinstance(each, AllocBuffer)]
        if len(kernels) != 2 or not all(map(is_thread_axis, kernels)) or len(found) != 1:
            raise self._refusal("the function is not two kernels with one buffer between them")
        first, second = kernels
        self.first, self.first_nest, self.second = first, Nest.of(first), Nest.of(second)
        self.before.remove(found[0])
        self.global_sums = found[0].buffer
        extents = {tag: extent for tag, (_, extent) in self.first_nest.axes.items()}
        if extents != {tag: extent for tag, (_, extent) in self.second.axes.items()} or extents[PART_AXIS] != parts:
            raise self._refusal(f"the two kernels have different threads, or not {parts} parts")
        (size,) = self.global_sums.ty.shape
        # Elements of one part in all, and of one block.
        self.part_size = int(size) // parts
        self.size = self.part_size // (extents["blockIdx.x"] * extents["blockIdx.y"])
        # Dynamic, as what TVM asks the driver for is dynamic memory alone. It never takes the ring's place, which other
        # threads may still read: both are in use where code is selected by parts, and that is what lifetimes are by.
        self.sums = tirx.decl_buffer((self.size,), str(self.global_sums.ty.dtype), "sums", scope="shared.dyn")

    def joined(self) -> Stmt:
        """The function's body as one kernel."""
        kernel = self._first(self.first)
        axis = IterVar(Range(0, self.parts), Var(CLUSTER_AXIS, "int32"), IterVar.ThreadIndex, CLUSTER_AXIS)
        cluster = AttrStmt(axis, "thread_extent", IntImm("int32", self.parts), kernel)
        return SeqStmt([*self.before, cluster]) if self.before else cluster

    def _first(self, stmt: Stmt) -> Stmt:
        """The first kernel from a thread axis on, with the second at its end."""
        axis = AttrStmt(stmt.node, stmt.attr_key, stmt.value, self._inside(stmt.body))
        if stmt is not self.first:
            return axis
        allocations = [AllocBuffer(self.sums), *self.second.allocations]
        return AttrStmt(stmt.node, stmt.attr_key, stmt.value, SeqStmt([*allocations, *statements_of(axis.body)]))

    def _inside(self, stmt: Stmt) -> Stmt:
        *before, last = statements_of(stmt)
        if is_thread_axis(last):
            return SeqStmt([*before, self._first(last)]) if before else self._first(last)

        def store(node: BufferStore) -> Stmt:
            if not node.buffer.same_as(self.global_sums):
                return node
            return BufferStore(self.sums, node.value, [self._local(node.indices[0], tuple(self._blocks()))])

        statements = [tvm_ffi.structural_map(each, (BufferStore, store), order="post") for each in (*before, last)]
        # Behind the second barrier no block reads another's shared memory, so it may end.
        end = SeqStmt([_half(_ARRIVE), _half(_WAIT), *self._second(), _half(_WAIT)])
        return SeqStmt([*statements, AttrStmt(IntImm("int32", 0), COMMON, IntImm("int32", 0), end)])

    def _blocks(self) -> list[Var]:
        return [var for tag, (var, _) in self.first_nest.axes.items() if tag.startswith("blockIdx")]

    def _second(self) -> list[Stmt]:
        """The second kernel's statements on the first one's threads, partial sums read from shared memory."""
        body = SeqStmt(self.second.body)
        for tag, (var, _) in self.second.axes.items():
            body = substituted(body, var, self.first_nest.axes[tag][0])
        return statements_of(tvm_ffi.structural_map(body, (For, self._added), order="post"))

    def _added(self, loop: For) -> Stmt:
        """The loop that adds partial sums up as straight-line code, so that its loads overlap, and the arrival."""
        if PARTS not in loop.annotations:
            return loop
        zero = IntImm("int32", 0)

        def load(node: TensorLoad) -> tirx.Expr:
            if not node.source.same_as(self.global_sums):
                return node
            first = substituted(node.indices[0], loop.loop_var, zero)
            rank = self._constant(first) // self.part_size
            others = tuple(var for var in self._blocks() if not var.same_as(self.first_nest.axes[PART_AXIS][0]))
            base = self._local(first, others) - rank * self.part_size
            offset = sym.Analyzer().simplify(node.indices[0] - first)
            address = tirx.address_of(tirx.BufferLoad(self.sums, [sym.Analyzer().simplify(base)]))
            arguments = (address, IntImm("int32", rank), offset)
            return cuda_func_call(_LOAD, *arguments, source_code=_LOAD_SOURCE, return_type="float32")

        body = tvm_ffi.structural_map(loop.body, (TensorLoad, load), order="post")
        turns = [substituted(body, loop.loop_var, IntImm("int32", index)) for index in range(int(loop.extent))]
        return SeqStmt([*(each for turn in turns for each in statements_of(turn)), _half(_ARRIVE)])

    def _local(self, index: tirx.Expr, variables: tuple[Var, ...]) -> tirx.Expr:
        """A flat `index` of all partial sums without what depends on `variables`."""
        for var in variables:
            index = substituted(index, var, IntImm("int32", 0))
        return sym.Analyzer().simplify(index)

    def _constant(self, index: tirx.Expr) -> int:
        """`index` where all threads' numbers are zero."""
        value = self._local(index, tuple(var for var, _ in self.first_nest.axes.values()))
        if not isinstance(value, IntImm):
            raise self._refusal(f"a partial sum's place is not regular: {value}")
        return int(value)

    def _refusal(self, what: str) -> BuildError:
        return BuildError(self.name, f"its parts cannot be joined: {what}", hint="report this schedule")


def _half(name: str) -> Stmt:
    source = _HALF.format(half=name.removeprefix("tvm_sparse_"))
    return Evaluate(cuda_func_call(name, source_code=source))
