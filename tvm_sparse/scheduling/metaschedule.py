"""Imports meta_schedule without its tensor intrinsics."""

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_tensor_intrinsics() -> Iterator[None]:
    """Keep `TuneContext` from importing all tensor intrinsics: 10 to 50 s for what these spaces never use."""
    name = "tvm.s_tir.tensor_intrin"
    if name in sys.modules:
        yield
        return
    sys.modules[name] = types.ModuleType(name)
    try:
        yield
    finally:
        del sys.modules[name]
