"""Straight-line code that is entered in the middle: a ``switch`` whose cases fall through, which TIR does not have.

Each function returns a statement; in CUDA source they are macros. `enter`, then `case` before and `leave` behind each
stretch of code, then `end`. A stretch is a scope of its own.
"""

from __future__ import annotations

from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.tirx import Evaluate, IntImm, Stmt

_SOURCES = {
    "tvm_sparse_enter": "#define tvm_sparse_enter(index) switch (index) {\n",
    "tvm_sparse_case": "#define tvm_sparse_case(index) case index: {\n",
    "tvm_sparse_leave": "#define tvm_sparse_leave(condition) } if (condition) break\n",
    "tvm_sparse_end": "#define tvm_sparse_end() }\n",
}


def enter(index: tirx.Expr) -> Stmt:
    """Go on at the `case` of value `index`; behind `end` where there is none."""
    return _macro("tvm_sparse_enter", index)


def case(index: int) -> Stmt:
    """The stretch that is entered with `index` begins here; the stretch before goes on here too."""
    return _macro("tvm_sparse_case", IntImm("int32", index))


def leave(condition: tirx.Expr) -> Stmt:
    """The stretch ends here; where `condition` holds, go on behind `end`."""
    return _macro("tvm_sparse_leave", condition)


def end() -> Stmt:
    """The last stretch has ended."""
    return _macro("tvm_sparse_end")


def _macro(name: str, *arguments: tirx.Expr) -> Stmt:
    return Evaluate(cuda_func_call(name, *arguments, source_code=_SOURCES[name]))
