"""The process in which kernels are built and run: ``python -m tvm_sparse.measure.worker_main``.

It reads one JSON request a line from standard input and answers with one JSON line each. Only paths and numbers travel,
so nothing is pickled. What a kernel does to the process (crash, hang, poisoned CUDA context) ends with the process;
`measurer` starts another.
"""

import contextlib
import importlib
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
from tvm_sparse.frontend.optional_imports import without_torch
from tvm_sparse.measure.kernel_run import constants_path, run

# A request as JSON values -> the answer.
Action = Callable[[dict[str, Any]], dict[str, Any]]


def build(request: dict[str, Any]) -> dict[str, Any]:
    """Build ``schedule`` with ``decisions`` for ``spec`` and the weight in ``arrays``; writes ``library``."""
    from tvm.target import Target

    from tvm_sparse.codegen import lowering
    from tvm_sparse.schedules import make_kernel
    from tvm_sparse.scheduling.annotations import KERNEL_LIBRARY

    spec = ConvSpec.from_json(request["spec"])
    with np.load(request["arrays"], allow_pickle=False) as arrays:
        weight = arrays["weight"]
    target = Target(request["target"])
    kernel = make_kernel(request["schedule"], spec, weight, target, request["decisions"])
    lowering.build(kernel.func, target).export_library(request["library"])
    sharing = "model" if KERNEL_LIBRARY in kernel.func.attrs else "shape"
    named = {f"{sharing}_{number}": constant for number, constant in enumerate(kernel.constants)}
    np.savez(constants_path(request["library"]), **named)  # type: ignore[arg-type]
    return {}


def lower(request: dict[str, Any]) -> dict[str, Any]:
    """Write the CUDA source of a kernel, given as for `build` but with its ``weight``'s file, to the file ``source``.

    The weight's file is its bytes, not a .npy file: `numpy.load` reads headers with `ast`, which fails now and then
    where several threads of Python 3.11 use it, and kernels are lowered in several.

    The answer is its ``launches``, None where it has none that can be told, and its ``constants``: ``none``, the
    ``weight``, or ``made`` from that by its space.
    """
    from tvm.target import Target

    from tvm_sparse.codegen.cuda.kernel_source import KernelSource
    from tvm_sparse.schedules import make_kernel

    spec, target = ConvSpec.from_json(request["spec"]), Target(request["target"])
    weight = np.fromfile(request["weight"], np.float32).reshape(spec.weight_shape)
    kernel = make_kernel(request["schedule"], spec, weight, target, request["decisions"])
    found = KernelSource.of(kernel.func, target)
    if found is None:
        return {"launches": None}
    Path(request["source"]).write_text(found.source)
    is_weight = len(kernel.constants) == 1 and kernel.constants[0] is weight
    constants = "weight" if is_weight else "made" if kernel.constants else "none"
    return {"launches": found.launches.to_json(), "constants": constants}


def replay(request: dict[str, Any]) -> dict[str, Any]:
    """Schedule the space ``schedule`` of ``spec`` and a weight of ``pattern`` by ``decisions``; see `safe_replay`."""
    from tvm.target import Target

    from tvm_sparse.conv.sparsity import SparsityPattern
    from tvm_sparse.schedules import find_space

    spec, pattern = ConvSpec.from_json(request["spec"]), SparsityPattern(**request["pattern"])
    find_space(request["schedule"], spec, pattern, Target(request["target"])).scheduled(request["decisions"])
    return {}


# What a request may ask for; tests and scripts serve others.
ACTIONS: dict[str, Action] = {"build": build, "lower": lower, "run": run, "replay": replay}


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
            # A worker's first request is to say that it has started.
            answer = {} if request["action"] == "warm" else answered(actions[request["action"]], request)
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


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


def main() -> None:
    """Serve `ACTIONS`, or the ``actions()`` of the module that the command line names."""
    actions = ACTIONS
    if sys.argv[1:]:
        with without_torch():
            actions = importlib.import_module(sys.argv[1]).actions()
    serve(actions)


if __name__ == "__main__":
    main()
