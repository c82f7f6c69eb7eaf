"""Check a tuning log's times with cold code against the times of the same kernels in a model; needs a GPU and torch.

    python scripts/models/compare_log_with_model.py resnet50 --batch 1 --log tuning_logs/nvidia-h200/networks.jsonl.xz

Compiles one of the networks of `make_models.py` with the log, runs it under torch's profiler, and prints for each
layer what the log says with cold and with warm code and what its kernel takes in the model. Ends with 1 where the sums
of cold times and of times in the model differ by more than the tolerance, or layers could not be compared.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

from benchmarks.gpu.model_profile import LoggedLayer, compare, profile
from benchmarks.networks import MODELS, Options
from tvm_sparse.compiler.build_model import build
from tvm_sparse.compiler.plan.decision import Decision
from tvm_sparse.compiler.plan.kernel_selection import decide
from tvm_sparse.errors import TvmSparseError, UsageError
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.target.resolve import resolve_target


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--log", type=Path, required=True, action="append", help="tuning log; may be repeated")
    parser.add_argument("--density", type=float, default=0.1, help="of the pruned weights (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=1, help="images a run (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=30, help="that are profiled (default: %(default)s)")
    parser.add_argument("--tolerance", type=float, default=0.1, help="of the ratio of sums (default: %(default)s)")
    parser.add_argument("--no-graph", action="store_true", help="run the model as it is called, not from a CUDA graph")
    parser.add_argument("-o", "--output", type=Path, help="JSON to write")
    return parser.parse_args()


def main() -> int:
    """Compare; errors of the user are one sentence."""
    options = arguments()
    try:
        found = compare(*_profiled(options), options.runs)
    except TvmSparseError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(found.text())
    if options.output:
        words = {name: getattr(options, name) for name in ("model", "batch", "density", "seed", "runs")}
        options.output.write_text(json.dumps(words | found.to_json(), indent=1))
    is_alike = found.ratio is not None and abs(found.ratio - 1) <= options.tolerance
    return 0 if is_alike and len(found.compared) == len(found.layers) else 1


def _profiled(options: argparse.Namespace) -> tuple[list[LoggedLayer], list[Any]]:
    """The layers of the compiled model as the log knows them, and the kernels that the profiler saw."""
    import torch

    if not torch.cuda.is_available():
        raise UsageError("compare_log_with_model.py", "torch finds no GPU", allowed="an NVIDIA GPU and torch for CUDA")
    target = resolve_target("cuda")
    log = TuningLog("/dev/null", *options.log)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        onnx.save(MODELS[options.model](Options(density=options.density, batch=options.batch, seed=options.seed)), path)
        prepared = prepare(path)
    decisions = decide(prepared.layers, target, log)
    compiled = build(prepared, decisions, target)
    inputs = [torch.rand(each.shape, device="cuda") for each in compiled.signature.inputs]
    events = profile(lambda: compiled(*inputs), options.runs, not options.no_graph)
    return [_logged(*each) for each in zip(decisions, compiled.report(), strict=True)], events


def _logged(decision: Decision, row: dict[str, Any]) -> LoggedLayer:
    """A layer with the times of its record, if the model got that record's kernel."""
    record = decision.record if decision.schedule == row["schedule"] else None
    cold_us, warm_us = (_median(record, name) for name in ("cold_times_us", "times_us"))
    return LoggedLayer(decision.layer, row["schedule"], tuple(row.get("kernels", ())), cold_us, warm_us)


def _median(record: TuningRecord | None, name: str) -> float | None:
    times_us: Sequence[float] = getattr(record, name, None) or ()
    return statistics.median(times_us) if times_us else None


if __name__ == "__main__":
    sys.exit(main())
