"""Time whole pruned networks on the GPU, ours beside torch's CUDA graphs and `torch.compile`, and write rows as JSON.

    python scripts/models/bench_gpu.py --models resnet50,vgg16 --batches 1,64 --densities 0.1 --log tuning.jsonl -o FILE

A row and all its rivals are timed in turns in one process. Rows are written as they are measured, into a file that may
have others; those of the same network, batch and way of ours are replaced. A rival that fails leaves its reason.
"""

import argparse
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

from benchmarks.models.row import MODES, PRECISIONS, VARIANTS, Case, Row, ways
from benchmarks.models.row_process import measured
from benchmarks.report.row_file import RowFile
from tvm_sparse.errors import TvmSparseError

MODELS = ("resnet50", "vgg16", "googlenet", "alexnet", "mobilenet_v2")


def some_of(*allowed: str) -> Callable[[str], list[str]]:
    """A reader of names, separated by commas; none of an empty text."""

    def read(text: str) -> list[str]:
        found = text.split(",") if text else []
        if unknown := sorted(set(found) - set(allowed)):
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; choose from {', '.join(allowed)}")
        return found

    return read


def main() -> int:
    """Measure the rows that the command line asks for; 1 where one is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help="of torchvision, timm; unet (default: %(default)s)")
    parser.add_argument("--batches", default="1,64", help="default: %(default)s")
    parser.add_argument("--densities", default="0.1", help="non-zero weights, 0 to 1 (default: %(default)s)")
    parser.add_argument("--image", type=int, help="height and width (default: 224, of films 112)")
    parser.add_argument("--target", default="cuda", help="default: %(default)s; others try it without a GPU")
    parser.add_argument("--log", type=Path, help="tuning log that kernels are taken from (default: known logs)")
    parser.add_argument("--pattern", default="unstructured", help="of the zeros (default: %(default)s)")
    parser.add_argument(
        "--variants",
        type=some_of(*VARIANTS),
        default="exact",
        help=f"of ours, a row each, all in turns: {', '.join(VARIANTS)}; tf32 is --allow-tf32 (default: %(default)s)",
    )
    parser.add_argument(
        "--compile",
        type=some_of(*MODES),
        default=",".join(MODES),
        help="modes of torch.compile; max-autotune takes minutes (default: %(default)s)",
    )
    parser.add_argument(
        "--precisions", type=some_of(*PRECISIONS), default="tf32,fp16,fp32", help="of torch (default: %(default)s)"
    )
    parser.add_argument("--at-once", type=int, default=1, help="cases built side by side (default: %(default)s)")
    parser.add_argument("--once", action="store_true", help="do not compile ours again to see what caches save")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds after which nothing is begun")
    parser.add_argument("-o", "--output", type=Path, default=Path("models.json"), help="default: %(default)s")
    given = parser.parse_args()
    cases = [
        Case(
            model=model,
            batch=batch,
            density=density,
            pattern=given.pattern,
            image=given.image,
            target=given.target,
            log=given.log,
            variants=given.variants,
            ways=ways(given.compile, given.precisions),
            again=not given.once,
        )
        for model, batch, density in product(
            given.models.split(","), map(int, given.batches.split(",")), map(float, given.densities.split(","))
        )
    ]
    try:
        file = RowFile(given.output)

        def keep(rows: list[Row]) -> None:
            file.add(each.to_json() for each in rows)
            print("\n".join(map(_line, rows)), flush=True)

        lost = measured(cases, given.at_once, given.budget, keep)
    except TvmSparseError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    for each in lost:
        print(each, file=sys.stderr)
    return 1 if lost else 0


def _line(row: Row) -> str:
    where = f"{row.model}, batch {row.batch}, density {row.density:g}, {row.pattern}, {row.dtype}"
    torch = ", ".join(f"{name[6:-3]} {us:.0f}" for name, us in row.torch_us.items() if us)
    kernels = f"kernels in the model {row.kernels_in_model_us:.0f} us, in the log {row.sum_of_log_us or 0:.0f} us"
    built = f"compiled in {row.compile_s:.1f} s"
    failures = [f"\n  {each.way.name}: {each.failure}" for each in row.rivals if each.failure]
    line = f"{where}: ours {row.ours_us:.0f} us, torch {torch}; {kernels}; {built}; error {row.max_relative_error:.1e}"
    return line + "".join(failures)


if __name__ == "__main__":
    sys.exit(main())
