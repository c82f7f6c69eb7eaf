"""Run one kernel of every CUDA schedule and variant under compute-sanitizer: memory errors, data races, barriers.

    python scripts/stress/sanitize_gpu.py -o sanitize.json

Kernels are built side by side without the sanitizer; each is then run once under each tool and its result compared with
the float64 reference. Folded schedules run with every one of the decisions that a
search begins with, so rings, turned rings, tiles and runs of pixels are all among them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from gpu_jobs import Job, pruned_weight, run, target

from tvm_sparse.benchmarks.gpu.isolated_process import pool
from tvm_sparse.conv.spec import ConvSpec

# The checkout need not be installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


TOOLS = ("memcheck", "racecheck", "synccheck")
# Padding, a residual and odd sizes, and a batch of more blocks than multiprocessors; small, since a kernel runs a
# hundred times longer under these tools.
SPECS = (
    ConvSpec(3, 32, 29, 29, 48, 3, 3, padding=(1, 1, 1, 1), bias=True, residual=True, relu=True),
    ConvSpec(64, 16, 14, 40, 32, 3, 3, padding=(1, 1, 1, 1), residual=True),
    ConvSpec(1, 16, 57, 57, 32, 3, 3, stride=(2, 2), padding=(0, 1, 1, 0), dilation=(1, 2), groups=2, bias=True),
)
TIMEOUT_S = 300
# Exit code of the sanitizer where it found something, and of a kernel that is wrong.
FOUND, WRONG = 9, 8


def build(spec: ConvSpec, schedule: str, folder: str) -> list[tuple[str, str]]:
    """Build the kernels of a schedule for a convolution: (name, path without suffix) each."""
    from tvm_sparse.codegen import lowering
    from tvm_sparse.conv.sparsity import SparsityPattern
    from tvm_sparse.schedules import spaces_of
    from tvm_sparse.scheduling.kernel import apply_decisions

    weight, built = pruned_weight(spec, 0), []
    found, _ = spaces_of(spec, SparsityPattern.of(weight), target(), [schedule])
    for each in found:
        for i, decisions in enumerate(each.starts()):
            kernel, path = apply_decisions(each, weight, decisions), f"{folder}/{len(spec.key)}-{each.variant}-{i}"
            lowering.build(kernel.func, target()).export_library(f"{path}.so")
            np.savez(f"{path}.npz", *kernel.constants)
            built.append((f"{each.name} {i}", path))
    return built


def sanitize(tool: str, jobs: Sequence[str]) -> str:
    """What a tool says of a process that runs these jobs; "" where it is clean and all results are right."""
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(FOUND), sys.executable, __file__, "--run"]
    try:
        done = subprocess.run([*command, *jobs], check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        return f"not done after {TIMEOUT_S} s: {(error.stdout or b'').decode()[-1500:]}"
    return "" if done.returncode == 0 else f"exit {done.returncode}: {(done.stdout + done.stderr)[-1500:]}"


def run_here(jobs: Sequence[str]) -> int:
    """Run built kernels, each ``<number of its spec>:<path>``, and compare them."""
    wrong = 0
    for each in jobs:
        index, _, path = each.partition(":")
        result = run(Job("kernel", 0, SPECS[int(index)]), path, path, timed=False)
        print(path, result.worst, result.failure, flush=True)
        wrong += not result.passed
    return WRONG if wrong else 0


def main() -> int:
    """4 without compute-sanitizer, 5 where a tool found something."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes side by side")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    options = parser.parse_args()
    if options.run:
        return run_here(options.run)
    if shutil.which("compute-sanitizer") is None:
        print("compute-sanitizer is not on PATH; it comes with the CUDA toolkit", file=sys.stderr)
        return 4

    from tvm_sparse.schedules import schedule_names

    schedules = [name for name in schedule_names(target()) if not name.startswith("generated")]
    with tempfile.TemporaryDirectory() as folder, pool(options.workers) as builders:
        waiting = []
        for index, schedule in itertools.product(range(len(SPECS)), schedules):
            place = Path(folder, f"{index}-{schedule}")
            place.mkdir()
            waiting.append((index, builders.submit(build, SPECS[index], schedule, str(place))))
        jobs = [(f"{index}:{path}", name) for index, future in waiting for name, path in future.result()]
        # Several kernels a process, since it takes seconds to start under these tools; several processes at once.
        parts = max(1, options.workers // len(TOOLS))
        groups = [(tool, [job for job, _ in jobs[i::parts]]) for tool in TOOLS for i in range(parts)]
        with ThreadPoolExecutor(len(groups)) as runs:
            said = list(runs.map(lambda group: sanitize(*group), groups))
    found = [{"tool": tool, "found": text} for (tool, _), text in zip(groups, said, strict=True) if text]
    report = {"kernels": len(jobs), "tools": TOOLS, "names": sorted({name for _, name in jobs})}
    print(f"{len(jobs)} kernels, {', '.join(TOOLS)}: {len(found)} findings")
    for each in found:
        print(f"FOUND {each['tool']}\n{each['found']}")
    if options.output is not None:
        options.output.write_text(json.dumps({**report, "findings": found}, indent=1) + "\n")
    return 5 if found else 0


if __name__ == "__main__":
    sys.exit(main())
