"""Packages that not every installation has."""

import contextlib
import gc
import importlib
import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
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


class _Onnx:
    """The package onnx and its modules, imported when they are first used; errors as of `require`."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(require("onnx", "onnx"), name, None)
        return require(f"onnx.{name}", "onnx") if found is None else found


onnx: Any = _Onnx()


class _NoTorch(MetaPathFinder):
    """Hides torch.

    None in its place in `sys.modules` would do the same, but SciPy takes what is there for torch.
    """

    def find_spec(self, fullname: str, _path: object, _target: object = None) -> None:
        if fullname == "torch":
            raise ModuleNotFoundError("torch is of no use here and not imported", name=fullname)


@contextlib.contextmanager
def without_torch() -> Iterator[None]:
    """Hides torch from TVM, which imports it where it is installed: that takes longer than TVM itself.

    For processes that are wholly ours: TVM goes on without it, and does not know its tensors by their type.
    """
    finder = _NoTorch()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@contextlib.contextmanager
def of_all_life() -> Iterator[None]:
    """While a process imports what stays until its end: looking for garbage in that is a fifth of the time of it."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextlib.contextmanager
def with_torch() -> Iterator[None]:
    """Within `without_torch`, torch is there for who needs it nevertheless."""
    found = list(sys.meta_path)
    sys.meta_path[:] = [each for each in found if not isinstance(each, _NoTorch)]
    try:
        yield
    finally:
        sys.meta_path[:] = found
