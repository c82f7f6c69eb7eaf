"""Compare two searches of the operators of Table 2, such as hand-made spaces and generated ones, from their logs.

    python scripts/table2/tune.py --schedules dense_cpu --trials 64 -o hand_made.jsonl
    cp hand_made.jsonl generated.jsonl
    python scripts/table2/tune.py --schedules folded_cpu --trials 64 -o hand_made.jsonl
    python scripts/table2/tune.py --schedules generated_cpu --trials 64 -o generated.jsonl
    python scripts/table2/compare_spaces.py hand_made.jsonl generated.jsonl --again -o docs/results/spaces-znver4.md

Give ``tune.py`` the same ``--target``, ``--trials`` and ``--seed``, and copy the log of the dense kernels, so that both
searches time their candidates in turns with the same one. The best of each log is the best ratio to it, as machines are
not equally fast at all times; reading logs needs neither the machine nor a GPU. With ``--again``, on that machine, both
winners are built once more and timed in turns with each other, which no slow moment of either search disturbs.
"""

import argparse
import math
import shlex
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import command_line
import numpy as np

from benchmarks import operators
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.errors import BuildError, UsageError
from tvm_sparse.logs.ranking import fastest
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.measure.measurer import Measurer
from tvm_sparse.measure.outcome import Candidate
from tvm_sparse.target.resolve import resolve_target


@dataclass(frozen=True)
class Row:
    """The best records of both logs for one case, and how many of their sparse trials succeeded and failed.

    `again` are both times in us, taken in turns; None where they were not.
    """

    case: tuple[int, int, float]
    best: tuple[TuningRecord, TuningRecord]
    trials: tuple[str, str]
    again: tuple[float, float] | None = None

    @property
    def ratio(self) -> float:
        """Time of the second over that of the first: in turns, else each as a multiple of the dense kernel's."""
        multiples = (record.time_us / (record.dense_time_us or math.nan) for record in self.best)
        first, second = self.again or multiples
        return second / first

    def __str__(self) -> str:
        cells = [f"{each}" for each in self.case]
        for record, trials in zip(self.best, self.trials, strict=True):
            cells += [f"{record.time_us:.4g}", f"{record.dense_time_us:.4g}", trials]
        cells += [f"{time_us:.4g}" for time_us in self.again or ()]
        return f"| {' | '.join(cells)} | {self.ratio:.2f} |"


def timed_again(row: Row, weight: np.ndarray) -> Row:
    """`row` with both kernels timed in turns; BuildError where one fails now."""
    first, second = row.best
    with Measurer(first.spec, weight, resolve_target(first.target)) as measurer:
        measurer.set_baseline(Candidate(first.schedule, first.chosen))
        (outcome,) = measurer.measure([Candidate(second.schedule, second.chosen)])
    if outcome.status != "ok":
        raise BuildError(f"convolution {first.spec.key}", f"{second.schedule} fails: {outcome.cause}")
    # With cold code where both were timed so, as records are ranked.
    cold = outcome.dense_cold_times_us, outcome.cold_times_us
    times = cold if all(cold) else (outcome.dense_times_us, outcome.times_us)
    own, other = (statistics.median(each or ()) for each in times)
    return replace(row, again=(own, other))


def rows(logs: list[TuningLog], cases: list[tuple[int, int, float]], seed: int) -> Iterator[Row]:
    """Those of `cases` that both logs have a sparse kernel of; UsageError where dense kernels differ."""
    for case in cases:
        operator, batch, density = case
        spec, pattern = operators.spec(operator, batch), SparsityPattern.of(operators.weight(operator, density, seed))
        found = [
            [each for each in log.records if each.spec == spec and each.pattern == pattern and not each.is_dense]
            for log in logs
        ]
        right = [[each for each in records if each.status == "ok"] for records in found]
        if all(right):
            first, second = map(fastest, right)
            if first.baseline != second.baseline:
                hint = "copy the log of the dense kernels before either search"
                raise UsageError(f"operator {operator}", "two dense kernels", second.baseline, first.baseline, hint)
            counts = [Counter(each.status == "ok" for each in records) for records in found]
            one, other = (f"{count[True]}+{count[False]}" for count in counts)
            yield Row(case, (first, second), (one, other))


def page(found: list[Row], names: list[str]) -> str:
    """A Markdown page with a row a case and the geometric mean of the ratios."""
    first, second = names
    facts = ", ".join(f"{key} {value}" for key, value in found[0].best[0].fingerprint.items())
    mean = math.exp(math.fsum(math.log(row.ratio) for row in found) / len(found))
    in_turns = found[0].again is not None
    how = "of the times in turns" if in_turns else "both as multiples of the dense kernel"
    again = f" {first}, again | {second}, again |" if in_turns else ""
    lines = [
        f"# {first} against {second}, equal trials",
        "",
        f"Machine: {facts}.",
        "",
        "Times of the best kernels in us, each beside that of the dense kernel that was timed in turns with it; trials "
        "of sparse kernels that succeeded + failed; *again*: both best kernels, built once more and timed in turns "
        f"with each other. The ratio is {second} over {first}, {how}: above 1, {first} is faster.",
        "",
        f"| operator | batch | density | {first} | dense | trials | {second} | dense | trials |{again} ratio |",
        "|---|---|---|---|---|---|---|---|---|---|" + "---|" * again.count("|"),
        *map(str, found),
        "",
        f"Geometric mean of the ratios: **{mean:.2f}**.",
        "",
        "```sh",
        shlex.join(["python", "scripts/table2/compare_spaces.py", *sys.argv[1:]]),
        "```",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", type=Path, nargs=2, metavar="LOG", help="logs of tune.py")
    parser.add_argument("--names", type=lambda text: text.split(","), default="hand-made,generated", help="of the two")
    parser.add_argument("-o", "--output", type=Path, help="page to write (default: to standard output)")
    parser.add_argument("--again", action="store_true", help="time both winners in turns, on this machine")
    command_line.add_options(parser)
    options = parser.parse_args()
    cases = [(o, b, d) for b in options.batch for d in options.density for o in options.operators]
    found = list(rows([TuningLog(path) for path in options.logs], cases, options.seed))
    if not found:
        raise UsageError("logs", "have no case that both tuned", hint="see --operators, --batch and --density")
    if options.again:
        found = [timed_again(row, operators.weight(row.case[0], row.case[2], options.seed)) for row in found]
    text = page(found, options.names)
    if options.output is None:
        print(text, end="")
    else:
        options.output.write_text(text)


if __name__ == "__main__":
    command_line.end_as(main)
