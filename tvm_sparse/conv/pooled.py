"""2x2 max pooling of a convolution's outputs, between the threads of a warp that have them.

Where a warp has two rows of 16 columns, lanes that differ in bit 0 have outputs side by side, and lanes that differ in
bit 4 outputs below each other. So a pool's windows, 2x2 with stride 2, never leave a warp: two shuffles make of the
outputs that threads have in registers what is written, a quarter of them.
"""

import tvm_ffi
from tvm import tirx
from tvm.ir import Range
from tvm.s_tir import SBlock
from tvm.tirx import Bind, BufferRegion, BufferStore, IfThenElse, SeqStmt
from tvm.tirx.op import tvm_warp_shuffle_xor

from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.reference import WINDOW
from tvm_sparse.conv.spec import ConvSpec

# Columns of a warp's rows.
COLUMNS = 16
_ALL_LANES, _WARP = tirx.const(0xFFFFFFFF, "uint32"), 32


def why_not_pooled(spec: ConvSpec) -> str:
    """Why windows are not computed with the outputs of a convolution, as a sentence, or ""."""
    if spec.dtype != FLOAT32:
        return f"outputs are {spec.dtype}, and only {FLOAT32} is pooled"
    if spec.out_h % WINDOW or spec.out_w % WINDOW:
        return f"windows of {WINDOW}x{WINDOW} do not divide maps of {spec.out_h}x{spec.out_w}"
    return ""


def pooled_shape(spec: ConvSpec) -> tuple[int, int, int, int]:
    """(N, K, OH / 2, OW / 2)."""
    return (spec.n, spec.k, spec.out_h // WINDOW, spec.out_w // WINDOW)


def pooled_in_warps(func: tirx.PrimFunc, spec: ConvSpec) -> tirx.PrimFunc:
    """`func`, which ends with a stage ``out`` over (n, k, y, x), with the largest output of each window in its place.

    To be scheduled so that threads lie as this module says, and that all of a warp store their outputs together.
    """
    whole, out = func.params[-1], tirx.decl_buffer(pooled_shape(spec), spec.dtype, "out")

    def store(node: BufferStore) -> tirx.Stmt:
        if not node.buffer.same_as(whole):
            return node
        n, k, y, x = node.indices
        largest = tirx.Var("output", spec.dtype)
        steps = [Bind(largest, node.value)]
        for distance in (1, COLUMNS):
            own, other = largest, tirx.Var("other", spec.dtype)
            largest = tirx.Var("largest", spec.dtype)
            steps.append(Bind(other, tvm_warp_shuffle_xor(_ALL_LANES, own, distance, _WARP, _WARP)))
            # A plain maximum would lose NaN.
            steps.append(Bind(largest, tirx.Select(tirx.any(own > other, tirx.isnan(own)), own, other)))
        is_first = tirx.all(tirx.floormod(y, WINDOW) == 0, tirx.floormod(x, WINDOW) == 0)
        place = [n, k, tirx.floordiv(y, WINDOW), tirx.floordiv(x, WINDOW)]
        return SeqStmt([*steps, IfThenElse(is_first, BufferStore(out, largest, place), None)])

    def block(node: SBlock) -> SBlock:
        if node.name_hint != "out":
            return node
        n, k, y, x = (axis.var for axis in node.iter_vars)
        place = (n, k, tirx.floordiv(y, WINDOW), tirx.floordiv(x, WINDOW))
        writes = [BufferRegion(out, [Range.from_min_extent(index, 1) for index in place])]
        rest = (node.name_hint, node.body, node.init, node.alloc_buffers, node.match_buffers, node.annotations)
        return SBlock(node.iter_vars, node.reads, writes, *rest)

    body = tvm_ffi.structural_map(func.body, [(BufferStore, store), (SBlock, block)], order="post")
    return tirx.PrimFunc([*func.params[:-1], out], body, func.ret_type, func.attrs)

