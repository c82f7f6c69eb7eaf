"""Time the best kernels of a log for Table 2 on the CPU, in turns with PyTorch (oneDNN) and ONNX Runtime.

    python scripts/table2/bench_cpu.py --log tuning_logs/znver5/table2.jsonl

For each number of threads a process of its own runs all contenders: our kernel from the log, our dense kernel,
PyTorch's convolution in NCHW and in channels-last (NHWC), and ONNX Runtime. Everything is called through Python on
tensors that exist already; what such a call costs each library for a convolution of one weight is measured too. Each
result is compared with a float64 reference first, ours under the error bound of `tvm_sparse.reference`. Prints a
table, and writes it with all times as ``docs/results/<name>.json.xz`` and ``.md``. Records hold for one number of
threads: tune for each.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from tvm_sparse.benchmarks import operators
from tvm_sparse.benchmarks.cpu_contenders import DENSE, ONEDNN, OURS, RIVALS, Call, compiled_call, contenders
from tvm_sparse.benchmarks.timing import Spread, interleave, speedup, verdict
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import TvmSparseError
from tvm_sparse.target.cpu import available_cores
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.resolve import resolve_target

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
# What a rival's result may differ from the reference by, as a fraction of the largest value: theirs may be Winograd's.
RIVAL_ERROR = 1e-4
TINY = ConvSpec(n=1, c=1, h=1, w=1, k=1, r=1, s=1)


def check(case: str, calls: Mapping[str, Call], expected: Any) -> dict[str, float]:
    """Error of each contender: ours as a fraction of its bound, rivals' as one of the largest value."""
    errors = {}
    for name, call in calls.items():
        result = call()
        y = result if isinstance(result, np.ndarray) else result.numpy()
        if name in RIVALS:
            errors[name] = float(np.abs(y - expected.value).max() / np.abs(expected.value).max())
            if not errors[name] <= RIVAL_ERROR:
                raise SystemExit(f"{case}: {name} is wrong by {errors[name]:.3g} of the largest value")
        else:
            errors[name] = expected.check(f"{case}, {name}", y)
    return errors


def bench_case(operator: int, batch: int, density: float, log: Any, threads: int, arguments: Any) -> dict[str, Any]:
    """Times and errors of one case, or the reason why there are none."""
    from tvm_sparse.compiler.kernel_selection import decide
    from tvm_sparse.conv import reference
    from tvm_sparse.frontend.passes.find_convolutions import ConvLayer

    spec, weight = operators.spec(operator, batch), operators.weight(operator, density, arguments.seed)
    case = {"operator": operator, "batch": batch, "density": density, "convolution": spec.key}
    name = operators.name(operator, batch, density)
    target = resolve_target({"kind": "llvm", "num-cores": threads})
    (decision,) = decide([ConvLayer(name, spec, weight, None)], target, log)
    dense = log.dense(spec, fingerprint_of(target))
    if decision.record is None or dense is None:
        return {**case, "skipped": decision.reason}
    x = reference.random_arguments(spec, arguments.seed)["x"]
    ours = {
        OURS: compiled_call(decision.schedule, spec, weight, x, target, decision.chosen),
        DENSE: compiled_call(dense.schedule, spec, weight, x, target, dense.chosen),
    }
    calls = contenders(spec, weight, x, threads, ours)
    errors = check(name, calls, reference.reference(spec, x, weight))
    times = interleave(calls, arguments.repeat, arguments.min_round_ms)
    return {**case, "schedule": decision.schedule, "reason": decision.reason, "errors": errors, "times_us": times}


def overheads(threads: int) -> dict[str, float]:
    """Microseconds that a call costs each library: its time for a convolution of one number."""
    x, weight = np.ones(TINY.input_shape, np.float32), np.ones(TINY.weight_shape, np.float32)
    target = resolve_target({"kind": "llvm", "num-cores": threads})
    ours = {OURS: compiled_call("dense_cpu", TINY, weight, x, target, None)}
    times = interleave(contenders(TINY, weight, x, threads, ours), rounds=5)
    return {name: Spread.of(values).median for name, values in times.items()}


def child(threads: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """All cases with `threads` threads; the environment of this process says the same to TVM."""
    import torch

    from tvm_sparse.logs.tuning_log import TuningLog

    torch.set_num_threads(threads)
    log = TuningLog(os.devnull, *arguments.log)
    cases = []
    with torch.inference_mode():
        for operator in arguments.operators:
            for batch in arguments.batch:
                for density in arguments.density:
                    print(f"{threads} thread(s), {operators.name(operator, batch, density)}", file=sys.stderr)
                    cases.append(bench_case(operator, batch, density, log, threads, arguments))
        return {"threads": threads, "call_overhead_us": overheads(threads), "cases": cases}


def run_child(threads: int) -> dict[str, Any]:
    """`child` in a process of its own: thread pools cannot be resized."""
    variables = {"TVM_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads), "TVM_BIND_THREADS": "0"}
    command = [sys.executable, __file__, *sys.argv[1:], "--child", str(threads)]
    done = subprocess.run(command, env={**os.environ, **variables}, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def summary(case: Mapping[str, Any]) -> dict[str, Any]:
    """One row: medians, and ratios against the better of oneDNN's layouts and against the best rival of all."""
    times = case["times_us"]

    def best(names: tuple[str, ...]) -> str:
        return min(names, key=lambda name: Spread.of(times[name]).median)

    onednn = speedup(times[OURS], times[best(ONEDNN)])
    rival = best(RIVALS)
    return {
        "medians_us": {name: Spread.of(values) for name, values in times.items()},
        "onednn": onednn,
        "verdict": verdict(onednn),
        "rival": rival,
        "best": speedup(times[OURS], times[rival]),
    }


def markdown(document: Mapping[str, Any]) -> str:
    """The results as a Markdown page."""
    machine = document["fingerprint"]
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    before, after = document["load_average"]
    lines = [
        "# Table 2 on the CPU",
        "",
        f"{machine['device']} ({machine['arch']}), {machine['system']}; {versions}. {document['rounds']} rounds "
        "in turns; medians in microseconds with quartiles, ratios are medians over the rounds. "
        f"Load average at start and end: {before:.2f}, {after:.2f}.",
        "",
        f"Made by `{document['command']}`.",
    ]
    for run in document["runs"]:
        overhead = ", ".join(f"{name} {value:.1f}" for name, value in run["call_overhead_us"].items())
        lines += ["", f"## {run['threads']} thread(s)", "", f"A call alone costs, in us: {overhead}.", ""]
        names = (OURS, DENSE, *RIVALS)
        lines.append(f"| op | batch | density | {' | '.join(names)} | against oneDNN | against the best | kernel |")
        lines.append("|" + "---|" * (len(names) + 6))
        lines += [_markdown_row(case, names) for case in run["cases"]]
    return "\n".join(lines) + "\n"


def _markdown_row(case: Mapping[str, Any], names: tuple[str, ...]) -> str:
    head = f"| {case['operator']} | {case['batch']} | {case['density']:g} |"
    if "skipped" in case:
        return f"{head} {'| ' * (len(names) + 1)}| not measured: {case['skipped']} |"
    row = summary(case)
    times = " | ".join(
        f"{s.median:.4g} ({s.low:.4g}-{s.high:.4g})" for s in (row["medians_us"][name] for name in names)
    )
    onednn, best = row["onednn"], row["best"]
    return (
        f"{head} {times} | **{onednn.median:.2f}x** ({onednn.low:.2f}-{onednn.high:.2f}), {row['verdict']} "
        f"| {best.median:.2f}x ({row['rival']}) | `{case['schedule']}` |"
    )


def show(document: Mapping[str, Any]) -> None:
    """The results on the terminal."""
    from tvm_sparse.cli import tables

    names = (OURS, DENSE, *RIVALS)
    for run in document["runs"]:
        rows: list[dict[str, Any]] = []
        for case in run["cases"]:
            row: dict[str, Any] = {"case": operators.name(case["operator"], case["batch"], case["density"])}
            if "skipped" in case:
                row |= {**dict.fromkeys(names), "onednn": None, "verdict": f"not measured: {case['skipped']}"}
            else:
                result = summary(case)
                row |= {name: result["medians_us"][name].median for name in names}
                row |= {"onednn": result["onednn"].median, "verdict": result["verdict"]}
            rows.append(row)
        headings = {"case": "", **{name: f"{name} us" for name in names}, "onednn": "against oneDNN", "verdict": ""}
        tables.result_console().print(tables.table(f"{run['threads']} thread(s)", rows, headings))


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path, action="append", required=True, help="tuning log; may be repeated")
    all_cores = available_cores()
    default = "1" if all_cores == 1 else f"1,{all_cores}"
    parser.add_argument("--threads", type=operators.numbers, default=default, help="such as 1,8 (default: one and all)")
    parser.add_argument("--operators", type=operators.operators, default="1-10", help="such as 1,2,6-10 (default: all)")
    parser.add_argument("--batch", type=operators.numbers, default="1", help="batch sizes (default: %(default)s)")
    parser.add_argument(
        "--density", type=operators.densities, default="0.1", help="of the weights (default: %(default)s)"
    )
    parser.add_argument("--repeat", type=int, default=25, help="rounds (default: %(default)s)")
    parser.add_argument(
        "--min-round-ms", type=float, default=20, help="a contender runs in a round (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of weights and inputs (default: %(default)s)")
    parser.add_argument("--name", help="of the files to write (default: table2-ARCHITECTURE)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder to write to (default: docs/results)")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        if arguments.child:
            print(json.dumps(child(arguments.child, arguments)))
            return 0
        load = os.getloadavg()[0]
        runs = [run_child(threads) for threads in arguments.threads]
    except TvmSparseError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    fingerprint = fingerprint_of(resolve_target("llvm"))
    document = {
        "command": shlex.join(["python", "scripts/table2/bench_cpu.py", *sys.argv[1:]]),
        "fingerprint": {key: value for key, value in fingerprint.items() if key != "threads"},
        "versions": {name: metadata.version(name) for name in ("apache-tvm", "torch", "onnxruntime")},
        "rounds": arguments.repeat,
        "load_average": [load, os.getloadavg()[0]],
        "runs": runs,
    }
    show(document)
    arguments.results.mkdir(parents=True, exist_ok=True)
    name = arguments.name or f"table2-{fingerprint['arch']}"
    packed = lzma.compress(json.dumps(document, allow_nan=False).encode())
    for suffix, content in (("json.xz", packed), ("md", markdown(document).encode())):
        path = arguments.results / f"{name}.{suffix}"
        path.write_bytes(content)
        print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
