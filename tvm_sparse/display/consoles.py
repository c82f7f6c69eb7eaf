"""Where text goes: results to standard output, progress to standard error."""

import io
import sys

from rich.console import Console
from rich.text import Text

# Characters a line where the output is no terminal; tables are not cut to a guess of 80.
PLAIN_WIDTH = 200


def result_console() -> Console:
    """For results: standard output."""
    return _console(stderr=False)


def progress_console() -> Console:
    """For progress and messages: standard error."""
    return _console(stderr=True)


def watched_console(progress: bool | None) -> Console | None:
    """Where Python's functions show progress; None: nowhere.

    ``progress`` True shows it, False does not, and None shows it where somebody looks: where standard error is a
    terminal, or Jupyter runs. rich alone would also call a log a terminal, where FORCE_COLOR is set.
    """
    if progress is False:
        return None
    console = progress_console()
    return console if progress or console.is_jupyter or sys.stderr.isatty() else None


def _console(stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=PLAIN_WIDTH)


def plain_text(*parts: object) -> str:
    """What rich makes of `parts`, without colours, for Python's print."""
    text = io.StringIO()
    # In Jupyter rich would show the parts, and write nothing.
    console = Console(
        file=text, width=PLAIN_WIDTH, highlight=False, markup=False, force_jupyter=False, force_terminal=False
    )
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str | Text))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())
