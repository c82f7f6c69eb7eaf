"""Dense linear layers on integers of eight bits: four channels of a vector of filters, weights read once."""

import math

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_sparse.conv.codes import FOUR
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.scheduling.cpu.byte_copies import SCHEDULED
from tvm_sparse.scheduling.cpu.byte_unit import ByteUnit
from tvm_sparse.scheduling.cpu.byte_vectors import INT32, LANES
from tvm_sparse.scheduling.tir_writing import function_of, new_buffer, whole
from tvm_sparse.target.cpu_info import CpuInfo


def serves(weight: np.ndarray, unit: ByteUnit) -> bool:
    """Whether a weight (K, C) has fours of channels and a vector of filters."""
    return weight.shape[0] >= unit.lanes and weight.shape[1] % FOUR == 0


def _filters(k: int, unit: ByteUnit) -> tuple[int, np.ndarray]:
    """Filters of a task, and the first of each: the last task ends with the last filter."""
    # Half of the registers have sums: more than hide the latency of a product.
    tasks = -(-k // (unit.lanes * CpuInfo(unit.lanes).registers // 2))
    filters = min(k // unit.lanes, -(-k // (unit.lanes * tasks))) * unit.lanes
    return filters, np.minimum(np.arange(-(-k // filters)) * filters, k - filters)


def constants(weight: np.ndarray, least: int, unit: ByteUnit) -> tuple[np.ndarray, np.ndarray]:
    """A weight (K, C) of integers as (tasks, C / 4, filters), int32 of four; and what sums (K,) begin with."""
    k, c = weight.shape
    filters, first = _filters(k, unit)
    by_task = weight.astype(np.int8)[first[:, None] + np.arange(filters)]
    fours = by_task.reshape(len(first), filters, c // FOUR, FOUR).transpose(0, 2, 1, 3)
    start = (least + unit.moved) * weight.astype(np.int64).sum(axis=1)
    return np.ascontiguousarray(fours).view(np.int32)[..., 0], start.astype(np.int32)


def product(rows: int, k: int, c: int, least: int, unit: ByteUnit) -> tirx.PrimFunc:
    """The function from codes (rows, C), float32, and `constants` to sums (rows, K), float32."""
    filters, first_filters = _filters(k, unit)
    lanes, tasks = math.gcd(c, LANES), len(first_filters)
    vectors = range(0, filters, unit.lanes)

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
            for each in vectors:
                T.buffer_store(acc, unit.all_of(0), [unit.at(each)])
            with T.serial(c // FOUR) as four:
                pixel = tirx.reinterpret(INT32, codes[tirx.Ramp(four * FOUR, 1, FOUR)])
                pixels = unit.all_of(unit.pixels(pixel, 1))
                for each in vectors:
                    at = unit.at(each)
                    T.buffer_store(acc, unit.multiply(acc[at], pixels, weight[task, four, at]), [at])
            first = tirx.min(task * filters, k - filters)
            for each in vectors:
                to = unit.at(first + each)
                sums = acc[unit.at(each)] + start[to]
                T.buffer_store(y, tirx.Cast(f"{FLOAT32}x{unit.lanes}", sums), [row, to])

    shapes = {
        "x": ((rows, c), FLOAT32),
        "weight": ((tasks, c // FOUR, filters), INT32),
        "start": ((k,), INT32),
        "y": ((rows, k), FLOAT32),
    }
    return function_of(shapes, body).with_attr(SCHEDULED)
