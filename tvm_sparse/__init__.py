"""tvm-sparse compiles pruned convolutional networks for their constant sparse weights, on Apache TVM.

Importing this package loads neither TVM, nor torch, nor a GPU: each public name loads what it needs on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm_sparse.autotune.options import TuneOptions as TuneOptions
    from tvm_sparse.autotune.progress.progress import Progress as Progress
    from tvm_sparse.autotune.session import tune as tune
    from tvm_sparse.compiler.build_model import compile as compile
    from tvm_sparse.conv.sparsity import SparsityPattern as SparsityPattern
    from tvm_sparse.conv.spec import ConvSpec as ConvSpec
    from tvm_sparse.errors import TvmSparseError as TvmSparseError
    from tvm_sparse.exporter.export import export as export
    from tvm_sparse.logs.record import TuningRecord as TuningRecord
    from tvm_sparse.logs.tuning_log import TuningLog as TuningLog
    from tvm_sparse.measure.outcome import MeasureOptions as MeasureOptions
    from tvm_sparse.optimizer.session import optimize as optimize
    from tvm_sparse.reports.benchmark import bench as bench
    from tvm_sparse.reports.checking import check as check
    from tvm_sparse.reports.inspection import inspect as inspect
    from tvm_sparse.reports.page import report as report
    from tvm_sparse.reports.verification import verify as verify
    from tvm_sparse.request.options import CompileOptions as CompileOptions
    from tvm_sparse.request.options import ModelOptions as ModelOptions
    from tvm_sparse.runtime.artifact import load as load
    from tvm_sparse.runtime.artifact import save as save
    from tvm_sparse.runtime.compiled_model import CompiledModel as CompiledModel
    from tvm_sparse.runtime.multi_shape_model import MultiShapeModel as MultiShapeModel
from tvm_sparse.version import __version__

# Public name -> the module that defines it.
_EXPORTS = {
    "MultiShapeModel": "tvm_sparse.runtime.multi_shape_model",
    "CompileOptions": "tvm_sparse.request.options",
    "CompiledModel": "tvm_sparse.runtime.compiled_model",
    "ConvSpec": "tvm_sparse.conv.spec",
    "MeasureOptions": "tvm_sparse.measure.outcome",
    "ModelOptions": "tvm_sparse.request.options",
    "Progress": "tvm_sparse.autotune.progress.progress",
    "SparsityPattern": "tvm_sparse.conv.sparsity",
    "TuneOptions": "tvm_sparse.autotune.options",
    "TuningLog": "tvm_sparse.logs.tuning_log",
    "TuningRecord": "tvm_sparse.logs.record",
    "TvmSparseError": "tvm_sparse.errors",
    "bench": "tvm_sparse.reports.benchmark",
    "check": "tvm_sparse.reports.checking",
    "compile": "tvm_sparse.compiler.build_model",
    "export": "tvm_sparse.exporter.export",
    "inspect": "tvm_sparse.reports.inspection",
    "load": "tvm_sparse.runtime.artifact",
    "optimize": "tvm_sparse.optimizer.session",
    "report": "tvm_sparse.reports.page",
    "save": "tvm_sparse.runtime.artifact",
    "tune": "tvm_sparse.autotune.session",
    "verify": "tvm_sparse.reports.verification",
}
__all__ = ["__version__", *_EXPORTS]  # noqa: PLE0604 - the names are strings


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'tvm_sparse' has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
