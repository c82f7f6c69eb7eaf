"""Time whole pruned networks on the GPU, ours beside torch, and write rows as JSON.

python scripts/models/bench_gpu.py --models resnet50,vgg16 --batches 1,64 --densities 0.1 --log tuning.jsonl -o FILE
"""

import argparse
import json
import sys
from pathlib import Path

from benchmarks.models.measure import VARIANTS, Row, measure
from tvm_sparse.errors import TvmSparseError

MODELS = ("resnet50", "vgg16", "googlenet", "alexnet", "mobilenet_v2")


def variants(text: str) -> list[str]:
    """The names in `text`; an error of argparse's where one is unknown."""
    found = text.split(",")
    if unknown := sorted(set(found) - set(VARIANTS)):
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; choose from {', '.join(VARIANTS)}")
    return found


def main() -> int:
    """Measure the rows that the command line asks for; each is written as it ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help="default: %(default)s")
    parser.add_argument("--batches", default="1,64", help="default: %(default)s")
    parser.add_argument("--densities", default="0.1", help="non-zero weights, 0 to 1 (default: %(default)s)")
    parser.add_argument("--log", type=Path, help="tuning log that kernels are taken from")
    parser.add_argument("--pattern", default="unstructured", help="of the zeros (default: %(default)s)")
    parser.add_argument(
        "--variants",
        type=variants,
        default="exact",
        help=f"of ours, a row each, all in turns: {', '.join(VARIANTS)}; tf32 is --allow-tf32 (default: %(default)s)",
    )
    parser.add_argument("--torch-compile", action="store_true", help="time torch.compile too, which takes minutes")
    parser.add_argument("-o", "--output", type=Path, default=Path("models.json"), help="default: %(default)s")
    arguments = parser.parse_args()
    rows: list[Row] = []
    for name in arguments.models.split(","):
        for batch in map(int, arguments.batches.split(",")):
            for density in map(float, arguments.densities.split(",")):
                try:
                    found = measure(
                        name,
                        batch,
                        density,
                        arguments.log,
                        arguments.variants,
                        arguments.torch_compile,
                        arguments.pattern,
                    )
                except TvmSparseError as error:
                    print(f"{name}, batch {batch}, density {density:g}: {error}", file=sys.stderr)
                    return error.exit_code
                rows += found
                text = json.dumps({"rows": [each.to_json() for each in rows]}, indent=1)
                arguments.output.write_text(f"{text}\n")
                print("\n".join(map(_line, found)), flush=True)
    return 0


def _line(row: Row) -> str:
    ratio = row.torch_tf32_us / row.ours_us
    torch = f"fp32 {row.torch_fp32_us:.0f}, TF32 {row.torch_tf32_us:.0f}, fp16 {row.torch_fp16_us:.0f}"
    times = f"ours {row.ours_us:.0f} us, torch {torch}: {ratio:.2f}x its TF32"
    built = f"compiled in {row.compile_s:.1f} s, again {row.cached_compile_s:.1f} s"
    kernels = f"kernels in the model {row.kernels_in_model_us:.0f} us, in the log {row.sum_of_log_us or 0:.0f} us"
    where = f"{row.model}, batch {row.batch}, density {row.density:g}, {row.pattern}, {row.dtype}"
    return f"{where}: {times}; {kernels}; {built}; error {row.max_relative_error:.1e}"


if __name__ == "__main__":
    sys.exit(main())
