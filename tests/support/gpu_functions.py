"""Functions of a model as a pass schedules them for a GPU, and what their code computes on the CPU."""

from typing import Any

import numpy as np
import tvm
from cuda_emulator import build_source, emulate
from tvm import relax
from tvm.relax.backend.cuda import pipeline
from tvm.target import Target

TARGET = Target({"kind": "cuda", "arch": "sm_90"})


def scheduled(module: tvm.IRModule, schedule: tvm.transform.Pass) -> list[tvm.tirx.PrimFunc]:
    """The functions of a Relax `module` that the pass `schedule` schedules, in the place of TVM's own schedules."""
    with TARGET:
        result = tvm.transform.Sequential([*pipeline.legalize_passes(TARGET)[:-1], schedule])(module)
    return [func for _, func in result.functions_items() if "tirx.is_scheduled" in (func.attrs or {})]


def computing(compute: Any, *shapes: tuple[int, ...], dtype: str = "float32") -> tvm.IRModule:
    """The module whose output ``compute`` makes of tensors of `shapes`, x0 and so on."""
    builder = relax.BlockBuilder()
    taken = [relax.Var(f"x{i}", relax.TensorType(shape, dtype)) for i, shape in enumerate(shapes)]
    with builder.function("main", taken):
        with builder.dataflow():
            output = builder.emit_output(builder.emit(compute(*taken)))
        builder.emit_func_output(output)
    return builder.get()


def emulated(func: tvm.tirx.PrimFunc, inputs: dict[str, np.ndarray], shape: Any) -> tuple[np.ndarray, str]:
    """The output of `func`, of the type of its first input, and its CUDA source; what it does not write is NaN."""
    *taken, output = (each.name for each in func.params)
    y = np.full(shape, np.nan, inputs[taken[0]].dtype)
    source, launches = build_source(func.with_attr("global_symbol", "main"), TARGET)
    emulate(source, launches, {**{each: inputs[each] for each in taken}, output: y})
    return y, source
