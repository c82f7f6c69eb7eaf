"""tvm-sparse compiles pruned convolutional networks for their constant sparse weights, on Apache TVM.

Importing this package loads neither TVM, nor torch, nor a GPU: each public name loads what it needs on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name -> the module that defines it.
_EXPORTS = {
    "ConvSpec": "tvm_sparse.conv",
    "SparsityPattern": "tvm_sparse.pattern",
    "TvmSparseError": "tvm_sparse.errors",
}
__all__ = ["__version__", *_EXPORTS]  # noqa: PLE0604 - the names are strings

if TYPE_CHECKING:
    from tvm_sparse.conv import ConvSpec as ConvSpec
    from tvm_sparse.errors import TvmSparseError as TvmSparseError
    from tvm_sparse.pattern import SparsityPattern as SparsityPattern


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'tvm_sparse' has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)
