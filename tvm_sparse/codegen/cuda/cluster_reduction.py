"""Split-K kernels: thread blocks that compute partial sums of the same outputs, reduced in one kernel as a cluster.

A split-K schedule (`scheduling/cuda/folded/split_k`) is two kernels: one that writes partial sums to global memory, one
that adds them up. The pass ClusterReduction makes one of them. Blocks that work on the same outputs become a cluster,
which the GPU runs at the same time on neighbouring multiprocessors; each keeps its partial sums in its own shared
memory, and behind a barrier of the cluster each adds up its share of the outputs, reading the others' shared memory, in
a fixed order. Nothing is kept in global memory, so launches on several streams do not meet, and there is nothing to
allocate or to reset: CUDA graphs may record the kernel like any other.

Clusters need compute capability 9.0 (CUDA programming guide, "Thread Block Clusters").
"""

import tvm_ffi
from tvm import sym, tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.ir import Expr, Range, TensorLoad
from tvm.tirx import AllocBuffer, AttrStmt, BufferStore, Evaluate, For, IntImm, IterVar, SeqStmt, Stmt, Var

from tvm_sparse.codegen.tir.thread_axes import CLUSTER_AXIS, SPLIT_K_AXIS, Nest, is_thread_axis
from tvm_sparse.codegen.tir.tir_builder import function_name, integer, loop_pass, statements_of, substituted
from tvm_sparse.errors import BuildError
from tvm_sparse.scheduling.annotations import SPLIT_K

# Attribute around the end of a kernel that all tiles and ranks have in common.
COMMON_END = "tvm_sparse.common_end"
# The barrier of a cluster in two halves. What comes between them overlaps with waiting for the other blocks; what a
# thread stored to global memory before it arrives is waited for.
_HALF = """
__forceinline__ __device__ void tvm_sparse_cluster_{half}() {{
  __asm__ __volatile__("barrier.cluster.{half}.aligned;" ::: "memory");
}}
"""
_LOAD = "tvm_sparse_cluster_load"
# The address's conversion is the same for all outputs of a thread. The load may move across accesses of global memory,
# but not across a barrier: neither is removed or reordered among what is volatile.
_LOAD_SOURCE = """
__forceinline__ __device__ float tvm_sparse_cluster_load(const float* base, int rank, int offset) {
  unsigned int address = __cvta_generic_to_shared(base), remote;
  float value;
  __asm__("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  __asm__ __volatile__("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(remote + 4 * offset));
  return value;
}
"""


@loop_pass("ClusterReduction", SPLIT_K)
def cluster_reduction(func: tirx.PrimFunc, loops: list[For]) -> Stmt:
    """The body of two kernels with one buffer between them as one of clusters."""
    return _SplitK(func, loops[0]).as_cluster()


class _SplitK:
    """The two kernels of a function, the partial sums between them, which `loop` adds up, and the kernel they make."""

    def __init__(self, func: tirx.PrimFunc, loop: For):
        self.name, ranks = function_name(func), int(loop.annotations[SPLIT_K])
        statements = statements_of(func.body)
        self.before, kernels = statements[:-2], statements[-2:]
        found = [each for each in self.before if isinstance(each, AllocBuffer)]
        if len(kernels) != 2 or not all(map(is_thread_axis, kernels)) or len(found) != 1:
            raise self._refusal("the function is not two kernels with one buffer between them")
        self.before.remove(found[0])
        self.global_sums = found[0].buffer
        self.first, self.second = map(Nest.of, kernels)
        extents = self.first.extents()
        if extents != self.second.extents() or extents[SPLIT_K_AXIS] != ranks:
            raise self._refusal(f"the two kernels have different threads, or not {ranks} ranks")
        self.blocks = [self.first.var(tag) for tag in extents if tag.startswith("blockIdx")]
        (size,) = self.global_sums.ty.shape
        self.rank_size = int(size) // ranks
        block_size = self.rank_size // (extents["blockIdx.x"] * extents["blockIdx.y"])
        # Dynamic, as what TVM asks the driver for is dynamic memory alone. It never takes the place of staged k-tiles,
        # which other threads may still read: both are in use where code is selected by ranks, and that is what
        # lifetimes are by.
        self.sums = tirx.decl_buffer((block_size,), str(self.global_sums.ty.dtype), "sums", scope="shared.dyn")
        self.cluster = IterVar(Range(0, ranks), Var(CLUSTER_AXIS, "int32"), IterVar.ThreadIndex, CLUSTER_AXIS)

    def as_cluster(self) -> Stmt:
        """The function's body as one kernel: the first, and at its end the second."""

        def store(node: BufferStore) -> Stmt:
            if not node.buffer.same_as(self.global_sums):
                return node
            return BufferStore(self.sums, node.value, [self._without(node.indices[0], self.blocks)])

        first = [tvm_ffi.structural_map(each, (BufferStore, store), order="post") for each in self.first.body]
        # Behind the second barrier no block reads another's shared memory, so it may end.
        end = SeqStmt([_half("arrive"), _half("wait"), *self._second(), _half("wait")])
        body = [*first, AttrStmt(integer(0), COMMON_END, integer(0), end)]
        allocations = [AllocBuffer(self.sums), *self.second.allocations, *self.first.allocations]
        return Nest(self.before, {CLUSTER_AXIS: self.cluster, **self.first.axes}, allocations, body).stmt()

    def _second(self) -> list[Stmt]:
        """The second kernel's statements on the first one's threads, partial sums read from shared memory."""
        body = SeqStmt(self.second.body)
        for tag in self.second.axes:
            body = substituted(body, self.second.var(tag), self.first.var(tag))
        return statements_of(tvm_ffi.structural_map(body, (For, self._added), order="post"))

    def _added(self, loop: For) -> Stmt:
        """The loop that adds partial sums up as straight-line code, so that its loads overlap, and the arrival."""
        if SPLIT_K not in loop.annotations:
            return loop
        others = [var for var in self.blocks if not var.same_as(self.first.var(SPLIT_K_AXIS))]

        def load(node: TensorLoad) -> Expr:
            if not node.source.same_as(self.global_sums):
                return node
            first = substituted(node.indices[0], loop.loop_var, integer(0))
            rank = self._constant(first) // self.rank_size
            base = sym.Analyzer().simplify(self._without(first, others) - rank * self.rank_size)
            offset = sym.Analyzer().simplify(node.indices[0] - first)
            address = tirx.address_of(tirx.BufferLoad(self.sums, [base]))
            return cuda_func_call(
                _LOAD, address, integer(rank), offset, source_code=_LOAD_SOURCE, return_type="float32"
            )

        body = tvm_ffi.structural_map(loop.body, (TensorLoad, load), order="post")
        steps = [substituted(body, loop.loop_var, integer(index)) for index in range(int(loop.extent))]
        return SeqStmt([*(each for step in steps for each in statements_of(step)), _half("arrive")])

    def _without(self, index: Expr, variables: list[Var]) -> Expr:
        """A flat `index` of all partial sums without what depends on `variables`."""
        for var in variables:
            index = substituted(index, var, integer(0))
        return sym.Analyzer().simplify(index)

    def _constant(self, index: Expr) -> int:
        """`index` where all threads' numbers are zero."""
        value = self._without(index, [axis.var for axis in self.first.axes.values()])
        if not isinstance(value, IntImm):
            raise self._refusal(f"a partial sum's place is not regular: {value}")
        return int(value)

    def _refusal(self, what: str) -> BuildError:
        return BuildError(self.name, f"split-K kernels cannot become a cluster: {what}", hint="report this schedule")


def _half(half: str) -> Stmt:
    return Evaluate(cuda_func_call(f"tvm_sparse_cluster_{half}", source_code=_HALF.format(half=half)))
