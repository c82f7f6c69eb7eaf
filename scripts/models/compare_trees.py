"""Time networks as two checkouts compile them for a CPU, in turns, each call of either in a process of its own.

    python scripts/models/compare_trees.py ../before . --models resnet50,vgg16 --threads 1,8 --zeros 0 --rounds 5

Prints, for each network and number of threads, the least milliseconds of both and the median over rounds of the
second's time as a multiple of the first's. Weights are random, and with ``--zeros`` so large a share of the weights of
each convolution that is not depthwise is zero. No log is read. Each checkout has a cache of its own, which goes with
this script.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODELS = "resnet50,vgg16,mobilenet_v2,efficientnet_b0,densenet121"


def measured_ms(name: str, threads: int, zeros: float, calls: int) -> float:
    """Least milliseconds of a call of a torchvision model, compiled by the package that Python finds."""
    import torch
    import torchvision

    import tvm_sparse as ts

    torch.manual_seed(0)
    model = getattr(torchvision.models, name)(weights=None).eval()
    for layer in model.modules():
        if zeros and isinstance(layer, torch.nn.Conv2d) and layer.weight[0].numel() > layer.kernel_size[0] ** 2:
            layer.weight.data *= torch.rand_like(layer.weight) >= zeros
    x = torch.randn(1, 3, 224, 224)
    fast = ts.compile(model, x, target=f'{{"kind":"llvm","num-cores":{threads}}}', log=None)
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        fast(x)
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def in_tree(tree: Path, home: Path, arguments: list[str]) -> float:
    """The same in a process that finds the package in `tree`, beside what PYTHONPATH has."""
    path = os.pathsep.join(filter(None, [str(tree.resolve()), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "TVM_SPARSE_HOME": str(home)}
    command = [sys.executable, __file__, "--worker", *arguments]
    found = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return float(found.stdout.split()[-1])


def main() -> None:
    """Compare the two checkouts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs=2, type=Path, help="the checkouts, the former first")
    parser.add_argument("--models", default=MODELS, help="of torchvision (default: %(default)s)")
    parser.add_argument("--threads", default="1", help="such as 1,8 (default: %(default)s)")
    parser.add_argument("--zeros", default="0", help="shares, such as 0,0.9 (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each (default: %(default)s)")
    parser.add_argument("--calls", type=int, default=40, help="of a process (default: %(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        homes = [Path(folder, name) for name in ("a", "b")]
        for zeros in arguments.zeros.split(","):
            for threads in arguments.threads.split(","):
                for name in arguments.models.split(","):
                    of = [name, threads, zeros, str(arguments.calls)]
                    sides = list(zip(arguments.trees, homes, strict=True))
                    rounds = [[in_tree(*side, of) for side in sides] for _ in range(arguments.rounds)]
                    a, b = (min(times) for times in zip(*rounds, strict=True))
                    ratio = statistics.median(second / first for first, second in rounds)
                    print(f"{name} {threads} threads {zeros} zeros: {a:.3g} {b:.3g} ms, {ratio:.3f}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        model, count, share, repeats = sys.argv[2:]
        print(measured_ms(model, int(count), float(share), int(repeats)))
    else:
        main()
