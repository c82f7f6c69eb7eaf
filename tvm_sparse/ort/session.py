"""The execution provider in this process's ONNX Runtime, and sessions that use it."""

from pathlib import Path
from typing import Any

from tvm_sparse.errors import BuildError, UsageError, first_line
from tvm_sparse.files.temporary import TemporaryFolder
from tvm_sparse.frontend.optional_imports import require
from tvm_sparse.ort import provider

# Of the provider, and of the nodes that it computes.
NAME = "tvm_sparse"


def register(library: str | Path | None = None) -> None:
    """Give ONNX Runtime the provider; doing it again changes nothing.

    Parameters
    ----------
    library
        ``libtvm_sparse_ort.so``, which `export` wrote beside the model; it is code. None: it is built here, once, with
        this machine's C compiler.

    Raises
    ------
    UsageError
        The package onnxruntime is missing, or older than 1.23.
    BuildError
        The library cannot be built or loaded.
    """
    runtime = _runtime()
    if _devices(runtime):
        return
    if library is not None:
        _register(runtime, Path(library))
        return
    content = provider.library()
    with TemporaryFolder() as folder:
        path = folder / provider.FILE
        path.write_bytes(content)
        _register(runtime, path)


def _register(runtime: Any, library: Path) -> None:
    try:
        runtime.register_execution_provider_library(NAME, str(library.absolute()))
    # ONNX Runtime's errors have no class in common.
    except Exception as error:
        problem = f"cannot be loaded ({first_line(error)})"
        raise BuildError(str(library), problem, hint="give the one that lies beside the model, or none") from error


def session_options(threads: int = 0) -> Any:
    """An `onnxruntime.SessionOptions` with the provider, for an `onnxruntime.InferenceSession` of an exported model.

    ONNX Runtime's own threads do not spin when they wait: they would take the cores from the provider's.

    Parameters
    ----------
    threads
        How many threads a call has; 0: as many as the model was compiled for. A call that meets another one of the same
        model has one.

    Raises
    ------
    UsageError
        The package onnxruntime is missing, or older than 1.23, or the provider was not registered.
    """
    runtime = _runtime()
    devices = _devices(runtime)
    if not devices:
        raise UsageError(NAME, "ONNX Runtime does not have the provider", hint="call tvm_sparse.ort.register() first")
    options = runtime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_provider_for_devices(devices[:1], {"threads": str(threads)} if threads else {})
    return options


def _runtime() -> Any:
    runtime = require("onnxruntime", "ort")
    if not hasattr(runtime, "register_execution_provider_library"):
        hint = "run: pip install -U onnxruntime"
        raise UsageError("onnxruntime", "takes no providers", runtime.__version__, "1.23 or newer", hint)
    return runtime


def _devices(runtime: Any) -> list[Any]:
    return [each for each in runtime.get_ep_devices() if each.ep_name == NAME]
