"""A CUDA kernel as thread axes, allocations and the statements of its threads."""

from dataclasses import dataclass

from tvm.tirx import AttrStmt, IterVar, Stmt, Var

from tvm_sparse.codegen.tir.tir_builder import sequence, statements_of

# The thread axis over the shares of the input channels in a split-K kernel. Its blocks are a cluster, so a block's
# index is its rank in the cluster.
SPLIT_K_AXIS, CLUSTER_AXIS = "blockIdx.z", "clusterCtaIdx.z"


@dataclass(frozen=True)
class Nest:
    """One kernel, and what comes before it in its function.

    It has thread axes by tag, outermost first, what it allocates, and the statements of its threads.
    """

    before: list[Stmt]
    axes: dict[str, IterVar]
    allocations: list[Stmt]
    body: list[Stmt]

    @classmethod
    def of(cls, stmt: Stmt) -> "Nest":
        """The kernel that `stmt` is, or ends with."""
        axes: dict[str, IterVar] = {}
        outside: list[list[Stmt]] = []
        body = statements_of(stmt)
        while is_thread_axis(body[-1]):
            *before, axis = body
            outside.append(before)
            axes[str(axis.node.thread_tag)] = axis.node
            body = statements_of(axis.body)
        return cls(outside[0] if outside else [], axes, [each for before in outside[1:] for each in before], body)

    def stmt(self) -> Stmt:
        """The function's body."""
        stmt = sequence(self.body)
        *inner, outermost = reversed(self.axes.values())
        for axis in inner:
            stmt = AttrStmt(axis, "thread_extent", axis.dom.extent, stmt)
        # Here TVM finds the shared memory of a whole kernel.
        stmt = sequence([*self.allocations, stmt])
        return sequence([*self.before, AttrStmt(outermost, "thread_extent", outermost.dom.extent, stmt)])

    def var(self, tag: str) -> Var:
        """The variable of a thread axis."""
        return self.axes[tag].var

    def extents(self) -> dict[str, int]:
        """How many threads or blocks there are along each axis, by its tag."""
        return {tag: int(axis.dom.extent) for tag, axis in self.axes.items()}


def is_thread_axis(stmt: Stmt) -> bool:
    """Whether `stmt` is a thread axis and what it runs."""
    return isinstance(stmt, AttrStmt) and stmt.attr_key == "thread_extent"
