"""Tune the operators of Table 2 into a log; run it again to continue.

    python scripts/table2/tune.py --target '{"kind":"llvm","num-cores":1}' --trials 128 -o table2.jsonl
    python scripts/table2/tune.py --target cuda --batch 1,64 --density 0.05,0.1,0.2 --operators 6-10 -o table2.jsonl

Threads are part of what a record holds for: one thread and all threads are tuned apart.
"""

import argparse
from itertools import product
from pathlib import Path

import command_line

from benchmarks import operators
from tvm_sparse.autotune import session
from tvm_sparse.autotune.options import TuneOptions
from tvm_sparse.autotune.progress.live_progress import LiveProgress
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.display.consoles import progress_console
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.measure.outcome import MeasureOptions
from tvm_sparse.target.resolve import resolve_target


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="LOG", help="log to write or continue")
    command_line.add_options(parser)
    parser.add_argument("--target", help="llvm, cuda or JSON (default: llvm, all cores)")
    parser.add_argument("--trials", type=int, default=64, help="candidates a case (default: %(default)s)")
    parser.add_argument("--schedules", type=lambda text: tuple(text.split(",")), help="search only these")
    parser.add_argument("--timeout", type=float, default=90, help="seconds a build may take (default: %(default)s)")
    parser.add_argument("--seconds", type=float, metavar="S", help="time for a case: no batch is begun after it")
    parser.add_argument("--search-seed", type=int, metavar="SEED", help="of the search alone (default: that of --seed)")
    return parser.parse_args()


def task(operator: int, batch: int, density: float, seed: int) -> session.Task:
    """One operator's convolution and weight."""
    weight, name = operators.weight(operator, density, seed), operators.name(operator, batch, density)
    return session.Task((name,), operators.spec(operator, batch), weight, SparsityPattern.of(weight))


def main() -> None:
    """Tune what the command line asks for."""
    options = arguments()
    how = TuneOptions(
        patience=None,
        trials=options.trials,
        seed=options.seed if options.search_seed is None else options.search_seed,
        seconds=options.seconds,
        schedules=options.schedules,
        measure=MeasureOptions(build_timeout_s=options.timeout),
    )
    tasks = [task(*case, options.seed) for case in product(options.operators, options.batch, options.density)]
    progress = LiveProgress(progress_console(), limit_s=options.seconds)
    session.tune_tasks(tasks, resolve_target(options.target), TuningLog(options.output), how, progress)


if __name__ == "__main__":
    command_line.end_as(main)
