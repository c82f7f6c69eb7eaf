"""Time our kernels for Table 2 on an NVIDIA GPU, in turns with all rivals, and write everything measured as JSON.

    python scripts/bench_table2.py --smoke -o /tmp/smoke.json
    python scripts/bench_table2.py --log tuning_logs/nvidia-h200/table2.jsonl.xz -o table2.json.xz
    python scripts/bench_table2.py --log ... --density 0.9,0.7,0.5,0.3,0.2,0.1,0.05 --peers cudnn-fp32,cudnn-tf32 \\
        -o sweep.json.xz
    python scripts/report_table2.py table2.json.xz sweep.json.xz --name table2-h200

The last command needs no GPU and makes the report. Here is how times come about:

- Kernels are built first, side by side: at each density the log's best record for the weight, else a record of another
  weight of the same shape, else default decisions; the result says which. ``--schedules csr_cuda dense_cuda`` adds
  kernels of these schedules.
- Every contender's result is compared with a float64 reference, the first and the last image of a batch, and every
  element must be finite. Float32 methods must meet the element-wise error bound; cuDNN, whose algorithm may be
  Winograd's, and whatever rounds to TF32 or float16 have a declared tolerance. Only then it is timed.
- Calls are captured in CUDA graphs. A cold replay follows a read of memory that displaces everything from the L2 cache,
  and each of its calls has input and output of its own; verdicts come from these. A warm replay repeats one call; it is
  timed where input and output fit the cache. Code and weights are as warm as the calls before left them.
- Each round replays every contender once, in an order shuffled by the seed. A short pilot decides which variants
  (layouts, say) of a method take part. Ratios are taken round by round; faster or slower is said where three quarters
  of the rounds agree.

What a rival needs its input in (NHWC, float16) is converted beforehand, without charge; what it must do at each call
(unfold, pad) is charged. A contender that fails is reported with its cause, and the others go on; one that kills its
process costs a restart. Results are written after each case. ``--target llvm`` tries everything on a CPU, with
meaningless times.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

# The checkout need not be installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import table2
from gpu_device import versions_and_device
from gpu_runner import Runner
from table2_case import Broken, bench_case
from table2_compare import CUDNN_FP32, CUDNN_TF32, EXACT, against, best
from table2_entries import Settings
from table2_kernels import Ours, builders, built, wanted
from table2_results import OURS, Case, Document, Run

from tvm_sparse import environment
from tvm_sparse.errors import BuildError, TvmSparseError
from tvm_sparse.log import TuningLog
from tvm_sparse.peers import escort_kernels
from tvm_sparse.records import utc_now
from tvm_sparse.timing import Spread

SMOKE = {"operators": [1, 6], "batch": [1, 64], "density": [0.1], "rounds": 5}


def run_cases(
    cases: Sequence[tuple[int, int]],
    kernels: dict[tuple[int, int], list[tuple[float, Ours]]],
    settings: Settings,
    options: argparse.Namespace,
    runner: Runner,
) -> Iterator[Case]:
    """Every case as it is done. A contender that breaks the process is left out from then on."""
    skipped: dict[str, str] = {}
    for operator, batch in cases:
        ours = kernels.get((operator, batch), [])
        while True:
            if time.monotonic() > options.deadline:
                print(f"stopped after {options.seconds:g} s, before operator {operator}, batch {batch}", flush=True)
                return
            Path(settings.progress).write_text("")
            try:
                yield runner.call(bench_case, operator, batch, options.density, ours, settings, skipped)
                break
            except Broken as broken:
                name, cause = broken.contender, broken.cause
            except BrokenProcessPool:
                name, cause = Path(settings.progress).read_text(), "the process died"
            except RuntimeError as error:
                name, cause = "", str(error)[-1000:]
            runner.end()
            print(
                f"operator {operator}, batch {batch}: {name or 'nobody known'} broke the process: {cause}", flush=True
            )
            if not name or name in skipped:
                break
            skipped[name] = f"left out after it broke the process of operator {operator}, batch {batch}: {cause}"


def line(case: Case) -> str:
    """What a case found, in one line a density."""
    lines = []
    for density in case.densities or [None]:
        own = best(case, [OURS], density)
        parts = [f"op {case.operator} b{case.batch} d{density}: "]
        parts.append(f"{Spread.of(own.cold_us).median:.4g} us ({own.detail})" if own else "no kernel of ours")
        for label, families in (("fp32", CUDNN_FP32), ("TF32", CUDNN_TF32), ("exact", EXACT)):
            found = against(case, density, families) if density is not None else None
            if found is not None:
                parts.append(f"; {label} {found.ratio.median:.2f}x {found.verdict}")
                parts.append(f" ({found.rival.family})" if label == "exact" else "")
        lines.append("".join(parts))
    lines[-1] += f"  [{case.seconds:g} s]"
    bad = [f"{each.name}: {each.status}, {each.cause[-200:]}" for each in case.contenders if each.status in _BAD]
    return "\n".join([*lines, *(f"    {each}" for each in bad)])


_BAD = ("failed", "wrong")


def bench(options: argparse.Namespace) -> int:
    """Build, measure and write; 5 where a contender was wrong or failed."""
    target = environment.resolve_target(options.target)
    on_gpu, arch = target.kind.name == "cuda", environment.fingerprint(target)["arch"]
    if on_gpu and environment.fingerprint(target)["device"] == "unknown":
        raise BuildError("bench_table2.py", "nvidia-smi finds no GPU", hint="--target llvm tries it without one")
    log = TuningLog(Path("/dev/null"), *options.log)
    cases = [(operator, batch) for operator in options.operators for batch in options.batch]
    kernels = [
        each
        for operator, batch in cases
        for each in wanted((operator, batch), options.density, options.seed, options.schedules, log, target)
    ]
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, Runner() as runner, ThreadPoolExecutor(2) as aside:
        # While kernels are built, so are Escort's, and the process for the GPU imports what it needs.
        library = aside.submit(_escort, Path(folder), arch) if on_gpu and _wants_escort(options) else None
        found = aside.submit(runner.call, versions_and_device, arch, on_gpu)
        with built(kernels, target, options.workers, options.timeout) as by_case:
            print(f"{len(kernels)} kernels built in {time.monotonic() - started:.0f} s", flush=True)
            versions, device = found.result()
            run = Run(
                command=shlex.join(["python", "scripts/bench_table2.py", *sys.argv[1:]]),
                started=utc_now(),
                device=device,
                versions=versions,
                rounds=options.rounds,
                cases=(),
            )
            settings = Settings(
                peers=tuple(options.peers),
                rounds=options.rounds,
                seconds=options.case_seconds,
                seed=options.seed,
                escort_library=library.result() if library is not None else "",
                progress=str(Path(folder) / "progress"),
                on_gpu=on_gpu,
            )
            for case in run_cases(cases, by_case, settings, options, runner):
                print(line(case), flush=True)
                run = replace(run, cases=(*run.cases, case))
                Document(runs=(run,)).save(options.output)
    print(f"{len(run.cases)} of {len(cases)} cases in {time.monotonic() - started:.0f} s: {options.output}")
    bad = [each for case in run.cases for each in case.contenders if each.status in _BAD]
    return 5 if bad or len(run.cases) < len(cases) else 0


def _escort(folder: Path, arch: str) -> str:
    """Escort's library, or nothing: without it the others are still worth timing."""
    try:
        return str(escort_kernels.build(folder, arch))
    except BuildError as error:
        print(error, file=sys.stderr)
        return ""


def _wants_escort(options: argparse.Namespace) -> bool:
    return any("escort".startswith(prefix) or prefix.startswith("escort") for prefix in options.peers)


def arguments() -> argparse.Namespace:
    """The command line."""

    def names(text: str) -> list[str]:
        return [""] if text == "all" else [name for name in text.split(",") if name != "none"]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON to write, .json or .json.xz")
    parser.add_argument("--log", type=Path, action="append", default=[], help="tuning log; may be repeated")
    parser.add_argument("--operators", type=table2.operators, default="1-10", help="such as 1,2,6-10 (default: all)")
    parser.add_argument("--batch", type=table2.numbers, default="64,1", help="batch sizes (default: %(default)s)")
    parser.add_argument("--density", type=table2.densities, default="0.1", help="of the weights (default: %(default)s)")
    parser.add_argument("--peers", type=names, default="all", help="families or how they begin (default: all; none)")
    parser.add_argument("--schedules", nargs="+", default=[], metavar="NAME", help="kernels of these schedules too")
    parser.add_argument("--rounds", type=int, default=15, help="at most (default: %(default)s)")
    parser.add_argument("--case-seconds", type=float, default=2, help="of all rounds of a case (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no case after this time")
    parser.add_argument("--workers", type=int, default=builders(), help="kernels built at a time (default: cores)")
    parser.add_argument("--timeout", type=float, default=150, help="seconds a kernel may build (default: %(default)s)")
    parser.add_argument("--target", default="cuda", help="cuda, or llvm to try it without a GPU (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, inputs and order (default: %(default)s)")
    parser.add_argument("--smoke", action="store_true", help=f"a short run: {SMOKE}")
    options = parser.parse_args()
    if options.smoke:
        vars(options).update(SMOKE)
    options.density = sorted(set(options.density), reverse=True)
    options.deadline = time.monotonic() + options.seconds
    return options


def main() -> int:
    """Run the benchmark; errors of the user are one sentence."""
    try:
        return bench(arguments())
    except TvmSparseError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
