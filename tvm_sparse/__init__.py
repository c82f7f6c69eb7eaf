"""tvm-sparse compiles pruned convolutional networks for their constant sparse weights, on Apache TVM.

Importing this package loads neither TVM, nor torch, nor a GPU: each public name loads what it needs on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name -> the module that defines it.
_EXPORTS = {
    "CompiledModel": "tvm_sparse.runtime",
    "ConvSpec": "tvm_sparse.conv",
    "MeasureOptions": "tvm_sparse.measure",
    "SparsityPattern": "tvm_sparse.pattern",
    "TuneOptions": "tvm_sparse.tuner",
    "TuningLog": "tvm_sparse.log",
    "TuningRecord": "tvm_sparse.records",
    "TvmSparseError": "tvm_sparse.errors",
    "compile": "tvm_sparse.model",
    "load": "tvm_sparse.artifact",
    "save": "tvm_sparse.artifact",
    "tune": "tvm_sparse.session",
}
__all__ = ["__version__", *_EXPORTS]  # noqa: PLE0604 - the names are strings

if TYPE_CHECKING:
    from tvm_sparse.artifact import load as load
    from tvm_sparse.artifact import save as save
    from tvm_sparse.conv import ConvSpec as ConvSpec
    from tvm_sparse.errors import TvmSparseError as TvmSparseError
    from tvm_sparse.log import TuningLog as TuningLog
    from tvm_sparse.measure import MeasureOptions as MeasureOptions
    from tvm_sparse.model import compile as compile
    from tvm_sparse.pattern import SparsityPattern as SparsityPattern
    from tvm_sparse.records import TuningRecord as TuningRecord
    from tvm_sparse.runtime import CompiledModel as CompiledModel
    from tvm_sparse.session import tune as tune
    from tvm_sparse.tuner import TuneOptions as TuneOptions


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'tvm_sparse' has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
