"""What a command does, and says, when Ctrl-C, SIGTERM or the end of its terminal asks it to stop."""

import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stderr

from tvm_sparse.display.lenient_stream import LenientStream, leave
from tvm_sparse.errors import typed
from tvm_sparse.optimizer.stop_signals import StopSignals

# Commands that go on where they were interrupted if the same words are given again.
RESUMING = ("optimize", "tune", "demo")
# Those that clean up behind them at any signal, and those that still make what they can then.
TIDY, FINISHING = (*RESUMING, "compile"), ("optimize",)


def stop_signals(command: str, is_last: bool) -> StopSignals:
    """The signals that `command` heeds; with `is_last` the process ends after it."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if command in TIDY else (signal.SIGINT,)
    return StopSignals(numbers, _teller(command), at_once=command not in FINISHING, is_last=is_last)


def undisturbed(command: str) -> AbstractContextManager[object]:
    """A context in which the work of a command goes on when the reader of its progress, such as ``tee``, ends."""
    return redirect_stderr(LenientStream(sys.stderr)) if command in FINISHING else nullcontext()


def exit_code(signals: StopSignals) -> int:
    """Of a command that a signal ended, as shells count it: 130 for Ctrl-C."""
    return 128 + (signals.number or signal.SIGINT)


def say_interrupted(command: str, words: Sequence[str], done: str = "") -> None:
    """One sentence: that the command was interrupted, what it has `done`, and the words to go on with."""
    hint = f"; continue with: {typed(shlex.join(words))}" if command in RESUMING else ""
    print(f"tvm-sparse: interrupted{done}{hint}", file=sys.stderr)


def _teller(command: str) -> Callable[[int], None]:
    terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]

    def tell(number: int) -> None:
        if number == signal.SIGHUP:
            # Writing to a terminal that was closed fails.
            for descriptor in terminals:
                leave(descriptor)
        if command in FINISHING:
            again = "; press Ctrl-C again to give up the artifact" if number == signal.SIGINT else ""
            try:
                # Python refuses to print amid a print, where a signal may come.
                os.write(2, f"tvm-sparse: stopping, the best so far will be compiled{again}\n".encode())
            except OSError:
                leave(2)

    return tell
