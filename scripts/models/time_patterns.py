"""Add up what a network's layers take with each pattern of zeros, from tuning logs: the times of `study_pruning.py`.

    python scripts/models/tune_networks.py --batches 64 --patterns unstructured,vector16 -o both.jsonl
    python scripts/models/time_patterns.py --patterns unstructured,vector16 --log both.jsonl -o times.json

Run it on the machine that tuned. A layer takes the time of its fastest kernel, or that of the best dense one; a sum is
left out where a layer has no time. TF32 is allowed, as torch allows it. An existing file of times is added to.
"""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path

from tvm_sparse.benchmarks.models import torch_models
from tvm_sparse.compiler.decision import Decision
from tvm_sparse.compiler.kernel_selection import decide
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.target.resolve import resolve_target


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON of times, for study_pruning.py")
    parser.add_argument("--log", type=Path, required=True, help="of tune_networks.py with the same options")
    parser.add_argument("--target", default="cuda", help="default: %(default)s")
    parser.add_argument("--models", default="vgg16,resnet50", help="default: %(default)s")
    parser.add_argument("--batches", default="64", help="default: %(default)s")
    parser.add_argument("--densities", default="0.1", help="non-zero weights, 0 to 1 (default: %(default)s)")
    parser.add_argument("--patterns", default="unstructured", help="default: %(default)s")
    parser.add_argument("--layers", default="", metavar="REGEX", help="only convolutions in whose key this is found")
    return parser.parse_args()


def sums_us(decisions: list[Decision]) -> tuple[float | None, float | None]:
    """Microseconds of all layers as chosen, and of all as dense; None where one has no time."""
    chosen, dense = [each.time_us for each in decisions], [each.dense_time_us for each in decisions]
    return _sum(chosen), _sum(dense)


def _sum(times_us: list[float | None]) -> float | None:
    known = [each for each in times_us if each is not None]
    return sum(known) if len(known) == len(times_us) else None


def rows(given: argparse.Namespace) -> Iterator[tuple[str, str, str, float | None]]:
    """Network, pattern, share of zeros and microseconds; last of each network ``dense``, whose share is empty."""
    target, log = resolve_target(given.target), TuningLog(given.log)
    for name in given.models.split(","):
        for batch in map(int, given.batches.split(",")):
            place, dense_us = f"{name}, batch {batch}", None
            for pattern in given.patterns.split(","):
                for density in map(float, given.densities.split(",")):
                    module = torch_models.network(name, density, pattern=pattern)
                    found = prepare(module, torch_models.images(batch), None, None).layers
                    layers = [each for each in found if re.search(given.layers, each.spec.key)]
                    chosen_us, all_dense_us = sums_us(decide(layers, target, log, allow_tf32=True))
                    dense_us = dense_us or all_dense_us
                    yield place, pattern, f"{1 - density:g}", chosen_us
            yield place, "dense", "", dense_us


def main() -> None:
    """Write the times, and print them."""
    given = arguments()
    times = json.loads(given.output.read_text()) if given.output.exists() else {}
    for place, pattern, zeros, time_us in rows(given):
        print(f"{place}: {pattern} {zeros}: {'a layer has no time' if time_us is None else f'{time_us:.1f} us'}")
        if time_us is not None:
            table = times.setdefault(place, {})
            if pattern == "dense":
                table[pattern] = time_us
            else:
                table.setdefault(pattern, {})[zeros] = time_us
    given.output.write_text(json.dumps(times, indent=1) + "\n")


if __name__ == "__main__":
    main()
