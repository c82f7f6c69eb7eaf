"""The tables of the commands in terminals of three widths, as they were when someone last read them."""

import io
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console
from test_golden import compare

from tvm_sparse.cli.commands import compile, optimize, run, tune
from tvm_sparse.reports.benchmark import Benchmark
from tvm_sparse.reports.checking import Check
from tvm_sparse.reports.inspection import Inspection
from tvm_sparse.runtime.verdict import Verdict
from tvm_sparse.verdict.measured import DENSE, ONNX_RUNTIME, OURS, Times

WIDTHS = (80, 100, 140)
PREDICTED = Verdict("predicted", 2.14, None, None, "same compiler", 0.5, layers=5, gaining=4)


def layer(name, kernel, status, time_us, speedup, density=0.1, **more):
    dense = density == 1
    return {
        "layer": name,
        "density": density,
        "structure": "dense" if dense else "unstructured",
        "schedule": {"folded": "folded_cpu:rows1x34-block", "sparse data": "csr_cpu"}.get(kernel, "dense_cpu:tile6x64"),
        "precision": "float32",
        "dense_time_us": time_us and time_us * speedup,
        "time_us": time_us,
        "reason": "folded_cpu is faster than dense_cpu, tuned for these weights",
        "kernel": kernel,
        "status": status,
        "speedup": speedup,
        **more,
    }


LAYERS = [
    layer("/features/features.0/features.0.0/Conv", "dense", "not pruned", 10263.4, 1.0, density=1),
    *(layer(f"layer1.{i}.conv{j}", "folded", "measured", 91.25, 4.117) for i in (0, 1) for j in (1, 2)),
    layer(
        "/features/features.18/branch_with_a_long_name/expanded/features.18.0/Conv",
        "sparse data",
        "predicted",
        None,
        1.9,
    ),
    layer("layer4.1.conv2", "dense", "dense is faster", 2.5, 1.0, density=0.62),
    layer("layer4.2.conv2", "bias alone", "all weights are zero", None, 500.0, density=0.0),
]
TIMES = Times(2, {OURS: (17300.0, 17350.0, 17400.0), DENSE: (41200.0,) * 3, ONNX_RUNTIME: (36000.0, 36100.0, 37000.0)})
# The version of what is installed is none of this page's.
MEASURED = replace(TIMES.verdict(PREDICTED), dense_name="ONNX Runtime 1.3")
TASK = {
    "layers": ["layer1.0.conv1", "layer1.0.conv2", "layer1.1.conv1"],
    "batch": 1,
    "trials": 64,
    "new_trials": 8,
    "failures": {"invalid": 2},
    "dense_time_us": 375.1,
    "time_us": 91.25,
    "speedup": 4.11,
    "ended_early": False,
    "out_of_time": False,
}
CHECKED = {"schedule": "folded_cpu", "error": 0.01, "baseline_error": 0.02, "difference": 1e-6, "verdict": "ok"}
OUTPUT = {
    "name": "output0",
    "shape": [1, 1000],
    "dtype": "float32",
    "min": -1.25,
    "max": 3.5,
    "mean": 0.0,
    "not_finite": 0,
    "largest_at": [0, 281],
}
COMPARISON = {"reference": "ONNX Runtime", "difference": 3.2e-7, "seconds": 0.1, "note": ""}
COMPILED = {
    "sha256": "0" * 64,
    "layers": LAYERS,
    "comparison": COMPARISON,
    "artifact": "m.sparse",
    "unverified": None,
    "verdicts": [PREDICTED.to_json()],
}
DOCUMENTS = {
    "inspect": (
        Inspection,
        {"worth_it": "yes, about 2.1x on this CPU", "model": "m.onnx", "layers": LAYERS, "notes": ["8 layers."]},
    ),
    "compile": (compile, COMPILED),
    "optimize": (
        optimize,
        {
            **COMPILED,
            "layers": [{"variant": f"batch {batch}", **row} for batch in (1, 8) for row in LAYERS[:2]],
            "verdicts": [
                replace(TIMES.verdict(PREDICTED), dense_name="ONNX Runtime 1.3", variant=f"batch {n}").to_json()
                for n in (1, 8)
            ],
            "trials": 12,
            "log": "log.jsonl",
        },
    ),
    "bench": (
        Benchmark,
        {
            "model": "m.onnx",
            "threads": 2,
            "rounds": 3,
            "times": TIMES.rows(),
            "notes": [],
            "verdict": MEASURED.to_json(),
        },
    ),
    "tune": (tune, {"log": "my.jsonl", "seconds": None, "tasks": [TASK], "verdicts": [PREDICTED.to_json()]}),
    "run": (run, {"outputs": [OUTPUT], "output": "y.npz", "variants": []}),
    "check": (
        Check,
        {
            "baseline": "onnxruntime",
            "inputs": [
                {
                    "input": "random, seed 0",
                    "layers": [{**CHECKED, "name": "layer1.0.conv1"}],
                    "outputs": [{**CHECKED, "name": "output0", "schedule": None}],
                    "sentence": None,
                }
            ],
            "notes": [],
        },
    ),
}


def shown(name, width):
    """What a terminal of so many columns shows, without colours."""
    command, document = DOCUMENTS[name]
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None, highlight=False)
    if hasattr(command, "show"):
        command.show(document, console)
    else:
        console.print(command(document))
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


@pytest.mark.parametrize("width", WIDTHS)
def test_tables_are_the_golden_ones(width, pytestconfig):
    text = "\n".join(f"$ tvm-sparse {name}\n{shown(name, width)}" for name in DOCUMENTS)
    assert max(map(cell_len, text.splitlines())) <= width
    compare(f"tables-{width}.txt", text, pytestconfig)
