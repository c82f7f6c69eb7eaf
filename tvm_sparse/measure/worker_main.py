"""The process in which kernels are built and run: ``python -m tvm_sparse.measure.worker_main``.

It reads one JSON request a line from standard input and answers with one JSON line each. Only paths and numbers travel,
so nothing is pickled. What a kernel does to the process (crash, hang, poisoned CUDA context) ends with the process;
`measurer` starts another.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.frontend.optional_imports import of_all_life, without_torch
from tvm_sparse.measure.kernel_run import run
from tvm_sparse.measure.serve import UNCONVERTED, Action, constants_path, serve


def build(request: dict[str, Any]) -> dict[str, Any]:
    """Build ``schedule`` with ``decisions`` for ``spec`` and the weight in ``arrays``; writes ``library``."""
    from tvm.target import Target

    from tvm_sparse.codegen import lowering
    from tvm_sparse.schedules.lookup import make_kernel
    from tvm_sparse.scheduling.annotations import KERNEL_LIBRARY
    from tvm_sparse.scheduling.cudnn_calls import without_conversions

    spec = ConvSpec.from_json(request["spec"])
    with np.load(request["arrays"], allow_pickle=False) as arrays:
        weight = arrays["weight"]
    target = Target(request["target"])
    kernel = make_kernel(request["schedule"], spec, weight, target, request["decisions"])
    unconverted = without_conversions(kernel.func)
    others = {UNCONVERTED: unconverted} if unconverted is not None else {}
    lowering.build(kernel.func, target, **others).export_library(request["library"])
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

    from tvm_sparse.codegen.kernel_source import KernelSource
    from tvm_sparse.schedules.lookup import make_kernel

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
    from tvm_sparse.schedules.lookup import find_space

    spec, pattern = ConvSpec.from_json(request["spec"]), SparsityPattern(**request["pattern"])
    find_space(request["schedule"], spec, pattern, Target(request["target"])).scheduled(request["decisions"])
    return {}


# What a request may ask for; tests and scripts serve others.
ACTIONS: dict[str, Action] = {"build": build, "lower": lower, "run": run, "replay": replay}


def main() -> None:
    """Serve `ACTIONS`, or the ``actions()`` of the module that the command line names."""
    actions = ACTIONS
    if sys.argv[1:]:
        with without_torch(), of_all_life():
            actions = importlib.import_module(sys.argv[1]).actions()
    serve(actions)


if __name__ == "__main__":
    main()
