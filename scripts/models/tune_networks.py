"""Tune the convolutions of ResNet-50 and VGG16 with random pruned weights into a log; run it again to continue.

    python scripts/models/tune_networks.py --target cuda --network resnet50,vgg16 --trials 16 -o networks.jsonl

The log serves any weights of these shapes: `compile` transfers its kernels and verifies them.
"""

from __future__ import annotations

import argparse
import sys

import tune

from tvm_sparse.autotune import session
from tvm_sparse.benchmarks import networks
from tvm_sparse.conv.sparsity import SparsityPattern


def tasks(arguments: argparse.Namespace) -> list[session.Task]:
    """One task for each distinct convolution, those with few weights first."""
    found = []
    for network in arguments.network:
        for layer, spec in networks.convolutions(network, arguments.batch).items():
            if arguments.layers is None or layer in arguments.layers:
                weight = networks.weight(spec, arguments.density, arguments.seed)
                found.append(session.Task((f"{network} {layer}",), spec, weight, SparsityPattern.of(weight)))
    found = [task for task in found if task.pattern.nnz <= arguments.most]
    return sorted(found, key=lambda task: task.pattern.nnz)


def _networks(text: str) -> list[str]:
    names = text.split(",")
    if not set(names) <= set(networks.NETWORKS):
        raise ValueError(text)
    return names


def main() -> int:
    """Tune what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tune.add_options(parser)
    parser.add_argument("--network", type=_networks, default=list(networks.NETWORKS), help="resnet50, vgg16 or both")
    parser.add_argument("--layers", type=lambda text: text.split(","), help="only these (default: all)")
    parser.add_argument("--batch", type=int, default=1, help="batch size (default: %(default)s)")
    parser.add_argument("--density", type=float, default=0.1, help="of all but the first (default: %(default)s)")
    parser.add_argument("--most", type=int, default=10**9, metavar="N", help="only weights of at most N non-zeros")
    arguments = parser.parse_args()
    return tune.tune(tasks(arguments), arguments)


if __name__ == "__main__":
    sys.exit(main())
