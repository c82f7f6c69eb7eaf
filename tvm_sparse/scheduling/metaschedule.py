"""Imports meta_schedule without its tensor intrinsics."""

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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


def meta_schedule() -> Any:
    """TVM's package of that name, imported in a fraction of a second."""
    with without_tensor_intrinsics():
        from tvm.s_tir import meta_schedule

    return meta_schedule
