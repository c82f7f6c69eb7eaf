"""The process in which kernels are built and run: ``python -m tvm_sparse.measure.worker_main``.

It reads one JSON request a line from standard input and answers with one JSON line each. Only paths and numbers travel,
so nothing is pickled. What a kernel does to the process (crash, hang, poisoned CUDA context) ends with the process;
`measurer` starts another.
"""

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

import numpy as np

from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import TvmSparseError
from tvm_sparse.measure.kernel_run import constants_path, run

# A request as JSON values -> the answer.
Action = Callable[[dict[str, Any]], dict[str, Any]]


def build(request: dict[str, Any]) -> dict[str, Any]:
    """Build ``schedule`` with ``decisions`` for ``spec`` and the weight in ``arrays``; writes ``library``."""
    from tvm.target import Target

    from tvm_sparse.codegen import lowering
    from tvm_sparse.schedules import make_kernel

    spec = ConvSpec.from_json(request["spec"])
    with np.load(request["arrays"], allow_pickle=False) as arrays:
        weight = arrays["weight"]
    target = Target(request["target"])
    kernel = make_kernel(request["schedule"], spec, weight, target, request["decisions"])
    lowering.build(kernel.func, target).export_library(request["library"])
    np.savez(constants_path(request["library"]), *kernel.constants)
    return {}


def replay(request: dict[str, Any]) -> dict[str, Any]:
    """Schedule the space ``schedule`` of ``spec`` and a weight of ``pattern`` by ``decisions``; see `safe_replay`."""
    from tvm.target import Target

    from tvm_sparse.conv.sparsity import SparsityPattern
    from tvm_sparse.schedules import find_space

    spec, pattern = ConvSpec.from_json(request["spec"]), SparsityPattern(**request["pattern"])
    find_space(request["schedule"], spec, pattern, Target(request["target"])).scheduled(request["decisions"])
    return {}


# What a request may ask for; tests and scripts serve others.
ACTIONS: dict[str, Action] = {"build": build, "run": run, "replay": replay}


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
    # TVM imports torch where it is installed, which costs seconds and is of no use here.
    sys.modules["torch"] = None  # type: ignore[assignment]
    for line in sys.stdin:
        request = json.loads(line)
        try:
            # A worker's first request is to say that it has started.
            answer = {} if request["action"] == "warm" else actions[request["action"]](request)
        except TvmSparseError as error:
            answer = {"failure": str(error)}
        except (RuntimeError, ValueError, TypeError, MemoryError, OSError) as error:
            # Compilers and TVM put the reason at the end.
            answer = {"failure": f"{type(error).__name__}: {str(error).strip()[-1500:]}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _die_with(parent: int) -> None:
    """End this process, and the compilers it started, once its parent is gone: a killed tuner leaves nothing behind."""
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    serve(ACTIONS)
