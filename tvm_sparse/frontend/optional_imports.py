"""Packages that not every installation has."""

import importlib
from typing import Any

from tvm_sparse.errors import UsageError


def require(module: str, extra: str) -> Any:
    """Import `module`, or raise UsageError that names the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UsageError(
            module, "the package is not installed", hint=f"run: pip install 'tvm-sparse[{extra}]'"
        ) from None
