"""Loads and stores of columns of a matrix as those of its rows and shuffles.

A vector of elements that lie apart is loaded and stored element by element. Four of them, neighbours of each other, are
four rows here, transposed in registers: 4 loads and 8 shuffles for 16 floats instead of 16 loads into lanes. Eight rows
at a time took as long (docs/lab/cpu-dense.md). Of longer vectors each four lanes are such a square, with no more
shuffles for all of them.
"""

from collections.abc import Callable, Sequence

import tvm_ffi
from tvm import sym, tirx
from tvm.ir import TensorLoad
from tvm.tirx import Bind, BufferStore, Expr, For, Ramp, Shuffle, Stmt, Var

from tvm_sparse.codegen.tir.tir_builder import each_loop_pass, sequence, substituted
from tvm_sparse.errors import BuildError
from tvm_sparse.scheduling.annotations import SQUARE, TRANSPOSE

# Of two vectors' squares, lanes that are picked to transpose them: (vector, lane). Of rows 0 and 1, and 2 and 3,
# neighbours, low and high; of these the low and the high halves.
_NEIGHBOURS = (((0, 0), (1, 0), (0, 1), (1, 1)), ((0, 2), (1, 2), (0, 3), (1, 3)))
_HALVES = (((0, 0), (0, 1), (1, 0), (1, 1)), ((0, 2), (0, 3), (1, 2), (1, 3)))
_Bound = Callable[[Expr], Var]


@each_loop_pass("TransposedColumns", TRANSPOSE)
def transposed_columns(loop: For, where: str) -> Stmt:
    """The annotated loop over columns, unrolled, between loads of the rows and stores of them."""
    loads, statements = list[TensorLoad](), list[Stmt]()
    tvm_ffi.structural_walk(loop.body, (TensorLoad, loads.append))
    found = [each for each in loads if _is_column(each.indices, loop.loop_var)]
    is_stored = isinstance(loop.body, BufferStore) and _is_column(loop.body.indices, loop.loop_var)
    # An epilogue's comparisons repeat what they compare.
    is_one = all(tvm_ffi.structural_equal(each, found[0]) for each in found)
    if not (found or is_stored) or int(loop.extent) != SQUARE or not is_one:
        raise BuildError(f"function {where}", "a loop has no columns", f"{len(found)} loads", f"{SQUARE} floats")

    def bound(value: Expr) -> Var:
        statements.append(Bind(Var("v", value.ty), value))
        return statements[-1].var

    columns = _loaded(found[0], loop, bound) if found else [None] * SQUARE
    turns = [_turn(loop, i, column) for i, column in enumerate(columns)]
    if is_stored:
        turns = _stored(loop, [bound(turn.value) for turn in turns], bound)
    return sequence([*statements, *turns])


def _turn(loop: For, turn: int, column: Var | None) -> Stmt:
    """The body of a turn of the loop, which has loaded `column`."""

    def load(node: TensorLoad) -> Expr:
        return column if _is_column(node.indices, loop.loop_var) else node

    body = tvm_ffi.structural_map(loop.body, (TensorLoad, load), order="post")
    return substituted(body, loop.loop_var, loop.min + turn)


def _loaded(node: TensorLoad, loop: For, bound: _Bound) -> list[Var]:
    """The columns that `node` loads in the turns of the loop."""
    rows = [tirx.BufferLoad(node.source, [Ramp(start, 1, SQUARE)]) for start in _starts(node.indices[0], loop)]
    return _squares([bound(_joined(rows[i::SQUARE])) for i in range(SQUARE)], bound)


def _stored(loop: For, columns: Sequence[Var], bound: _Bound) -> list[Stmt]:
    """Statements that store what the turns of the loop store as columns."""
    starts, rows = _starts(loop.body.indices[0], loop), _squares(columns, bound)
    if len(starts) > SQUARE:
        squares = [list(range(i, i + SQUARE)) for i in range(0, len(starts), SQUARE)]
        rows = [Shuffle([row], square) for square in squares for row in rows]
    return [
        BufferStore(loop.body.buffer, row, [Ramp(start, 1, SQUARE)]) for start, row in zip(starts, rows, strict=True)
    ]


def _starts(ramp: Ramp, loop: For) -> list[Expr]:
    """Where the rows begin that a column of the loop's first turn goes down."""
    first = substituted(ramp.base, loop.loop_var, loop.min)
    return [first + i * ramp.stride for i in range(int(ramp.lanes))]


def _joined(parts: list[Expr]) -> Expr:
    """One vector of a row's floats in each square."""
    return parts[0] if len(parts) == 1 else Shuffle(parts, list(range(len(parts) * SQUARE)))


def _squares(rows: Sequence[Var], bound: _Bound) -> list[Var]:
    """Four vectors of which each four lanes are transposed."""
    a, b, c, d = rows
    lanes = int(a.ty.dtype.lanes)

    def picked(table: Sequence[tuple[int, int]], pair: list[Var]) -> Var:
        places = (vector * lanes + first + lane for first in range(0, lanes, SQUARE) for vector, lane in table)
        return bound(Shuffle(pair, list(places)))

    pairs = [[picked(table, pair) for pair in ([a, b], [c, d])] for table in _NEIGHBOURS]
    return [picked(table, pair) for pair in pairs for table in _HALVES]


def _is_column(indices: Sequence[Expr], var: Var) -> bool:
    """Whether they are of a vector whose elements lie apart, and of its neighbour with the next value of `var`."""
    (index,) = indices if len(indices) == 1 else (None,)
    if not isinstance(index, Ramp) or int(index.lanes) % SQUARE or int(index.stride) == 1:
        return False
    linear = sym.detect_linear_equation(index.base, [var])
    return len(linear) == 2 and int(linear[0]) == 1
