"""What the scripts of this folder share: their options, and how they end."""

import argparse
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from benchmarks.operators import OPERATORS
from tvm_sparse.errors import TvmSparseError

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


def end_as(main: Callable[[], int | None]) -> NoReturn:
    """End the process as `main` says; a mistake of the user is one sentence and its exit code."""
    try:
        sys.exit(main())
    except TvmSparseError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


def given() -> str:
    """The command line of this process, to be kept with its results."""
    return shlex.join(["python", f"scripts/table2/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def numbers(text: str) -> list[int]:
    """``1,2,6-10`` as a list, for command lines."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def operators(text: str) -> list[int]:
    """`numbers` that are operators; ValueError where one is not."""
    found = numbers(text)
    if not set(found) <= set(OPERATORS):
        raise ValueError(f"{text}: operators are 1 to {len(OPERATORS)}")
    return found


def densities(text: str) -> list[float]:
    """``0.05,0.1`` as a list, for command lines; ValueError where a density is not from 0 to 1."""
    found = [float(part) for part in text.split(",")]
    if not all(0 <= density <= 1 for density in found):
        raise ValueError(f"{text}: densities are 0 to 1")
    return found


def add_options(parser: argparse.ArgumentParser, batch: str = "1") -> None:
    """Which cases: ``--operators``, ``--batch``, ``--density``, and the ``--seed`` of their weights."""
    parser.add_argument("--operators", type=operators, default="1-10", help="such as 1,2,6-10 (default: all)")
    parser.add_argument("--batch", type=numbers, default=batch, help="batch sizes (default: %(default)s)")
    parser.add_argument("--density", type=densities, default="0.1", help="of the weights (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random (default: %(default)s)")
