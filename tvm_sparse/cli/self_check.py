"""Checks of the installed TVM that may end the process: `doctor` runs each in one of its own.

Run as ``python -m tvm_sparse.cli.self_check NAME``. Torch is kept out: importing TVM loads it where it is installed.
"""

import gc
import sys
from pathlib import Path

from tvm_sparse.files.temporary import TemporaryFolder


def ffi() -> None:
    """Save and load JSON, which tuning needs and in which some versions of apache-tvm-ffi end the process."""
    import tvm

    assert int(tvm.ir.load_json(tvm.ir.save_json(tvm.tirx.IntImm("int32", 3)))) == 3


def build() -> None:
    """Build, link, load and run a folded convolution, and compare it with the reference."""
    import numpy as np
    import tvm

    from tvm_sparse.codegen import lowering
    from tvm_sparse.conv import reference
    from tvm_sparse.conv.spec import ConvSpec
    from tvm_sparse.schedules.lookup import make_kernel
    from tvm_sparse.target.resolve import resolve_target

    spec, target = ConvSpec(1, 2, 8, 8, 4, 3, 3, padding=(1, 1, 1, 1)), resolve_target()
    rng = np.random.default_rng(0)
    weight = (rng.standard_normal(spec.weight_shape) * (rng.random(spec.weight_shape) < 0.5)).astype(np.float32)
    x = reference.random_arguments(spec, 0)["x"]
    module = lowering.build(make_kernel("folded_cpu", spec, weight, target).func, target)
    with TemporaryFolder() as folder:
        path = str(Path(folder) / "check.so")
        tvm.runtime.Executable(module).export_library(path)
        y = tvm.runtime.tensor(np.full(spec.output_shape, np.nan, np.float32))
        tvm.runtime.load_module(path)["main"](tvm.runtime.tensor(x), y)
    reference.reference(spec, x, weight).check("folded convolution", y.numpy())


def cuda() -> None:
    """Print whether TVM was built for CUDA and can load its libraries, and whether it finds a device."""
    import tvm
    import tvm_ffi

    has_runtime = tvm_ffi.get_global_func("device_api.cuda", allow_missing=True) is not None
    print(f"{'runtime' if has_runtime else 'none'} {'device' if has_runtime and tvm.cuda(0).exist else 'none'}")


def cudnn() -> None:
    """Print the version of the cuDNN that convolutions are computed and compared with, ``none`` where there is none."""
    from tvm_sparse.cudnn import library

    print("none" if library.find() is None else library.load().version)


CHECKS = {"ffi": ffi, "build": build, "cuda": cuda, "cudnn": cudnn}


if __name__ == "__main__":
    sys.modules["torch"] = None  # type: ignore[assignment]
    # It ends soon: looking for garbage is a fifth of the time that importing TVM takes.
    gc.disable()
    CHECKS[sys.argv[1]]()
