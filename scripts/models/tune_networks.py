"""Tune the networks of bench_gpu.py, with their own weights, into a log; run it again to continue.

python scripts/models/tune_networks.py --models resnet50,vgg16 --batches 1,64 --densities 0.1,0.2 -o tuning.jsonl
python scripts/models/tune_networks.py --models resnet50 --batches 64 --layers h7w7 --trials 4 -o deep.jsonl
"""

import argparse
import re
from itertools import product
from pathlib import Path

from benchmarks.models import torch_models
from tvm_sparse.autotune import session
from tvm_sparse.autotune.fleet.open_fleet import open_fleet
from tvm_sparse.autotune.options import TuneOptions
from tvm_sparse.autotune.progress.live_progress import LiveProgress
from tvm_sparse.conv.dtypes import DTYPES
from tvm_sparse.display.consoles import progress_console
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.measure.outcome import MeasureOptions
from tvm_sparse.target.resolve import resolve_target

MODELS = ("resnet50", "vgg16", "googlenet", "alexnet", "mobilenet_v2")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="LOG", help="log to write or continue")
    parser.add_argument(
        "--models", default="resnet50,vgg16,googlenet,alexnet,mobilenet_v2", help="default: %(default)s"
    )
    parser.add_argument("--batches", default="1", help="default: %(default)s")
    parser.add_argument("--densities", default="0.1", help="non-zero weights, 0 to 1 (default: %(default)s)")
    parser.add_argument("--patterns", default="unstructured", help="of the zeros (default: %(default)s)")
    parser.add_argument("--dtype", choices=DTYPES, help="of all tensors (default: float32)")
    parser.add_argument("--layers", default="", metavar="REGEX", help="only convolutions in whose key this is found")
    parser.add_argument("--schedules", type=lambda text: tuple(text.split(",")), help="search only these")
    parser.add_argument("--starts", type=Path, nargs="*", default=[], metavar="LOG", help="logs whose decisions to try")
    parser.add_argument("--trials", type=int, default=16, help="candidates a layer (default: %(default)s)")
    parser.add_argument("--dense-trials", type=int, help="of them of compiled dense kernels")
    parser.add_argument("--seconds", type=float, metavar="S", help="time for a layer: no batch is begun after it")
    parser.add_argument("--timeout", type=float, default=90, help="seconds a build may take (default: %(default)s)")
    parser.add_argument("--target", default="cuda", help="default: %(default)s")
    parser.add_argument("--devices", type=lambda text: text.split(","), help="cuda:0,cuda:1 (default: the first)")
    return parser.parse_args()


def main() -> None:
    """Tune what the command line asks for: each convolution once, those of small batches first."""
    given = arguments()
    options = TuneOptions(
        patience=None,
        trials=given.trials,
        dense_trials=given.dense_trials,
        seconds=given.seconds,
        batch=given.trials,
        schedules=given.schedules,
        measure=MeasureOptions(build_timeout_s=given.timeout),
    )
    tasks: list[session.Task] = []
    for batch in map(int, given.batches.split(",")):
        for density in map(float, given.densities.split(",")):
            for name, pattern in product(given.models.split(","), given.patterns.split(",")):
                module = torch_models.network(name, density, pattern=pattern)
                prepared = prepare(module, torch_models.images(name, batch), None, None, given.dtype)
                layers = session.tuned_layers(prepared.layers, options.schedules)
                tasks += [each for each in session.tasks_of(layers) if re.search(given.layers, each.spec.key)]
    target = resolve_target(given.target)
    log, progress = TuningLog(given.output, *given.starts), LiveProgress(progress_console(), limit_s=given.seconds)
    if given.devices:
        with open_fleet(given.devices, None, given.target, options) as fleet:
            session.tune_tasks(tasks, fleet.target, log, options, progress, fleet)
    else:
        session.tune_tasks(tasks, target, log, options, progress)


if __name__ == "__main__":
    main()
