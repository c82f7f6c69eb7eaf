"""Time the best kernels of a log for Table 2 on the CPU, in turns with PyTorch (oneDNN) and ONNX Runtime.

    python scripts/table2/bench_cpu.py --log tuning_logs/znver5/table2.jsonl.xz

For each number of threads a process of its own runs all contenders: our kernel from the log, our dense kernel,
PyTorch's convolution in NCHW and in channels-last (NHWC), and ONNX Runtime. Everything is called through Python on
tensors that exist already; what such a call costs each library for a convolution of one weight is measured too. Each
result is compared with a float64 reference first, ours under its element-wise error bound. Prints the page, and writes
it as ``docs/results/<name>.md``, with all times in ``<name>.json.xz``. Records hold for one number of threads: tune for
each.
"""

import argparse
import json
import lzma
from pathlib import Path

import command_line

from benchmarks import cpu_suite
from tvm_sparse.target.cpu import available_cores


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path, action="append", required=True, help="tuning log; may be repeated")
    threads = ",".join(map(str, sorted({1, available_cores()})))
    parser.add_argument(
        "--threads", type=command_line.numbers, default=threads, help="such as 1,8 (default: %(default)s)"
    )
    command_line.add_options(parser)
    parser.add_argument("--repeat", type=int, default=25, help="rounds (default: %(default)s)")
    parser.add_argument("--min-round-ms", type=float, default=20, help="of a contender (default: %(default)s)")
    parser.add_argument("--name", help="of the files to write (default: table2-ARCHITECTURE)")
    parser.add_argument(
        "--results", type=Path, default=command_line.RESULTS, help="folder to write to (default: docs/results)"
    )
    return parser.parse_args()


def main() -> None:
    """Measure, print and write."""
    options = arguments()
    document = cpu_suite.bench(options, command_line.given())
    page = cpu_suite.page(document)
    print(page)
    options.results.mkdir(parents=True, exist_ok=True)
    path = options.results / (options.name or f"table2-{document['fingerprint']['arch']}")
    Path(f"{path}.json.xz").write_bytes(lzma.compress(json.dumps(document, allow_nan=False).encode()))
    Path(f"{path}.md").write_text(page)
    print(f"written: {path}.md, {path}.json.xz")


if __name__ == "__main__":
    command_line.end_as(main)
