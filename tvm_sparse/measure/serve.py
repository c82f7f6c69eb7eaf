"""What every worker process does: one JSON request a line from standard input, one JSON line each as the answer."""

import contextlib
import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tvm_sparse.errors import TvmSparseError
from tvm_sparse.frontend.optional_imports import of_all_life, without_torch

# The function of a library beside ``main`` that computes the same for tensors in another layout, and converts none.
UNCONVERTED = "unconverted"
# A request as JSON values -> the answer.
Action = Callable[[dict[str, Any]], dict[str, Any]]


def serve(actions: Mapping[str, Action]) -> None:
    """Answer requests, each by the action of its name, until standard input closes or the tuner dies."""
    threading.Thread(target=_die_with, args=(os.getppid(),), daemon=True).start()
    # A crash leaves no file as large as this process.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Where memory runs out, this process goes before its tuner; some containers do not let it choose.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    # Answers go to the original standard output; whatever a compiler or kernel prints goes to standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with without_torch():
        for line in sys.stdin:
            request = json.loads(line)
            # A worker's first request is to say that it has started; the next one imports TVM.
            if request["action"] == "warm":
                answer = {}
            else:
                with contextlib.nullcontext() if "tvm" in sys.modules else of_all_life():
                    answer = answered(actions[request["action"]], request)
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


def constants_path(library: str) -> str:
    """Where the arrays made from the weight lie beside a kernel's library.

    Their names begin with which layers share its code, those of one ``shape`` or all of a ``model``; where there are no
    arrays the code holds the weight, and none do.
    """
    return f"{library}.npz"


def answered(action: Action, request: dict[str, Any]) -> dict[str, Any]:
    """What `action` answers; ``{"failure": cause}`` where it fails, with ``is_told`` where the cause is a sentence."""
    try:
        return action(request)
    except TvmSparseError as error:
        return {"failure": str(error), "is_told": True}
    except (RuntimeError, ValueError, TypeError, MemoryError, OSError) as error:
        # Compilers and TVM put the reason at the end.
        return {"failure": f"{type(error).__name__}: {str(error).strip()[-1500:]}"}


def _die_with(parent: int) -> None:
    """End this process, and the compilers it started, once its parent is gone: a killed tuner leaves nothing behind."""
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)
