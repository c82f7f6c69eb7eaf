"""The failures a user can cause. Each says what was found, what is allowed and what to do next.

Every message is one sentence of the form ``where: problem, found ...; allowed ...; next step``. The
command line maps each class to its exit code (`exit_code`), so scripts can tell bad input from a
failed build.
"""

import shlex
import shutil
import sys
from pathlib import Path

# Characters that are quoted of a message of another library: TVM may put the text of a whole expression into one.
MAX_QUOTE = 300


def printable(text: str) -> str:
    """`text` with control characters escaped, on one line: names come from files and must not steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def shortened(text: str) -> str:
    """`text`, of which no more than `MAX_QUOTE` characters are shown: names and numbers from files may be megabytes."""
    return text if len(text) <= MAX_QUOTE else f"{text[:MAX_QUOTE]}..."


def typed(words: str) -> str:
    """A command line of ours as it can be typed here, whether there is a script on the path or a checkout alone."""
    program, script = Path(sys.executable), shutil.which("tvm-sparse")
    if script is not None and Path(script).parent == program.parent:
        return f"tvm-sparse {words}"
    found = shutil.which(program.name)
    return f"{program.name if found == str(program) else shlex.quote(str(program))} -m tvm_sparse {words}"


def first_line(error: BaseException) -> str:
    """The first line of what `error` says, where most libraries put the reason; its class where it says nothing."""
    return _lines(error)[0][:MAX_QUOTE]


def last_line(error: BaseException) -> str:
    """The last line of what `error` says, where TVM puts the reason, below its own call stack."""
    return _lines(error)[-1][:MAX_QUOTE]


def _lines(error: BaseException) -> list[str]:
    return [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]


class TvmSparseError(Exception):
    """Base of all errors a user can meet; `exit_code` is what the command line returns."""

    exit_code = 4

    def __init__(self, where: str, problem: str = "", found: object = None, allowed: str = "", hint: str = ""):
        found = None if found is None else shortened(str(found))
        self.where, self.problem, self.found, self.allowed, self.hint = where, problem, found, allowed, hint
        # TVM makes an error that passed through it again from its message alone.
        message = f"{shortened(where)}: {problem}" if problem else where
        if found is not None:
            message += f", found {found}"
        if allowed:
            message += f"; allowed: {allowed}"
        if hint:
            message += f"; {hint}"
        super().__init__(printable(message))


class UsageError(TvmSparseError):
    """The command line or an argument of a public function is wrong."""

    exit_code = 2


class ModelError(TvmSparseError):
    """A model file, a weight or a convolution cannot be used."""

    exit_code = 3


class LogError(TvmSparseError):
    """A tuning log cannot be read or written."""

    exit_code = 3


class ArtifactError(TvmSparseError):
    """A saved model is damaged, foreign or does not fit this machine."""

    exit_code = 3


class InputError(TvmSparseError):
    """A tensor given to a compiled model has the wrong shape, dtype or device."""

    exit_code = 3


class BuildError(TvmSparseError):
    """A kernel or a model could not be built or run."""

    exit_code = 4


class VerificationError(TvmSparseError):
    """A result differs from the float64 reference by more than its bound."""

    exit_code = 5
