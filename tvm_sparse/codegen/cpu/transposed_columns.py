"""Loads and stores of columns of a matrix as those of its rows and shuffles.

A vector of elements that lie apart is loaded and stored element by element. Four of them, neighbours of each other, are
four rows here, transposed in registers: 4 loads and 8 shuffles for 16 floats instead of 16 loads into lanes. Eight rows
at a time took as long (docs/lab/cpu-dense.md). Of longer vectors each four lanes are such a square, with no more
shuffles for all of them.

Where outputs of two filters are neighbours in memory, as a transposed convolution's are, these pairs are what is moved:
rows of four pairs are stored.
"""

from collections.abc import Callable, Sequence

import tvm_ffi
from tvm import sym, tirx
from tvm.ir import TensorLoad
from tvm.tirx import Bind, Broadcast, BufferStore, Expr, For, IntImm, Ramp, Shuffle, Stmt, Var

from tvm_sparse.codegen.tir.tir_builder import each_loop_pass, sequence, substituted
from tvm_sparse.errors import BuildError
from tvm_sparse.scheduling.annotations import PAIR, SQUARE, TRANSPOSE

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
    indices = loop.body.indices if isinstance(loop.body, BufferStore) else []
    is_stored = _is_column(indices, loop.loop_var) or _are_pairs(indices, loop)
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
    if _are_pairs(loop.body.indices, loop):
        starts, rows = _starts(loop.body.indices[0], loop)[::PAIR], _pairs(columns, bound)
        return [_row(loop, each, start) for each, start in zip(rows, starts, strict=True)]
    starts, rows = _starts(loop.body.indices[0], loop), _squares(columns, bound)
    if len(starts) > SQUARE:
        squares = [list(range(i, i + SQUARE)) for i in range(0, len(starts), SQUARE)]
        rows = [Shuffle([row], square) for square in squares for row in rows]
    return [_row(loop, row, start) for start, row in zip(starts, rows, strict=True)]


def _row(loop: For, row: Expr, start: Expr) -> Stmt:
    return BufferStore(loop.body.buffer, row, [Ramp(start, 1, int(row.ty.dtype.lanes))])


def _starts(index: Expr, loop: For) -> list[Expr]:
    """Where the rows begin that a column of the loop's first turn goes down, or that its elements are of."""
    first = substituted(index, loop.loop_var, loop.min)
    simplify = sym.Analyzer().simplify
    return [simplify(_lane(first, i)) for i in range(int(index.ty.dtype.lanes))]


def _lane(index: Expr, lane: int) -> Expr:
    """An element of a vector of indices."""
    if isinstance(index, Ramp):
        return index.base + lane * index.stride
    if isinstance(index, Broadcast):
        return index.value
    if int(index.ty.dtype.lanes) == 1:
        return index
    return type(index)(_lane(index.a, lane), _lane(index.b, lane))


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


def _pairs(columns: Sequence[Var], bound: _Bound) -> list[Expr]:
    """Rows of a pair of each of the four columns, for all their pairs."""
    lanes = int(columns[0].ty.dtype.lanes)

    def picked(half: int, vectors: Sequence[Var]) -> Var:
        places = [v * lanes + first + lane for first in range(0, lanes, SQUARE) for v, lane in _HALVES[half]]
        return bound(Shuffle(list(vectors), places))

    # The first pairs of each square, and the second ones, of two columns.
    halves = [[picked(half, columns[:2]), picked(half, columns[2:])] for half in range(2)]
    rows = []
    for first in range(0, lanes, SQUARE):
        places = [v * lanes + first + lane for v in range(2) for lane in range(SQUARE)]
        rows += [Shuffle(list(half), places) for half in halves]
    return rows


def _are_pairs(indices: Sequence[Expr], loop: For) -> bool:
    """Whether they are of a vector of pairs of neighbours, each beside its next in the turn after."""
    (index,) = indices if len(indices) == 1 else (None,)
    if index is None or isinstance(index, Ramp) or int(index.ty.dtype.lanes) % SQUARE:
        return False
    now = _starts(index, loop)
    later = [substituted(_lane(index, i), loop.loop_var, loop.min + 1) for i in range(len(now))]
    steps = [(1, a, b) for a, b in zip(now[::PAIR], now[1::PAIR], strict=True)]
    steps += [(PAIR, a, b) for a, b in zip(now, later, strict=True)]
    simplify = sym.Analyzer().simplify
    return all(isinstance(found := simplify(b - a), IntImm) and int(found) == step for step, a, b in steps)


def _is_column(indices: Sequence[Expr], var: Var) -> bool:
    """Whether they are of a vector whose elements lie apart, and of its neighbour with the next value of `var`."""
    (index,) = indices if len(indices) == 1 else (None,)
    if not isinstance(index, Ramp) or int(index.lanes) % SQUARE or int(index.stride) == 1:
        return False
    linear = sym.detect_linear_equation(index.base, [var])
    return len(linear) == 2 and int(linear[0]) == 1
