"""Dense linear layers on integers of eight bits: four channels of 16 filters an instruction, weights read once."""

import math

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_sparse.conv.codes import FOUR
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.scheduling.cpu.byte_copies import SCHEDULED
from tvm_sparse.scheduling.cpu.byte_vectors import BYTES, DOT, INT32, LANES, integers, vector_at
from tvm_sparse.scheduling.tir_writing import function_of, new_buffer, whole

# Of 16 filters, whose sums are in registers: more than hide the latency of a product.
MOST_VECTORS = 16


def serves(weight: np.ndarray) -> bool:
    """Whether a weight (K, C) has fours of channels and a vector of filters."""
    return weight.shape[0] >= LANES and weight.shape[1] % FOUR == 0


def _filters(k: int) -> tuple[int, np.ndarray]:
    """Filters of a task, and the first of each: the last task ends with the last filter."""
    tasks = -(-k // (LANES * MOST_VECTORS))
    filters = min(k // LANES, -(-k // (LANES * tasks))) * LANES
    return filters, np.minimum(np.arange(-(-k // filters)) * filters, k - filters)


def constants(weight: np.ndarray, least: int) -> tuple[np.ndarray, np.ndarray]:
    """A weight (K, C) of integers as (tasks, C / 4, filters), int32 of four; and what sums (K,) begin with."""
    k, c = weight.shape
    filters, first = _filters(k)
    by_task = weight.astype(np.int8)[first[:, None] + np.arange(filters)]
    fours = by_task.reshape(len(first), filters, c // FOUR, FOUR).transpose(0, 2, 1, 3)
    start = least * weight.astype(np.int64).sum(axis=1)
    return np.ascontiguousarray(fours).view(np.int32)[..., 0], start.astype(np.int32)


def product(rows: int, k: int, c: int, least: int) -> tirx.PrimFunc:
    """The function from codes (rows, C), float32, and `constants` to sums (rows, K), float32."""
    filters, first_filters = _filters(k)
    lanes, vectors, tasks = math.gcd(c, LANES), filters // LANES, len(first_filters)

    def body(arguments: dict[str, tirx.Var]) -> None:
        x, weight, start, y = (arguments[name] for name in ("x", "weight", "start", "y"))
        with T.parallel(rows * tasks) as index, T.sblock("product"):
            T.reads(*map(whole, (x, weight, start)))
            T.writes(whole(y))
            row, task = tirx.floordiv(index, tasks), tirx.floormod(index, tasks)
            codes = new_buffer("codes", (c,), dtype="uint8")
            acc = new_buffer("acc", (filters,), "local", INT32)
            with T.serial(c // lanes) as vector:
                floats = x[row, tirx.Ramp(vector * lanes, 1, lanes)]
                own = tirx.Cast(f"{INT32}x{lanes}", floats - tirx.Broadcast(tirx.const(float(least), FLOAT32), lanes))
                T.buffer_store(codes, tirx.Cast(f"uint8x{lanes}", own), [tirx.Ramp(vector * lanes, 1, lanes)])
            for each in range(vectors):
                T.buffer_store(acc, integers(0), [vector_at(each * LANES)])
            with T.serial(c // FOUR) as four:
                pixel = tirx.reinterpret(INT32, codes[tirx.Ramp(four * FOUR, 1, FOUR)])
                pixels = tirx.reinterpret(BYTES, tirx.Broadcast(pixel, LANES))
                for each in range(vectors):
                    at = vector_at(each * LANES)
                    weights = tirx.reinterpret(BYTES, weight[task, four, at])
                    sums = tirx.call_llvm_pure_intrin(f"{INT32}x{LANES}", DOT, acc[at], pixels, weights)
                    T.buffer_store(acc, sums, [at])
            first = tirx.min(task * filters, k - filters)
            for each in range(vectors):
                to = vector_at(first + each * LANES)
                sums = acc[vector_at(each * LANES)] + start[to]
                T.buffer_store(y, tirx.Cast(f"{FLOAT32}x{LANES}", sums), [row, to])

    shapes = {
        "x": ((rows, c), FLOAT32),
        "weight": ((tasks, c // FOUR, filters), INT32),
        "start": ((k,), INT32),
        "y": ((rows, k), FLOAT32),
    }
    return function_of(shapes, body).with_attr(SCHEDULED)
