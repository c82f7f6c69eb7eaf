"""A kernel as thread axes, allocations and body."""

from __future__ import annotations

from dataclasses import dataclass

from tvm.tirx import AttrStmt, SeqStmt, Stmt, Var

# The thread axis over parts. Its blocks are a cluster, so a part's number is its rank in the cluster.
PART_AXIS, CLUSTER_AXIS = "blockIdx.z", "clusterCtaIdx.z"


@dataclass(frozen=True)
class Nest:
    """One kernel: its thread axes by tag with their extents, what it allocates, and the body of its threads."""

    axes: dict[str, tuple[Var, int]]
    allocations: list[Stmt]
    body: list[Stmt]

    @classmethod
    def of(cls, stmt: Stmt) -> Nest:
        """The kernel whose outermost thread axis `stmt` is, or ends with."""
        axes: dict[str, tuple[Var, int]] = {}
        allocations: list[Stmt] = []
        while True:
            *before, stmt = statements_of(stmt)
            if not is_thread_axis(stmt):
                return cls(axes, allocations, [*before, stmt])
            allocations += before
            axes[str(stmt.node.thread_tag)] = (stmt.node.var, int(stmt.value))
            stmt = stmt.body


def is_thread_axis(stmt: Stmt) -> bool:
    """Whether `stmt` is a thread axis and what it runs."""
    return isinstance(stmt, AttrStmt) and stmt.attr_key == "thread_extent"


def statements_of(stmt: Stmt) -> list[Stmt]:
    """The statements of a sequence, nested ones included."""
    if isinstance(stmt, SeqStmt):
        return [each for inner in stmt.seq for each in statements_of(inner)]
    return [stmt]
