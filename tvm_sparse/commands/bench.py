"""``bench``: time a model compiled with a log against the same model dense, or an artifact alone."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from tvm.target import Target

from tvm_sparse import artifact, display, environment, timing
from tvm_sparse.commands import common
from tvm_sparse.decide import decide
from tvm_sparse.model import build, prepare

OURS, DENSE, ONNX_RUNTIME = "tvm-sparse", "dense, same compiler", "onnxruntime"


def run(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """The document: times in microseconds and ratios, each with quartiles."""
    if arguments.model.is_dir():
        compiled = artifact.load(arguments.model)
        threads = common.use_threads_of(compiled.target)
        inputs = common.random_inputs(compiled, arguments.seed)
        contenders = {OURS: common.caller(compiled, inputs)}
    else:
        target = environment.resolve_target(arguments.target)
        threads = common.use_threads_of(target)
        contenders = _contenders(arguments, target, threads, console)
    times = timing.interleave(contenders, arguments.repeat)
    return {"model": str(arguments.model), "threads": threads, "rounds": arguments.repeat, "times": compare(times)}


def _contenders(
    arguments: argparse.Namespace, target: Target, threads: int, console: Console
) -> dict[str, Callable[[], Any]]:
    """Ours, dense and, for ONNX on a CPU, ONNX Runtime; their outputs are compared first."""
    log = common.log_to_read(arguments, console)
    prepared = prepare(arguments.model, shapes=common.shapes(arguments))
    ours = build(prepared, decide(prepared.layers, target, log), target)
    dense = build(prepared, decide(prepared.layers, target, common.dense_only(log)), target)
    inputs = common.random_inputs(ours, arguments.seed)
    expected = common.outputs_of(dense, inputs)
    common.check_agreement(str(arguments.model), common.outputs_of(ours, inputs), expected)
    contenders = {OURS: common.caller(ours, inputs), DENSE: common.caller(dense, inputs)}
    rival = onnx_runtime(arguments.model, threads) if target.kind.name == "llvm" else None
    if rival is not None:
        common.check_agreement(f"{arguments.model} in ONNX Runtime", rival(inputs), expected)
        contenders[ONNX_RUNTIME] = lambda: rival(inputs)
    return contenders


def onnx_runtime(path: Path, threads: int) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]] | None:
    """A function that runs an ONNX file with ONNX Runtime on the CPU; None where that is not possible here."""
    if path.suffix != ".onnx" or importlib.util.find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return lambda inputs: session.run(None, dict(zip(names, inputs, strict=True)))


def compare(times: Mapping[str, tuple[float, ...]]) -> list[dict[str, Any]]:
    """One object a contender: its times, and how many times faster the first one is."""
    ours = next(iter(times.values()))
    rows = []
    for name, values in times.items():
        ratio = timing.speedup(ours, values) if values is not ours else None
        rows.append(
            {
                "name": name,
                "time_us": timing.Spread.of(values).to_json(),
                "speedup": ratio.to_json() if ratio else None,
                "verdict": timing.verdict(ratio) if ratio else None,
            }
        )
    return rows


def show(document: dict[str, Any], console: Console) -> None:
    """One row a contender."""
    title = f"{document['model']}: {document['threads']} thread(s), {document['rounds']} rounds in turns"
    console.print(times_table(title, document["times"]))


def times_table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """A table of what `compare` returns."""
    ours = rows[0]["name"]
    cells = [
        {
            "name": row["name"],
            "median": row["time_us"]["median"],
            "spread": f"{display.cell(row['time_us']['q1'])} - {display.cell(row['time_us']['q3'])}",
            "speedup": _ratio_text(row),
        }
        for row in rows
    ]
    columns = {
        "name": "",
        "median": "median us",
        "spread": "quartiles us",
        "speedup": f"{ours} against it",
    }
    return display.table(title, cells, columns)


def _ratio_text(row: Mapping[str, Any]) -> str | None:
    ratio = row["speedup"]
    if ratio is None:
        return None
    return f"{ratio['median']:.2f}x ({ratio['q1']:.2f} - {ratio['q3']:.2f}), {row['verdict']}"
