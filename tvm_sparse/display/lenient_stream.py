"""Standard error whose reader may leave: a pipe into a program that Ctrl-C ends too, a terminal that is closed."""

import os
from typing import Any, TextIO


class LenientStream:
    """`stream`, in whose place nothing is written to once writing fails."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        """As the stream's."""
        try:
            return self._stream.write(text)
        except OSError:
            leave(self._stream.fileno())
            return len(text)

    def flush(self) -> None:
        """As the stream's."""
        try:
            self._stream.flush()
        except OSError:
            leave(self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def leave(descriptor: int) -> None:
    """Let what is written to `descriptor`, also what is buffered for it, go nowhere from now on."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
