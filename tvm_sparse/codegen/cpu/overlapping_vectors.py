"""Vectors of a loop whose turns they do not divide: the last one begins earlier, and computes some elements again.

A loop over 28 elements is two vectors of sixteen so, without a remainder of single elements or masks. So are turns of a
loop that are transposed together.
"""

from tvm.tirx import For, ForKind, Stmt, Var
from tvm.tirx import min as least

from tvm_sparse.codegen.tir.tir_builder import each_loop_pass, integer, substituted
from tvm_sparse.scheduling.annotations import TRANSPOSE, VECTORS


@each_loop_pass("OverlappingVectors", VECTORS)
def overlapping_vectors(loop: For, _where: str) -> Stmt:
    """The annotated loop as one over vectors of as many elements as it says.

    What it stores must not be what it loads.
    """
    lanes, extent = int(loop.annotations[VECTORS]), int(loop.extent)
    part, lane = (Var(f"{loop.loop_var.name}_{name}", loop.loop_var.ty) for name in ("part", "lane"))
    start = part * lanes if extent % lanes == 0 else least(part * lanes, integer(extent - lanes))
    body = substituted(loop.body, loop.loop_var, loop.min + start + lane)
    rest = {key: value for key, value in loop.annotations.items() if key != VECTORS}
    # Turns that are transposed together stay turns.
    of_lanes, rest = (rest, {}) if TRANSPOSE in rest else ({}, rest)
    kind = ForKind.SERIAL if of_lanes else ForKind.VECTORIZED
    vector = For(lane, integer(0), integer(lanes), kind, body, annotations=of_lanes)
    return For(part, integer(0), integer(-(-extent // lanes)), ForKind.SERIAL, vector, annotations=rest)
