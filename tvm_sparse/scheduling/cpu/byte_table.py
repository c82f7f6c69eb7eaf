"""Functions of a code as tables: a byte becomes another."""

from tvm import tirx
from tvm.target import Target
from tvm.target.codegen import target_has_features
from tvm.tirx.script import builder as T

from tvm_sparse.conv.byte_form import fours_shape
from tvm_sparse.conv.codes import CODES, FOUR
from tvm_sparse.scheduling.cpu.byte_copies import SCHEDULED
from tvm_sparse.scheduling.cpu.byte_vectors import BYTES, INT32, LANES
from tvm_sparse.scheduling.cpu.line_kernel import divided
from tvm_sparse.scheduling.tir_writing import function_of, whole

# Bytes of a vector; an instruction (VBMI) looks 64 bytes up in two.
_VECTOR = FOUR * LANES
_LOOK_UP = "llvm.x86.avx512.vpermi2var.qi.512"


def by_table(shape: tuple[int, ...], target: Target) -> tirx.PrimFunc:
    """The function from the bytes of (N, C, H, W) and a table, int8 (256,), to other bytes."""
    fours = fours_shape(shape)
    images, blocks, pixels = fours[0], fours[1], fours[2] * fours[3]
    lanes = min(LANES, pixels)
    is_fast = lanes == LANES and target_has_features("avx512vbmi", target)

    def body(arguments: dict[str, tirx.Var]) -> None:
        x, table, y = (arguments[name] for name in ("x", "table", "y"))
        with T.parallel(images * blocks) as plane, T.sblock("table"):
            T.reads(whole(x), whole(table))
            T.writes(whole(y))
            image, four = divided(plane, blocks)
            with T.serial(-(-pixels // lanes)) as vector:
                first = tirx.min(vector * lanes, pixels - lanes)
                # The rows of an image touch each other: the indices flatten to the same address.
                at = [image, four, 0, tirx.Ramp(first, 1, lanes) if lanes > 1 else first]
                bytes_ = tirx.reinterpret(f"uint8x{FOUR * lanes}", tirx.BufferLoad(x, at))
                if is_fast:
                    found = _looked_up(table, tirx.reinterpret(BYTES, bytes_))
                else:
                    found = tirx.BufferLoad(table, [tirx.Cast(f"{INT32}x{FOUR * lanes}", bytes_)])
                T.buffer_store(y, tirx.reinterpret(f"{INT32}x{lanes}" if lanes > 1 else INT32, found), at)

    shapes = {"x": (fours, INT32), "table": ((CODES,), "int8"), "y": (fours, INT32)}
    return function_of(shapes, body).with_attr(SCHEDULED)


def _looked_up(table: tirx.Var, bytes_: tirx.Expr) -> tirx.Expr:
    quarters = [tirx.BufferLoad(table, [tirx.Ramp(first, 1, _VECTOR)]) for first in range(0, CODES, _VECTOR)]
    low, high = (
        tirx.call_llvm_pure_intrin(BYTES, _LOOK_UP, quarters[half], bytes_, quarters[half + 1]) for half in (0, 2)
    )
    return tirx.Select(bytes_ < tirx.Broadcast(tirx.const(0, "int8"), _VECTOR), high, low)
