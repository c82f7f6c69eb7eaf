"""Tune the operators of Table 2 into a log; run it again to continue.

    python scripts/table2/tune.py --target '{"kind":"llvm","num-cores":1}' --trials 128 -o table2.jsonl
    python scripts/table2/tune.py --target cuda --batch 1,64 --density 0.05,0.1,0.2 --operators 6-10 -o table2.jsonl
    python scripts/table2/tune.py --target cuda --schedules folded_cuda --search random --search-seed 1 -o random1.jsonl

Threads are part of what a record holds for: one thread and all threads are tuned apart.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tvm_sparse.autotune import session
from tvm_sparse.autotune.options import TuneOptions
from tvm_sparse.benchmarks import operators
from tvm_sparse.cli.tables import progress_console
from tvm_sparse.cli.tuning_progress import Progress
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.errors import TvmSparseError
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.measure.outcome import MeasureOptions
from tvm_sparse.target.resolve import resolve_target


def tasks(arguments: argparse.Namespace) -> list[session.Task]:
    """One task for each operator, batch and density."""
    found = []
    for operator in arguments.operators:
        for batch in arguments.batch:
            for density in arguments.density:
                weight = operators.weight(operator, density, arguments.seed)
                name = operators.name(operator, batch, density)
                pattern = SparsityPattern.of(weight)
                found.append(session.Task((name,), operators.spec(operator, batch), weight, pattern))
    return found


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command line says of any search."""
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="LOG", help="log to write or continue")
    parser.add_argument("--target", help="llvm, cuda or JSON (default: llvm, all cores)")
    parser.add_argument("--trials", type=int, default=64, help="candidates a case (default: %(default)s)")
    parser.add_argument("--schedules", type=lambda text: tuple(text.split(",")), help="search only these")
    parser.add_argument(
        "--timeout", type=float, default=90, help="seconds a candidate may build (default: %(default)s)"
    )
    parser.add_argument("--seconds", type=float, metavar="S", help="time for a case: no batch is begun after it")
    parser.add_argument(
        "--search",
        choices=("guided", "random"),
        default="guided",
        help="random: a baseline to compare with, in a log of its own (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of weights and search (default: %(default)s)")
    parser.add_argument("--search-seed", type=int, metavar="SEED", help="of the search alone (default: that of --seed)")


def tune(todo: list[session.Task], arguments: argparse.Namespace) -> int:
    """Tune tasks as the command line says; its exit code."""
    progress = Progress(progress_console(), limit_s=arguments.seconds)
    try:
        options = TuneOptions(
            trials=arguments.trials,
            seed=arguments.seed if arguments.search_seed is None else arguments.search_seed,
            seconds=arguments.seconds,
            schedules=arguments.schedules,
            search=arguments.search,
            measure=MeasureOptions(build_timeout_s=arguments.timeout),
        )
        target, log = resolve_target(arguments.target), TuningLog(arguments.output)
        progress.start(todo, arguments.trials)
        try:
            for task in todo:
                session.tune_task(task, target, log, options, progress)
        finally:
            progress.end()
    except TvmSparseError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def main() -> int:
    """Tune what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--operators", type=operators.operators, default="1-10", help="such as 1,2,6-10 (default: all)")
    parser.add_argument("--batch", type=operators.numbers, default="1", help="batch sizes (default: %(default)s)")
    parser.add_argument(
        "--density", type=operators.densities, default="0.1", help="of the weights (default: %(default)s)"
    )
    arguments = parser.parse_args()
    return tune(tasks(arguments), arguments)


if __name__ == "__main__":
    sys.exit(main())
