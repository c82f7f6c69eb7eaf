"""What the command line accepts: its commands, their options, and the help that teaches them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tvm_sparse.version import __version__

DESCRIPTION = """\
Compiles pruned convolutional networks into code that runs as fast as their zeros promise.

first steps:
  tvm-sparse demo                               see it work on a small real network
  tvm-sparse inspect model.onnx                 what is sparse, and what could serve it
  tvm-sparse tune model.onnx --trials 64        search kernels; results go to tuning.jsonl
  tvm-sparse compile model.onnx -o model.ts     use the fastest verified kernels, else dense
  tvm-sparse run model.ts --input x.npy         run it
"""
# MetaSchedule's seeds are positive 32-bit integers, and a search uses a few that follow the one given.
MAX_SEED = 10**9
EXIT_CODES = """\
exit codes: 0 done, 2 wrong usage, 3 bad input (model, log, weights), 4 build or run failed,
5 verification failed, 130 interrupted (finished work is saved, the command to continue is printed)
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands. Parsed arguments hold `command` and `resumes` beside what each option says."""
    parser = argparse.ArgumentParser(
        prog="tvm-sparse",
        description=DESCRIPTION,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for add in (_inspect, _tune, _compile, _check, _command_run, _bench, _show, _demo, _doctor, _logs):
        add(commands)
    return parser


def _add(commands: Any, name: str, summary: str, text: str, *parents: argparse.ArgumentParser) -> Any:
    """Add one command with the options that all have; `text` explains it and ends with examples."""
    parser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.\n\n{text}",
        parents=parents,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of text")
    parser.add_argument("-v", "--verbose", action="store_true", help="more messages, and tracebacks of errors")
    parser.set_defaults(resumes=False)
    return parser


def _options(*names: str) -> argparse.ArgumentParser:
    """A parent parser with the shared options called `names`."""
    parser = argparse.ArgumentParser(add_help=False)
    for name in names:
        flags, keywords = _SHARED[name]
        parser.add_argument(*flags, **keywords)
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text}; allowed: a whole number of 1 or more")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) > MAX_SEED:
        raise argparse.ArgumentTypeError(f"found {text}; allowed: a whole number from 0 to {MAX_SEED}")
    return int(text)


def _above_0(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"found {text}; allowed: a number above 0")
    return value


def _input_shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, sizes = text.rpartition(":")
    if not name or not all(size.isdecimal() and int(size) for size in sizes.split(",")):
        raise argparse.ArgumentTypeError(f"found {text}; allowed: NAME:1,3,224,224")
    return name, tuple(map(int, sizes.split(",")))


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


_SHARED: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "model": (("model",), {"type": Path, "metavar": "MODEL", "help": "an .onnx or .pt2 (torch.export) file"}),
    "target": (
        ("--target",),
        {"help": 'llvm, cuda, or a TVM target as JSON such as \'{"kind":"llvm","num-cores":1}\' (default: llvm)'},
    ),
    "shape": (
        ("--input-shape",),
        {
            "type": _input_shape,
            "action": "append",
            "default": [],
            "metavar": "NAME:1,3,224,224",
            "help": "shape of an ONNX input whose file leaves it open; once for each such input",
        },
    ),
    "records": (
        ("--tuning-records",),
        {
            "type": Path,
            "action": "append",
            "default": [],
            "metavar": "LOG",
            "help": "tuning log to read; may be repeated (default: tuning.jsonl where it exists)",
        },
    ),
    "trials": (
        ("--trials",),
        {"type": _count, "default": 64, "help": "candidates a layer, known ones included (default: %(default)s)"},
    ),
    "timeout": (
        ("--timeout",),
        {
            "type": _above_0,
            "metavar": "SECONDS",
            "help": "for building, and for running, one candidate (default: 90, 60)",
        },
    ),
    "seed": (("--seed",), {"type": _seed, "default": 0, "help": "of everything random (default: %(default)s)"}),
    "repeat": (("--repeat",), {"type": _count, "default": 20, "help": "rounds of timing (default: %(default)s)"}),
}


def _inspect(commands: Any) -> None:
    text = """\
For each convolution: how many weights are zero and in what structure, the arithmetic that is left, which schedules
serve it and why others do not, and what compiling with the tuning log would choose.

examples:
  tvm-sparse inspect model.onnx
  tvm-sparse inspect model.onnx --tuning-records a.jsonl --tuning-records b.jsonl --json
"""
    _add(commands, "inspect", "show what is sparse in a model", text, _options("model", "target", "shape", "records"))


def _tune(commands: Any) -> None:
    text = """\
Every candidate is built and run in a process of its own, compared with a float64 reference, and only then timed, in
turns with the dense kernel. Each trial is saved as it ends: stop with Ctrl-C, run the same command again to continue.

examples:
  tvm-sparse tune model.onnx --dry-run
  tvm-sparse tune model.onnx --trials 64 -o my.jsonl
  tvm-sparse tune model.onnx --layers layer1.0.conv1,layer1.0.conv2 --trials 200
  tvm-sparse tune model.onnx --trials 1000 --seconds 300
  tvm-sparse tune model.onnx --input-shape x:1,3,224,224 --target '{"kind":"llvm","num-cores":1}'
"""
    parents = _options("model", "target", "shape", "records", "trials", "timeout", "seed")
    parser = _add(commands, "tune", "search the fastest kernels of a model's convolutions", text, parents)
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="LOG",
        help="log to write (default: the first of --tuning-records, or tuning.jsonl)",
    )
    parser.add_argument(
        "--seconds",
        type=_above_0,
        metavar="S",
        help="time for a layer: no batch of candidates is begun after it; run again for the rest (default: no limit)",
    )
    parser.add_argument("--layers", type=_names, metavar="NAME,NAME", help="tune only these (names as inspect shows)")
    parser.add_argument(
        "--schedules", type=_names, metavar="NAME,NAME", help="search only these; dense is always timed"
    )
    parser.add_argument(
        "--search",
        choices=("guided", "random"),
        default="guided",
        help="random draws candidates without a model: a baseline to compare with, in a log of its own "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--worker-memory",
        type=_above_0,
        metavar="GIB",
        help="a candidate that takes more memory is killed (default: the machine's, shared by its workers)",
    )
    parser.add_argument("--dry-run", action="store_true", help="show layers, candidates and about how long it takes")
    parser.set_defaults(resumes=True)


def _compile(commands: Any) -> None:
    text = """\
Each convolution gets the fastest kernel that the log has verified, or dense where that is faster or nothing is known.
Nothing is measured. The artifact is a folder that runs without the model file and without torch.

examples:
  tvm-sparse compile model.onnx -o model.ts
  tvm-sparse compile model.onnx -o model.ts --tuning-records my.jsonl --target cuda
"""
    parents = _options("model", "target", "shape", "records")
    parser = _add(commands, "compile", "compile a model with the kernels that a tuning log knows", text, parents)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="artifact to write")
    parser.add_argument(
        "--strict-nonfinite", action="store_true", help="let NaN and infinity pass zero weights: all layers dense"
    )


def _check(commands: Any) -> None:
    text = """\
The model is compiled as compile would, and run on random inputs and, with --input, on yours. Each convolution is held
against a float64 reference and its error bound; ONNX Runtime, or torch for a .pt2 file, runs the same network beside
it. The first layer that diverges is named, and the exit code is then 5.

examples:
  tvm-sparse check model.onnx
  tvm-sparse check model.onnx --tuning-records my.jsonl --input x.npy
"""
    parser = _add(
        commands,
        "check",
        "compare results layer by layer",
        text,
        _options("model", "target", "shape", "records", "seed"),
    )
    parser.add_argument("--input", type=Path, metavar="FILE", help="also check on this input, as for run")


def _command_run(commands: Any) -> None:
    text = """\
An artifact is code: run only what you trust.

examples:
  tvm-sparse run model.ts --input x.npy -o y.npz
  tvm-sparse run model.ts --input inputs.npz --json
"""
    parser = _add(commands, "run", "run a compiled model on given inputs", text, _options("seed"))
    parser.add_argument("artifact", type=Path, metavar="ARTIFACT", help="a folder that compile wrote")
    parser.add_argument(
        "--input",
        type=Path,
        metavar="FILE",
        help=".npy for a model with one input, or .npz with an array for each input name (default: random numbers)",
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.npz", help="write the outputs, by name")


def _bench(commands: Any) -> None:
    text = """\
A model is compiled with the log and again with dense kernels only, and both are run in turns with ONNX Runtime where
that is installed. Median and quartiles of all rounds are shown, and ratios of times of the same round. An artifact is
timed alone.

examples:
  tvm-sparse bench model.onnx --tuning-records my.jsonl
  tvm-sparse bench model.ts --repeat 50
"""
    parents = _options("model", "target", "shape", "records", "repeat", "seed")
    _add(commands, "bench", "time a compiled model against dense ones", text, parents)


def _show(commands: Any) -> None:
    text = """\
The kernel that compile would take for a layer, as text: the dense compute (te), the same with tiles, threads and
staging (scheduled), the multiply-adds that are left, with weights as constants (folded), and the source that a
compiler is given (cuda, or LLVM's IR, llvm). Nothing is run, and CUDA source needs neither a GPU nor a CUDA compiler.

examples:
  tvm-sparse show model.onnx --layer layer1.0.conv1 --tuning-records my.jsonl
  tvm-sparse show model.onnx --layer layer1.0.conv1 --schedule folded_cpu --stage folded
  tvm-sparse show model.onnx --layer layer1.0.conv1 --schedule folded_cuda --target cuda > kernel.cu
"""
    parents = _options("model", "target", "shape", "records")
    parser = _add(commands, "show", "show the kernel of a layer, from compute to source", text, parents)
    parser.add_argument("--layer", required=True, metavar="NAME", help="a name that inspect shows")
    parser.add_argument(
        "--stage", choices=("te", "scheduled", "folded", "cuda", "llvm"), help="what to print (default: the source)"
    )
    parser.add_argument(
        "--schedule", metavar="NAME", help="this one, with its default decisions, whatever the log says"
    )


def _demo(commands: Any) -> None:
    text = """\
A residual network that reads handwritten digits, with 90% of its weights pruned away, is inspected, tuned, compiled,
checked on 450 held-out images, and timed against the network before pruning. Takes less than five minutes on two
cores; a second run finds its log and tunes nothing.

example:
  tvm-sparse demo
"""
    parser = _add(commands, "demo", "the whole way on a small real network", text, _options("target", "repeat", "seed"))
    parser.add_argument(
        "--trials", type=_count, default=12, help="candidates a layer, known ones included (default: %(default)s)"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("tvm-sparse-demo.jsonl"),
        metavar="LOG",
        help="tuning log to write (default: %(default)s)",
    )
    parser.set_defaults(resumes=True)


def _doctor(commands: Any) -> None:
    text = """\
Versions, target, processor, GPU and compilers; whether the installed TVM saves JSON and builds and runs a kernel, each
in a process of its own; and what will and will not work here, with what to install.

example:
  tvm-sparse doctor --json > report.json
"""
    _add(commands, "doctor", "show what this machine and installation offer", text, _options("target"))


def _logs(commands: Any) -> None:
    text = """\
stats     counts of records by status, schedule and machine, causes of failures, and the lines that are no records
best      the fastest verified record of each weight on each machine
merge     write the union of logs to a new file
distill   write the fastest verified records of each weight, schedule and machine to a new file
validate  build the best records' kernels again and compare them with the reference; what this machine cannot run is
          scheduled only, and said to be. Weights are random ones of the same structure, or a model's own
export    write a new MetaSchedule database, a folder
import    write the records of MetaSchedule databases that export made to a new file; they count as not verified

examples:
  tvm-sparse logs stats my.jsonl
  tvm-sparse logs merge a.jsonl b.jsonl -o all.jsonl
  tvm-sparse logs distill all.jsonl --keep 3 -o best.jsonl.xz
  tvm-sparse logs validate my.jsonl --model model.onnx --all
  tvm-sparse logs export my.jsonl -o database
  tvm-sparse logs import database -o back.jsonl
"""
    parser = _add(commands, "logs", "look into tuning logs, join, verify and convert them", text)
    actions = ("stats", "best", "merge", "distill", "validate", "export", "import")
    parser.add_argument("action", choices=actions)
    parser.add_argument("logs", type=Path, nargs="+", metavar="LOG", help="a log; for import, a database's folder")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="new file (merge, distill, import) or folder (export)"
    )
    parser.add_argument("--keep", type=_count, default=1, help="records each (distill; default: %(default)s)")
    parser.add_argument("--all", action="store_true", help="not the best only (validate)")
    parser.add_argument("--model", type=Path, help="whose weights to build with (validate)")
