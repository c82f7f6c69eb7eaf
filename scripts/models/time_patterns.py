"""Add up what a network's layers take with each pattern of zeros, from tuning logs: the times of `study_pruning.py`.

    python scripts/models/tune_networks.py --batches 64 --patterns unstructured,vector16 -o both.jsonl
    python scripts/models/time_patterns.py --patterns unstructured,vector16 --log both.jsonl -o times.json

Run it on the machine that tuned. Layers are decided together, as a model is compiled, the dense network too: on a GPU
neighbours may stay in NHWC, whose conversions at both ends are not counted, and pools are left out. A sum is left out
where a layer has no time, or the time of a weight with other zeros; one without any takes no less. TF32 is allowed, as
torch allows it. An existing file of times is added to.
"""

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tvm.target import Target

from benchmarks.models import torch_models
from tvm_sparse.autotune.session import are_alike
from tvm_sparse.compiler.pipeline import decide_together
from tvm_sparse.compiler.plan.decision import Decision
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer
from tvm_sparse.frontend.prepare import PreparedModel, prepare
from tvm_sparse.logs.best_match import DENSE
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


def sum_us(prepared: PreparedModel, target: Target, log: TuningLog, layers: str) -> float | None:
    """Microseconds of all layers as they are decided together; None where one has no time."""
    alone = replace(
        prepared, groups=[replace(each, layer=replace(each.layer, has_pool=False)) for each in prepared.groups]
    )
    pairs = zip(alone.layers, decide_together(alone, target, log, allow_tf32=True), strict=True)
    known = [_own_time_us(*pair) for pair in pairs if re.search(layers, pair[0].spec.key)]
    return None if None in known else sum(each for each in known if each is not None)


def _own_time_us(layer: ConvLayer, decision: Decision) -> float | None:
    record = decision.record
    is_any = record is None or record.is_dense or record.pattern.structure == DENSE
    is_own = is_any or are_alike(record.pattern, layer.pattern)
    return decision.time_us if is_own else None


def rows(given: argparse.Namespace) -> Iterator[tuple[str, str, str, float | None]]:
    """Network, pattern, share of zeros and microseconds; last of each network ``dense``, whose share is empty."""
    target, log = resolve_target(given.target), TuningLog(given.log)
    zeros = [(pattern, density) for pattern in given.patterns.split(",") for density in given.densities.split(",")]
    for name in given.models.split(","):
        for batch in map(int, given.batches.split(",")):
            for pattern, density in (*zeros, ("dense", "1")):
                kind = "unstructured" if pattern == "dense" else pattern
                module = torch_models.network(name, float(density), pattern=kind)
                prepared = prepare(module, torch_models.images(name, batch), None, None)
                share = "" if pattern == "dense" else f"{1 - float(density):g}"
                yield f"{name}, batch {batch}", pattern, share, sum_us(prepared, target, log, given.layers)


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
