"""Run one kernel of every CUDA schedule and variant under compute-sanitizer: memory errors, data races, barriers.

    python scripts/stress/sanitize_gpu.py -o sanitize.json

Kernels are built side by side without the sanitizer; each is then run once under each tool and its result compared with
the float64 reference. Folded schedules run with every one of the decisions that a search begins with, so all multistage
pipelines and tilings are among them; schedules for layers or zeros of their own run random convolutions.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kernel_jobs

from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.schedules.lookup import family_of, schedule_names
from tvm_sparse.target.cpu import available_cores
from tvm_sparse.target.resolve import resolve_target

# What asks a worker for a kernel, and says where it lies.
Request = dict[str, Any]
TOOLS = ("memcheck", "racecheck", "synccheck")
# Padding, a residual and odd sizes, and a batch of more blocks than multiprocessors; small, since a kernel runs a
# hundred times longer under these tools.
SPECS = (
    ConvSpec(3, 32, 29, 29, 48, 3, 3, padding=(1, 1, 1, 1), bias=True, residual=True, relu=True),
    ConvSpec(64, 16, 14, 40, 32, 3, 3, padding=(1, 1, 1, 1), residual=True),
    ConvSpec(1, 16, 57, 57, 32, 3, 3, stride=(2, 2), padding=(0, 1, 1, 0), dilation=(1, 2), groups=2, bias=True),
)
# Schedules that need layers, or zeros, of their own, and random convolutions of each.
OWN = (*(f"{each}_cuda" for each in kernel_jobs.OWN_CASES), "linear_cuda")
CASES = range(8)
TIMEOUT_S = 300
# Of what a tool says at most so many characters are kept.
SAID = 20_000
# Exit code of the sanitizer where it found something, and of a kernel that is wrong.
FOUND, WRONG = 9, 8


def sanitize(tool: str, requests: Sequence[Request]) -> str:
    """What a tool says of a process that runs these kernels; "" where it is clean and all results are right."""
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(FOUND), sys.executable, __file__, "--run"]
    words = [*command, json.dumps(requests)]
    try:
        done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        return f"not done after {TIMEOUT_S} s: {(error.stdout or b'').decode()[-1500:]}"
    if done.returncode == 0:
        return ""
    # The kernel that a finding is of has its line behind it, unless it was the last.
    lines = [line for line in done.stdout.splitlines() if line.startswith(("=========", "{"))]
    return f"exit {done.returncode}: {chr(10).join(lines)[:SAID]}{done.stderr[-SAID:]}"


def run_here(requests: Sequence[Request]) -> int:
    """Run built kernels and compare them."""
    found = [kernel_jobs.judged(kernel_jobs.run(request)) for request in requests]
    for request, each in zip(requests, found, strict=True):
        print(request["job"], each, flush=True)
    return WRONG if any("cause" in each for each in found) else 0


def main() -> int:
    """4 without compute-sanitizer, 5 where a tool found something."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--schedules", nargs="+", metavar="NAME", help="only these (default: all with decisions)")
    parser.add_argument("--workers", type=int, default=available_cores(), help="processes side by side")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    options = parser.parse_args()
    if options.run:
        return run_here(json.loads(options.run))
    if shutil.which("compute-sanitizer") is None:
        print("compute-sanitizer is not on PATH; it comes with the CUDA toolkit", file=sys.stderr)
        return 4
    names = schedule_names(resolve_target("cuda"), True)
    schedules = options.schedules or [name for name in names if not family_of(name).is_generated]
    jobs = kernel_jobs.cuda_jobs(SPECS, [name for name in schedules if name not in OWN], every_start=True)
    jobs += kernel_jobs.random_jobs(CASES, 0, [name for name in schedules if name in OWN], on_gpu=False)
    with tempfile.TemporaryDirectory() as folder:
        made = list(kernel_jobs.built(jobs, options.workers, "cuda", folder))
        found = [{"tool": "build", "found": f"{request['job']}: {each}"} for request, each in made if "cause" in each]
        requests = [{**request, **each} for request, each in made if each.keys() == {"space"}]
        # Several kernels a process, since it takes seconds to start under these tools; several processes at once.
        processes = max(1, options.workers // len(TOOLS))
        groups = [(tool, requests[i::processes]) for tool in TOOLS for i in range(processes)]
        with ThreadPoolExecutor(len(groups)) as threads:
            said = list(threads.map(lambda group: sanitize(*group), groups))
    found += [{"tool": tool, "found": text} for (tool, _), text in zip(groups, said, strict=True) if text]
    names = sorted({f"{each['space']} {each['job']['start']}" for each in requests})
    report = {"kernels": len(requests), "tools": TOOLS, "names": names, "findings": found}
    print(f"{len(requests)} kernels, {', '.join(TOOLS)}: {len(found)} findings")
    for each in found:
        print(f"FOUND {each['tool']}\n{each['found']}")
    if options.output is not None:
        options.output.write_text(json.dumps(report, indent=1) + "\n")
    return 5 if found else 0


if __name__ == "__main__":
    sys.exit(main())
