"""What the command line accepts: its commands and their options. `help_texts` explains them."""

import argparse
from pathlib import Path

from tvm_sparse.cli import help_texts
from tvm_sparse.cli.options import (
    BATCH,
    COMPARE,
    NONFINITE,
    OF_MODEL,
    REPEAT,
    SEED,
    TARGET,
    TRUST,
    Option,
    above_0,
    count,
    log_name,
    minutes,
    names,
    option,
    path,
    share,
    switch,
    trials,
)
from tvm_sparse.version import __version__

DEMO_LOG = Path("tvm-sparse-demo.jsonl")
# Name -> what it is in a few words, and its options.
COMMANDS: dict[str, tuple[str, tuple[Option, ...]]] = {
    "optimize": (
        "make a model as fast as a few minutes allow",
        (
            *OF_MODEL,
            BATCH,
            NONFINITE,
            COMPARE,
            path("--output", "DIR", "artifact to write", required=True),
            option(
                "--minutes",
                "minutes in all; 0 measures nothing (default: %(default)s)",
                type=minutes,
                metavar="M",
                default=5.0,
            ),
        ),
    ),
    "inspect": (
        "show what is sparse in a model",
        (
            *OF_MODEL,
            BATCH,
            NONFINITE,
            option(
                "--patterns",
                "also what each pattern of pruning would keep and weigh with this share of zeros, such as 0.9",
                type=share,
                metavar="SHARE",
            ),
        ),
    ),
    "report": (
        "write a page about a model: its layers and their times, reasons, and what would help",
        (
            *OF_MODEL,
            BATCH,
            NONFINITE,
            path("--output", "FILE.html", "page to write (default: %(default)s)", default=Path("report.html")),
            TRUST,
        ),
    ),
    "tune": (
        "search the fastest kernels of a model's convolutions",
        (
            *OF_MODEL,
            BATCH,
            trials(64),
            option(
                "--timeout",
                "seconds to build, and to run, a candidate (default: 90, 60)",
                type=above_0,
                metavar="S",
            ),
            SEED,
            path("--output", "LOG", "log to write (default: the first of --log, or your own)"),
            option(
                "--seconds",
                "seconds for a layer; then no batch of candidates begins; run again for the rest (default: no limit)",
                type=above_0,
                metavar="S",
            ),
            option(
                "--devices",
                "devices of this machine, each with a layer of its own at a time (default: the target's first)",
                type=names,
                metavar="cuda:0,cuda:1",
            ),
            option(
                "--ray",
                "use all devices of a Ray cluster: auto, host:port, ray://host:port, or local",
                metavar="ADDRESS",
            ),
            option("--layers", "tune only these (names as inspect shows)", type=names, metavar="NAME,NAME"),
            option("--schedules", "search only these; dense is always timed", type=names, metavar="NAME,NAME"),
            switch("--full", "make all trials, even if the last 24 of a layer gained less than 2%%"),
            option(
                "--worker-memory",
                "memory of a candidate; one that takes more is killed (default: the workers share the machine's)",
                type=above_0,
                metavar="GIB",
            ),
            switch("--dry-run", "show layers, candidates and about how long it takes"),
        ),
    ),
    "compile": (
        "compile a model with the kernels that a tuning log knows",
        (
            *OF_MODEL,
            BATCH,
            NONFINITE,
            COMPARE,
            path("--output", "DIR", "artifact to write", required=True),
        ),
    ),
    "check": (
        "compare results layer by layer",
        (*OF_MODEL, BATCH, NONFINITE, SEED, path("--input", "FILE", "also check on this input, as for run")),
    ),
    "run": (
        "run a compiled model on given inputs",
        (
            SEED,
            path("artifact", "ARTIFACT", "a folder that compile wrote"),
            path(
                "--input",
                "FILE",
                ".npy for one input, or .npz with an array for each input name (default: random numbers)",
            ),
            path("--output", "FILE.npz", "write the outputs, by name"),
            TRUST,
        ),
    ),
    "verify": (
        "show whether an artifact is whole, and what it calls, without running it",
        (
            path("artifact", "ARTIFACT", "a folder that compile wrote"),
            option("--sha256", "the SHA-256 that it must have, as compile printed it", metavar="DIGEST"),
        ),
    ),
    "export": (
        "write a compiled model as files for C and C++ programs, or for ONNX Runtime",
        (
            path("artifact", "ARTIFACT", "a folder that compile wrote"),
            path("--output", "DIR|FILE.onnx", "folder to write, or a model for ONNX Runtime", required=True),
            switch(
                "--without-cudnn", "compile a model that calls cuDNN again without, from its file, and say the cost"
            ),
        ),
    ),
    "bench": ("time a compiled model against dense ones", (*OF_MODEL, BATCH, NONFINITE, REPEAT, SEED, TRUST)),
    "show": (
        "show the kernel of a layer, from compute to source",
        (
            *OF_MODEL,
            option("--layer", "a name that inspect shows (default: the one with most left to compute)", metavar="NAME"),
            option(
                "--stage", "what to print (default: the source)", choices=("te", "scheduled", "folded", "cuda", "llvm")
            ),
            option("--schedule", "show this one, with its default decisions, whatever the log says", metavar="NAME"),
        ),
    ),
    "demo": (
        "the whole way on a small real network",
        (
            TARGET,
            REPEAT,
            SEED,
            trials(12),
            path("--output", "LOG", "tuning log to write (default: %(default)s)", default=DEMO_LOG),
        ),
    ),
    "doctor": ("show what this machine and installation offer", (TARGET,)),
    "logs": (
        "look into tuning logs, join and verify them",
        (
            option("action", None, choices=("stats", "best", "page", "merge", "distill", "validate", "publish")),
            option(
                "logs",
                "a tuning log (publish: first the folder to write to)",
                type=log_name,
                metavar="LOG",
                nargs="+",
            ),
            path("--output", "FILE", "new file (merge, distill)"),
            option("--keep", "records of each (distill, publish; default: %(default)s)", type=count, default=1),
            switch("--all", "all records, not only the best (validate)"),
            path("--model", "MODEL", "whose weights to build with (validate)"),
        ),
    ),
}


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands. Parsed arguments hold `command` beside what each option says."""
    parser = argparse.ArgumentParser(
        prog="tvm-sparse",
        description=help_texts.DESCRIPTION,
        epilog=help_texts.EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (summary, options) in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.\n\n{help_texts.COMMANDS[name]}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        for flags, settings in options:
            command.add_argument(*flags, **settings)
        command.add_argument("--json", action="store_true", help="print one JSON document instead of text")
        command.add_argument("-v", "--verbose", action="store_true", help="more messages, and tracebacks of errors")
    return parser
