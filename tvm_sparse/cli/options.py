"""Options of the command line: those that several commands take, and the kinds of values that options have."""

import argparse
from pathlib import Path
from typing import Any

from tvm_sparse.conv.dtypes import DTYPES, INT8
from tvm_sparse.logs.fetching import is_url
from tvm_sparse.untrusted.whole_number import whole_number

# MetaSchedule's seeds are positive 32-bit integers, and a search uses a few that follow the one given.
MAX_SEED = 10**9


# What else some options are called: one has a short form, and one had another name.
_ALSO = {"--output": ("-o",), "--log": ("--tuning-records",)}
# The arguments of `argparse.ArgumentParser.add_argument`.
Option = tuple[tuple[str, ...], dict[str, Any]]


def option(flag: str, help_text: str | None, **settings: Any) -> Option:
    """An option, or an argument where `flag` has no dashes."""
    return (tuple(sorted((flag, *_ALSO.get(flag, ())), key=len)), {"help": help_text, **settings})


def path(flag: str, metavar: str, help_text: str, **settings: Any) -> Option:
    """An option that names a file or folder."""
    return option(flag, help_text, type=Path, metavar=metavar, **settings)


def switch(flag: str, help_text: str) -> Option:
    """An option without a value."""
    return option(flag, help_text, action="store_true")


def log_name(text: str) -> str | Path:
    return text if is_url(text) else Path(text)


def count(text: str) -> int:
    """A whole number of 1 or more."""
    value = whole_number(text)
    if not value:
        raise argparse.ArgumentTypeError(f"found {text[:40]}; allowed: a whole number of 1 or more")
    return value


def above_0(text: str) -> float:
    """A finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"found {text[:40]}; allowed: a number above 0")
    return value


def share(text: str) -> float:
    """A number above 0 and below 1."""
    value = above_0(text)
    if value >= 1:
        raise argparse.ArgumentTypeError(f"found {text[:40]}; allowed: a number above 0 and below 1")
    return value


def minutes(text: str) -> float:
    """A finite number of 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"found {text[:40]}; allowed: a number of minutes, 0 or more")
    return value


def names(text: str) -> list[str]:
    """Names with commas between them."""
    return [name for name in text.split(",") if name]


def _batches(text: str) -> list[int]:
    return [count(size) for size in text.split(",")]


def _seed(text: str) -> int:
    value = whole_number(text)
    if value is None or value > MAX_SEED:
        raise argparse.ArgumentTypeError(f"found {text[:40]}; allowed: a whole number from 0 to {MAX_SEED}")
    return value


def _input_shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, sizes = text.rpartition(":")
    found = tuple(size for each in sizes.split(",") if (size := whole_number(each)))
    if not name or len(found) != sizes.count(",") + 1:
        raise argparse.ArgumentTypeError(f"found {text[:80]}; allowed: NAME:1,3,224,224")
    return name, found


TARGET = option(
    "--target",
    """cpu, cuda, cuda:1, or a TVM target as JSON, '{"kind":"llvm","mcpu":"znver4"}' (default: cpu)""",
)
# Of every command that compiles a model.
OF_MODEL = (
    path("model", "MODEL", "an .onnx or .pt2 (torch.export) file; bench and report take an artifact too"),
    TARGET,
    option("--threads", "how many threads a call uses on a CPU (default: all cores)", type=count, metavar="N"),
    option(
        "--input-shape",
        "shape of an ONNX input whose file leaves it open; if an input has several, the model is compiled for each",
        type=_input_shape,
        action="append",
        default=[],
        metavar="NAME:1,3,224,224",
    ),
    option(
        "--log",
        "tuning log to read, or path or URL of a folder of published ones; may be repeated (default: tuning.jsonl, "
        "your own, the shipped ones and those of TVM_SPARSE_LOGS)",
        type=log_name,
        metavar="LOG",
        action="append",
        default=[],
    ),
    option(
        "--dtype",
        "cast the model, with its inputs and outputs, to this type, while sums stay float32; int8 quantises it from "
        "--samples (default: the file's)",
        choices=(*DTYPES, INT8),
    ),
    path(
        "--samples",
        "FILE",
        "for int8: a .npz file of inputs by name, a hundred or so, on which the range of each tensor is found",
    ),
    switch("--allow-tf32", "on a GPU, choose also kernels that round to TF32, as torch does by default"),
)
NONFINITE = switch("--strict-nonfinite", "let NaN and infinity spread through zero weights: all layers dense")
BATCH = option(
    "--batch",
    "one or several batch sizes: the first dimension of every input, whatever the file says (default: the file's)",
    type=_batches,
    metavar="N,N",
)
COMPARE = option(
    "--no-compare",
    "do not compare model and result on a random input, which takes about 1 s",
    dest="compare",
    action="store_const",
    const=False,
)
SEED = option("--seed", "seed of all random numbers (default: %(default)s)", type=_seed, default=0)
TRUST = switch("--trust", "load an artifact that others could change, although it is code")
REPEAT = option("--repeat", "rounds of timing (default: %(default)s)", type=count, default=20)


def trials(default: int) -> Option:
    """``--trials``."""
    return option(
        "--trials", "candidates a layer, known ones included (default: %(default)s)", type=count, default=default
    )
