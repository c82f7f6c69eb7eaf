"""Straight-line code that is entered in the middle by a jump table: a ``switch`` whose cases fall through.

TIR has none; in CUDA source it is made of macros: "enter", then "case" before and "leave" behind each stretch of code,
then "end". A stretch is a scope of its own.
"""

from tvm.backend.cuda.op import cuda_func_call
from tvm.ir import Expr
from tvm.tirx import Evaluate, Stmt

_DEFINITIONS = {
    # Go on at the case of value `index`; behind the end where there is none.
    "enter": "(index) switch (index) {",
    # The stretch that is entered with `index` begins here; the stretch before goes on here too.
    "case": "(index) case index: {",
    # The stretch ends here; where `condition` holds, go on behind the end.
    "leave": "(condition) } if (condition) break",
    "end": "() }",
}


def jump_table(part: str, *arguments: Expr) -> Stmt:
    """One of the macros above as a statement."""
    name = f"tvm_sparse_jump_table_{part}"
    return Evaluate(cuda_func_call(name, *arguments, source_code=f"#define {name}{_DEFINITIONS[part]}\n"))
