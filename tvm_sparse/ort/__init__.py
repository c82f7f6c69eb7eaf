"""Compiled models within ONNX Runtime, as an execution provider of its own.

In: an .onnx file or an artifact. Out: an .onnx file that a stock ONNX Runtime runs with our kernels.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm_sparse.ort.context_model import export as export
    from tvm_sparse.ort.session import register as register
    from tvm_sparse.ort.session import session_options as session_options

# Public name -> the module that defines it. A module of the same name would hide its function.
_EXPORTS = {
    "export": "tvm_sparse.ort.context_model",
    "register": "tvm_sparse.ort.session",
    "session_options": "tvm_sparse.ort.session",
}
__all__ = list(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'tvm_sparse.ort' has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
