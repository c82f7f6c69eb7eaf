"""Imports meta_schedule without its tensor intrinsics."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def meta_schedule() -> Any:
    # Its tensor intrinsics take 10 to 50 s to import and are of no use here.
    sys.modules.setdefault("tvm.s_tir.tensor_intrin", types.ModuleType("tvm.s_tir.tensor_intrin"))
    from tvm.s_tir import meta_schedule

    return meta_schedule


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
