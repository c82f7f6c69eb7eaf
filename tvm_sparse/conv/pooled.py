"""2x2 max pooling of a convolution's outputs, between the threads of a warp that have them.

Where a warp has two rows of 16 columns, lanes that differ in bit 0 have outputs side by side, and lanes that differ in
bit 4 outputs below each other. So windows, 2x2 with stride 2, never leave a warp, and outputs need not be written
before they are pooled. The four lanes of a window share four filters: each ends with the largest output of one of them,
so that three shuffles do for four windows and every lane writes.
"""

import tvm_ffi
from tvm import te, tirx
from tvm.ir import Range
from tvm.s_tir import SBlock
from tvm.tirx import Bind, BufferRegion, BufferStore, SeqStmt, Var
from tvm.tirx.op import tvm_warp_shuffle_xor

from tvm_sparse.conv.conv2d import epilogue, prim_func
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.reference import WINDOW
from tvm_sparse.conv.spec import ConvSpec

# Columns of a warp's rows, and filters that the lanes of a window share.
COLUMNS, FILTERS = 16, WINDOW * WINDOW
_ALL_LANES, _WARP = tirx.const(0xFFFFFFFF, "uint32"), 32


def why_not_pooled(spec: ConvSpec) -> str:
    """Why windows are not computed with the outputs of a convolution, as a sentence, or ""."""
    if spec.dtype != FLOAT32:
        return f"outputs are {spec.dtype}, and only {FLOAT32} is pooled"
    if spec.residual:
        return "a residual is added to outputs, not to the largest of them"
    if spec.out_h % WINDOW or spec.out_w % WINDOW:
        return f"windows of {WINDOW}x{WINDOW} do not divide maps of {spec.out_h}x{spec.out_w}"
    return ""


def pooled_shape(spec: ConvSpec) -> tuple[int, int, int, int]:
    """(N, K, OH / 2, OW / 2)."""
    return (spec.n, spec.k, spec.out_h // WINDOW, spec.out_w // WINDOW)


def pooled_in_warps(spec: ConvSpec, arguments: dict[str, te.Tensor], conv: te.Tensor) -> tirx.PrimFunc:
    """The function that ends with the stage ``out``, the epilogue of the largest of each 2x2 of `conv` (N, K, OH, OW).

    ``out`` has axes (n, k / 4, y, x). It is to be scheduled so that threads lie as this module says.
    """

    def out_at(n: tirx.Expr, four: tirx.Expr, y: tirx.Expr, x: tirx.Expr) -> tirx.Expr:
        # Reads what the stage does; what it computes is put in the place of this below.
        each = [conv[n, four * FILTERS + i, y, x] for i in range(FILTERS)]
        return epilogue(spec, arguments, sum(each[1:], each[0]), (n, four * FILTERS, y, x))

    shape = (spec.n, spec.k // FILTERS, spec.out_h, spec.out_w)
    func = prim_func(arguments, te.compute(shape, out_at, name="out"))
    out = tirx.decl_buffer(pooled_shape(spec), spec.dtype, "out")

    def block(node: SBlock) -> SBlock:
        if node.name_hint != "out":
            return node
        n, four, y, x = (axis.var for axis in node.iter_vars)
        place = [(n, 1), (four * FILTERS, FILTERS), (y // WINDOW, 1), (x // WINDOW, 1)]
        writes = [BufferRegion(out, [Range.from_min_extent(*each) for each in place])]
        rest = (node.init, node.alloc_buffers, node.match_buffers, node.annotations)
        return SBlock(node.iter_vars, node.reads, writes, node.name_hint, _windows(spec, node, out), *rest)

    body = tvm_ffi.structural_map(func.body, (SBlock, block), order="post")
    return tirx.PrimFunc([*func.params[:-1], out], body, func.ret_type, func.attrs)


def _windows(spec: ConvSpec, block: SBlock, out: tirx.Buffer) -> tirx.Stmt:
    """What a lane does with its outputs of four filters."""
    n, four, y, x = (axis.var for axis in block.iter_vars)
    read = {each.source.name: each.source for each in block.reads}
    in_y, in_x = tirx.floormod(y, WINDOW), tirx.floormod(x, WINDOW)
    steps: list[tirx.Stmt] = []

    def named(name: str, value: tirx.Expr) -> Var:
        var = Var(name, spec.dtype)
        steps.append(Bind(var, value))
        return var

    def larger(is_second: tirx.Expr, distance: int, first: tirx.Expr, second: tirx.Expr) -> Var:
        """Of a lane's outputs of two filters it keeps one, and gives the other to the lane that keeps that."""
        own = named("own", tirx.Select(is_second, second, first))
        given = named("given", tirx.Select(is_second, first, second))
        other = named("other", tvm_warp_shuffle_xor(_ALL_LANES, given, distance, _WARP, _WARP))
        # A plain maximum would lose NaN.
        return named("larger", tirx.Select(tirx.any(own > other, tirx.isnan(own)), own, other))

    outputs = [read["conv"][n, four * FILTERS + i, y, x] for i in range(FILTERS)]
    pairs = [larger(in_x == 1, 1, *outputs[i : i + WINDOW]) for i in (0, WINDOW)]
    largest, k = larger(in_y == 1, COLUMNS, *pairs), four * FILTERS + in_y * WINDOW + in_x
    place = [n, k, tirx.floordiv(y, WINDOW), tirx.floordiv(x, WINDOW)]
    return SeqStmt([*steps, BufferStore(out, epilogue(spec, read, largest, place), place)])
