# PYTHON_ARGCOMPLETE_OK
"""The command line: runs one command and turns its outcome into output and an exit code.

What a command does is in `cli.commands`; its module is loaded when the command runs, so that ``--help`` answers
at once. Results go to standard output, progress and errors to standard error.
"""

import argparse
import contextlib
import importlib
import io
import json
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from tvm_sparse.cli import stopping
from tvm_sparse.cli.parser import build_parser
from tvm_sparse.display.lenient_stream import leave
from tvm_sparse.errors import TvmSparseError, last_line
from tvm_sparse.frontend.optional_imports import of_all_life, require, without_torch
from tvm_sparse.runtime.gpu.gpu_failures import gpu_failure

# The reader of our output has left, as in ``... | head``; Python's documentation and rich end with 1.
EXIT_BROKEN_PIPE = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: this process's) and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = build_parser()
    if "_ARGCOMPLETE" in os.environ:
        # A shell asks how the words may go on; this answers, and ends the process.
        require("argcomplete", "completion").autocomplete(parser)
    arguments = parser.parse_args(words)
    logging.basicConfig(level=logging.INFO if arguments.verbose else logging.WARNING, format="%(message)s")
    with stopping.undisturbed(arguments.command):
        try:
            return _stoppable(arguments, words, is_process=argv is None)
        except BrokenPipeError:
            # Nothing may be written while Python shuts down.
            leave(sys.stdout.fileno())
            return EXIT_BROKEN_PIPE
        except Exception as error:
            if arguments.verbose:
                traceback.print_exc()
            error = gpu_failure(error) or error
            print(f"tvm-sparse: {_sentence(error)}", file=sys.stderr)
            return getattr(error, "exit_code", TvmSparseError.exit_code)


def _stoppable(arguments: argparse.Namespace, words: Sequence[str], is_process: bool) -> int:
    """Run the command, until it ends or a signal ends it; with `is_process` this process ends after it."""
    command = arguments.command
    arguments.signals = signals = stopping.stop_signals(command, is_process)
    try:
        with signals:
            # What calls this from a longer life may want TVM with torch later.
            with contextlib.ExitStack() as stack:
                if is_process:
                    stack.enter_context(of_all_life())
                if is_process and not _needs_torch(arguments):
                    stack.enter_context(without_torch())
                _command(arguments)
            code = _run(arguments)
            if command in stopping.FINISHING and signals.stop.is_set():
                stopping.say_interrupted(command, words, ", the best so far is compiled")
                code = stopping.exit_code(signals)
            return code
    except KeyboardInterrupt:
        if arguments.verbose:
            traceback.print_exc()
        stopping.say_interrupted(command, words)
        return stopping.exit_code(signals)


def _sentence(error: Exception) -> str:
    is_ours = isinstance(error, TvmSparseError)
    return str(error) if is_ours else f"internal error: {last_line(error)}; run again with -v to see where"


def _run(arguments: argparse.Namespace) -> int:
    """Run the command; print its document as JSON, or as the command shows it; then raise what it found to be wrong."""
    from tvm_sparse.display.consoles import progress_console, result_console
    from tvm_sparse.reports.report import Report

    command = _command(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names of files may be no UTF-8.
        sys.stdout.reconfigure(errors="backslashreplace")
    # Libraries that print must not spoil the document.
    with contextlib.redirect_stdout(sys.stderr):
        found = command.run(arguments, progress_console())
    report = found if isinstance(found, Report) else None
    document = found if report is None else report.to_json()
    console = result_console()
    if arguments.json:
        print(json.dumps(document, indent=2, allow_nan=False))
    elif report is not None:
        for part in (*(report.details() if arguments.verbose else ()), report):
            console.print(part)
    else:
        # The verdict stays the last line.
        if arguments.verbose and hasattr(command, "show_more"):
            command.show_more(document, console)
        command.show(document, console)
    sys.stdout.flush()
    # A command may find out what is wrong, show it, and still end as a failure.
    failure = getattr(command, "failure", lambda _: None)(document) if report is None else report.failure
    if failure is not None:
        raise failure
    return int(command.exit_code(document)) if hasattr(command, "exit_code") else 0


def _command(arguments: argparse.Namespace) -> Any:
    """The module of the command, which imports TVM."""
    return importlib.import_module(f"tvm_sparse.cli.commands.{arguments.command}")


def _needs_torch(arguments: argparse.Namespace) -> bool:
    """Whether the command may read a model that is none of ONNX's."""
    model = getattr(arguments, "model", None)
    return model is not None and model.suffix != ".onnx"
