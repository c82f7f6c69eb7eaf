"""Straight-line code that is entered in the middle by a jump table: a ``switch`` whose cases fall through.

TIR has none; in CUDA source they are macros. `enter`, then `case` before and `leave` behind each stretch of code, then
`end`. A stretch is a scope of its own.
"""

from __future__ import annotations

from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.tirx import Evaluate, Stmt

from tvm_sparse.codegen.tir.tir_builder import integer

# Macro, after the prefix -> its definition.
_PREFIX = "tvm_sparse_jump_table_"
_DEFINITIONS = {
    "enter": "(index) switch (index) {",
    "case": "(index) case index: {",
    "leave": "(condition) } if (condition) break",
    "end": "() }",
}


def enter(index: tirx.Expr) -> Stmt:
    """Go on at the `case` of value `index`; behind `end` where there is none."""
    return _macro("enter", index)


def case(index: int) -> Stmt:
    """The stretch that is entered with `index` begins here; the stretch before goes on here too."""
    return _macro("case", integer(index))


def leave(condition: tirx.Expr) -> Stmt:
    """The stretch ends here; where `condition` holds, go on behind `end`."""
    return _macro("leave", condition)


def end() -> Stmt:
    """The last stretch has ended."""
    return _macro("end")


def _macro(name: str, *arguments: tirx.Expr) -> Stmt:
    source = f"#define {_PREFIX}{name}{_DEFINITIONS[name]}\n"
    return Evaluate(cuda_func_call(_PREFIX + name, *arguments, source_code=source))
