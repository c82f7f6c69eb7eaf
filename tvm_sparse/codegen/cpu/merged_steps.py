"""Sums of several steps, as of blocks of input channels: a tile's begin and are used while they are in a level-1 cache.

Scheduling sets all tiles' sums to zero, adds a step to all of them, then the next, and last stores what comes of them:
that reads and writes all sums twice more than there are steps, from a level-2 cache where they are many. Here the first
step sets a tile's sums to zero before it adds to them, and the last one stores what comes of them.
"""

import tvm_ffi
from tvm import tirx
from tvm.tirx import For, IfThenElse, SeqStmt, Stmt

from tvm_sparse.codegen.tir.tir_builder import function_name, loop_pass, sequence, statements_of, substituted
from tvm_sparse.errors import BuildError
from tvm_sparse.scheduling.annotations import STEPS


@loop_pass("MergedSteps", STEPS)
def merged_steps(func: tirx.PrimFunc, loops: list[For]) -> Stmt:
    """The body in which each annotated loop is one with the sums that it begins and ends."""
    merged = 0

    def rewrite(node: SeqStmt) -> Stmt:
        nonlocal merged
        parts = statements_of(node)
        at = next((i for i, each in enumerate(parts) if _is_steps(each)), 0)
        if not 0 < at < len(parts) - 1 or not all(_fits(parts[i], parts[at].body) for i in (at - 1, at + 1)):
            return node
        merged += 1
        return sequence([*parts[: at - 1], _merged(*parts[at - 1 : at + 2]), *parts[at + 2 :]])

    body = tvm_ffi.structural_map(func.body, (SeqStmt, rewrite), order="post")
    if merged != len(loops):
        where = f"function {function_name(func)}"
        raise BuildError(where, "a loop over steps is to begin and to end sums", f"{merged} of {len(loops)}", "all")
    return body


def _is_steps(stmt: Stmt) -> bool:
    return isinstance(stmt, For) and isinstance(stmt.body, For) and STEPS in stmt.body.annotations


def _fits(stmt: Stmt, tiles: For) -> bool:
    """Whether it is a loop over the same tiles."""
    return isinstance(stmt, For) and tvm_ffi.structural_equal(stmt.extent, tiles.extent)


def _merged(first: For, steps: For, last: For) -> Stmt:
    """The loop over `steps` of the loop over tiles, with what `first` and `last` do for each tile."""
    tiles, step = steps.body, steps.loop_var
    begin, end = (substituted(each.body, each.loop_var, tiles.loop_var) for each in (first, last))
    body = sequence(
        [
            IfThenElse(step == steps.min, begin, None),
            tiles.body,
            IfThenElse(step == steps.min + steps.extent - 1, end, None),
        ]
    )
    inner = For(tiles.loop_var, tiles.min, tiles.extent, tiles.kind, body, annotations=tiles.annotations)
    return For(step, steps.min, steps.extent, steps.kind, inner, annotations=steps.annotations)
