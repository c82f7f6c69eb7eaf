"""Table 2 on the CPU: the best kernels of a log in turns with our dense kernel, oneDNN and ONNX Runtime.

In a process of its own for each number of threads, since thread pools cannot be resized. A result is what `bench`
returns, JSON values; `page` shows it.
"""

import argparse
import os
import sys
from collections.abc import Mapping
from contextlib import closing
from importlib import metadata
from itertools import product
from typing import Any

import numpy as np

from benchmarks import operators
from benchmarks.cpu_contenders import BASELINES, DENSE, ONEDNN, OURS, contenders
from benchmarks.gpu.isolated_process import Runner
from benchmarks.references import FLOAT32_TOLERANCE, error_of
from benchmarks.report.cells import Table, with_quartiles
from tvm_sparse.conv import reference
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import VerificationError
from tvm_sparse.logs.tuning_log import NO_FILE, TuningLog
from tvm_sparse.measure.quartiles import Quartiles
from tvm_sparse.measure.timing import interleave, speedup, verdict
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.resolve import resolve_target

# Its time is that of the call alone.
TINY = ConvSpec(n=1, c=1, h=1, w=1, k=1, r=1, s=1)


def bench(options: argparse.Namespace, command: str) -> dict[str, Any]:
    """Everything that `options` (those of ``scripts/table2/bench_cpu.py``) ask for; sets this process's environment."""
    load = os.getloadavg()[0]
    runs = []
    for threads in options.threads:
        os.environ |= {"TVM_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads), "TVM_BIND_THREADS": "0"}
        with closing(Runner()) as runner:
            runs.append(runner.call(bench_threads, threads, options))
    fingerprint = fingerprint_of(resolve_target("llvm"))
    return {
        "command": command,
        "fingerprint": {key: value for key, value in fingerprint.items() if key != "threads"},
        "versions": {name: metadata.version(name) for name in ("apache-tvm", "torch", "onnxruntime")},
        "rounds": options.repeat,
        "load_average": [load, os.getloadavg()[0]],
        "runs": runs,
    }


def bench_threads(threads: int, options: argparse.Namespace) -> dict[str, Any]:
    """All cases with `threads` threads; the environment of this process says the same to TVM."""
    import torch

    torch.set_num_threads(threads)
    log = TuningLog(NO_FILE, *options.log)
    cases = []
    with torch.inference_mode():
        for operator, batch, density in product(options.operators, options.batch, options.density):
            name = operators.name(operator, batch, density)
            print(f"{threads} thread(s), {name}", file=sys.stderr, flush=True)
            spec, weight = operators.spec(operator, batch), operators.weight(operator, density, options.seed)
            case = {"operator": operator, "batch": batch, "density": density}
            cases.append(case | bench_case(name, spec, weight, log, threads, options))
        return {"threads": threads, "call_overhead_us": overheads_us(threads), "cases": cases}


def bench_case(
    name: str, spec: ConvSpec, weight: np.ndarray, log: TuningLog, threads: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Times of one case and errors as fractions of what is allowed, or the reason why there are none.

    Raises
    ------
    VerificationError
        A contender's result is wrong.
    """
    fingerprint = fingerprint_of(resolve_target({"kind": "llvm", "num-cores": threads}))
    match, dense = log.lookup(spec, SparsityPattern.of(weight, spec.groups), fingerprint), log.dense(spec, fingerprint)
    if match is None or dense is None:
        return {"convolution": spec.key, "skipped": "no record for this shape and number of threads"}
    x = reference.random_arguments(spec, options.seed)["x"]
    kernels = {each: (record.schedule, record.chosen) for each, record in ((OURS, match.record), (DENSE, dense))}
    calls = contenders(spec, weight, x, threads, kernels)
    expected, errors = reference.reference(spec, x, weight), {}
    for each, call in calls.items():
        # Theirs may be Winograd's.
        errors[each] = error_of(np.from_dlpack(call()), expected, FLOAT32_TOLERANCE if each in BASELINES else None)
        if not errors[each] <= 1:
            raise VerificationError(f"{name}, {each}", "the result is wrong", errors[each], "1 times what is allowed")
    times = interleave(calls, options.repeat, options.min_round_ms)
    found = {"convolution": spec.key, "schedule": match.record.schedule, "reason": match.note}
    return found | {"errors": errors, "times_us": times}


def overheads_us(threads: int) -> dict[str, float]:
    """What a call costs each library: its time for a convolution of one number."""
    x, weight = np.ones(TINY.input_shape, np.float32), np.ones(TINY.weight_shape, np.float32)
    times = interleave(contenders(TINY, weight, x, threads, {OURS: ("dense_cpu", None)}), rounds=5)
    return {name: Quartiles.of(values).median for name, values in times.items()}


def page(document: Mapping[str, Any]) -> str:
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
        "",
    ]
    names = (OURS, DENSE, *BASELINES)
    header = ("op", "batch", "density", *names, "against oneDNN", "against the best", "kernel")
    for run in document["runs"]:
        overhead = ", ".join(f"{name} {value:.1f}" for name, value in run["call_overhead_us"].items())
        rows = tuple(_row(case, names) for case in run["cases"])
        title, note = f"{run['threads']} thread(s)", f"A call alone costs, in us: {overhead}."
        lines.append(Table(title, note, header, rows).markdown())
    return "\n".join(lines)


def _row(case: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str, ...]:
    """Times, and ratios against the better of oneDNN's layouts and against the best baseline of all."""
    head = (str(case["operator"]), str(case["batch"]), f"{case['density']:g}")
    if "skipped" in case:
        return (*head, *[""] * (len(names) + 2), f"not measured: {case['skipped']}")
    times = case["times_us"]
    medians = {name: Quartiles.of(times[name]).median for name in BASELINES}
    fastest = min(BASELINES, key=medians.__getitem__)
    onednn = speedup(times[OURS], times[min(ONEDNN, key=medians.__getitem__)])
    return (
        *head,
        *(with_quartiles(times[name]) for name in names),
        f"**{onednn.median:.2f}x** ({onednn.low:.2f}-{onednn.high:.2f}), {verdict(onednn)}",
        f"{speedup(times[OURS], times[fastest]).median:.2f}x ({fastest})",
        f"`{case['schedule']}`",
    )
