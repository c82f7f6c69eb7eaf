"""Loads of columns of a matrix as loads of its rows and shuffles.

A vector of elements that lie apart is loaded element by element. Four of them, neighbours of each other, are loaded as
four rows here and transposed in registers: 4 loads and 8 shuffles for 16 floats instead of 16 loads into lanes. Eight
rows at a time took as long (docs/measurements.md).
"""

import tvm
import tvm_ffi
from tvm import sym, tirx
from tvm.ir import TensorLoad
from tvm.tirx import Bind, Expr, For, Ramp, Shuffle, Stmt, Var

from tvm_sparse.codegen.tir.tir_builder import each_loop_pass, sequence, substituted
from tvm_sparse.errors import BuildError
from tvm_sparse.scheduling.annotations import SQUARE, TRANSPOSE

# Lanes of two vectors, one after the other, that are picked to transpose a square: of its rows 0 and 1, and 2 and 3,
# neighbours, low and high; of these the low and the high halves.
_NEIGHBOURS, _HALVES = ((0, 4, 1, 5), (2, 6, 3, 7)), ((0, 1, 4, 5), (2, 3, 6, 7))


def transposed_loads_pass() -> tvm.transform.Pass:
    """The pass TransposedLoads; functions without an annotated loop are left alone."""
    return each_loop_pass("TransposedLoads", TRANSPOSE, _transposed)


def _transposed(loop: For, where: str) -> Stmt:
    """The annotated loop over columns, unrolled behind loads of the rows."""
    column, found = _vector("column"), list[TensorLoad]()

    def load(node: TensorLoad) -> Expr:
        if not _is_column(node, loop.loop_var):
            return node
        found.append(node)
        return column

    body = tvm_ffi.structural_map(loop.body, (TensorLoad, load), order="post")
    # An epilogue's comparisons repeat what they compare.
    if not found or int(loop.extent) != SQUARE or not all(tvm_ffi.structural_equal(each, found[0]) for each in found):
        raise BuildError(f"function {where}", "a loop does not load columns", f"{len(found)} loads", f"{SQUARE} floats")
    (ramp,), statements = found[0].indices, list[Stmt]()

    def bound(value: Expr) -> Var:
        statements.append(Bind(_vector("v"), value))
        return statements[-1].var

    first = substituted(ramp.base, loop.loop_var, loop.min)
    starts = [first + i * ramp.stride for i in range(SQUARE)]
    a, b, c, d = (bound(tirx.BufferLoad(found[0].source, [Ramp(start, 1, SQUARE)])) for start in starts)
    pairs = [[bound(Shuffle(rows, picked)) for rows in ([a, b], [c, d])] for picked in _NEIGHBOURS]
    columns = [bound(Shuffle(pair, picked)) for pair in pairs for picked in _HALVES]
    turns = (substituted(body, loop.loop_var, loop.min + i) for i in range(SQUARE))
    return sequence(
        [*statements, *(substituted(*each) for each in zip(turns, [column] * SQUARE, columns, strict=True))]
    )


def _vector(name: str) -> Var:
    return Var(name, f"float32x{SQUARE}")


def _is_column(node: TensorLoad, var: Var) -> bool:
    """Whether it loads a vector whose elements lie apart, and its neighbour with the next value of `var`."""
    (index,) = node.indices if len(node.indices) == 1 else (None,)
    if not isinstance(index, Ramp) or int(index.lanes) != SQUARE or int(index.stride) == 1:
        return False
    linear = sym.detect_linear_equation(index.base, [var])
    return len(linear) == 2 and int(linear[0]) == 1
