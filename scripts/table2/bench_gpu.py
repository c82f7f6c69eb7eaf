"""Time our kernels for Table 2 on an NVIDIA GPU, in turns with all baselines, and write everything measured as JSON.

    python scripts/table2/bench_gpu.py --smoke -o /tmp/smoke.json
    python scripts/table2/bench_gpu.py --log tuning_logs/nvidia-h200/table2.jsonl.xz -o table2.json.xz
    python scripts/table2/bench_gpu.py --log ... --density 0.9,0.7,0.5,0.3,0.2,0.1,0.05 \\
        --baselines cudnn-fp32,cudnn-tf32 -o sweep.json.xz
    python scripts/table2/bench_gpu.py --dtype float16 --baselines cudnn-fp16 --log ... -o half.json.xz
    python scripts/table2/report.py table2.json.xz sweep.json.xz --name table2-h200

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
- ``--cold-code``, the default, adds times of calls as cold replays make them whose code is in no instruction cache, for
  all contenders that take part in all rounds. docs/lab/clock.md says how.
- Each round replays every contender once, in an order shuffled by the seed. A short pilot decides which variants
  (layouts, say) of a method take part. Ratios are taken round by round; faster or slower is said where three quarters
  of the rounds agree.

What a baseline needs its input in (NHWC, float16) is converted beforehand, without charge; what it must do at each call
(unfold, pad) is charged. A contender that fails is reported with its cause, and the others go on; one that kills its
process costs a restart. Results are written after each case. ``--target llvm`` tries everything on a CPU, with
meaningless times.
"""

import argparse
import time
from pathlib import Path

import command_line

from benchmarks.gpu.suite import bench
from tvm_sparse.conv.dtypes import FLOAT16, FLOAT32
from tvm_sparse.target.cpu import available_cores

SMOKE = {"operators": [1, 6], "batch": [1, 64], "density": [0.1], "rounds": 5}


def arguments() -> argparse.Namespace:
    """The command line."""

    def names(text: str) -> list[str]:
        return [""] if text == "all" else [name for name in text.split(",") if name != "none"]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON to write, .json or .json.xz")
    parser.add_argument("--log", type=Path, action="append", default=[], help="tuning log; may be repeated")
    command_line.add_options(parser, batch="64,1")
    parser.add_argument(
        "--baselines", type=names, default="all", help="families or how they begin (default: all; none)"
    )
    parser.add_argument("--schedules", nargs="+", default=[], metavar="NAME", help="kernels of these schedules too")
    parser.add_argument(
        "--dtype", choices=(FLOAT32, FLOAT16), default=FLOAT32, help="of our tensors (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=15, help="at most (default: %(default)s)")
    parser.add_argument(
        "--cold-code",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="times with cold code too (default: yes; takes as long as the other rounds)",
    )
    parser.add_argument(
        "--case-seconds", type=float, default=2, help="of all rounds of a case, of each kind (default: %(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no case after this time")
    parser.add_argument(
        "--workers", type=int, default=available_cores(), help="kernels built at a time (default: cores)"
    )
    parser.add_argument("--timeout", type=float, default=150, help="seconds a kernel may build (default: %(default)s)")
    parser.add_argument("--target", default="cuda", help="cuda, or llvm to try it without a GPU (default: %(default)s)")
    parser.add_argument("--smoke", action="store_true", help=f"a short run: {SMOKE}")
    options = parser.parse_args()
    if options.smoke:
        vars(options).update(SMOKE)
    options.density = sorted(set(options.density), reverse=True)
    options.deadline = time.monotonic() + options.seconds
    return options


def main() -> int:
    """Run the benchmark; 5 where a contender was wrong or a case was not reached."""
    return bench(arguments(), command_line.given())


if __name__ == "__main__":
    command_line.end_as(main)
