"""What TVM does with the CUDA source of a module: by global functions of the process, but as each thread wants it.

TVM calls one global function that edits the source and another that compiles it. Builds in several threads share them:
the first to come registers them, the last to go restores what was there. A thread may ask for something else in their
place (`instead`); other threads do not notice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import tvm_ffi

# TVM's global functions for the CUDA source of a module: first the one edits it, then the other compiles it.
_EDIT, _COMPILE = "tvm_callback_cuda_postproc", "tvm_callback_cuda_compile"
# A source -> the same, edited.
Edit = Callable[[str], str]
# A source and TVM's own compiler -> machine code.
Compile = Callable[[str, Callable[[str], Any]], Any]

# What this thread wants in the place of what all do.
_INSTEAD: ContextVar[tuple[Edit | None, Compile | None]] = ContextVar("tvm_sparse_instead", default=(None, None))


class Shared(AbstractContextManager[None]):
    """A context that several threads may be in at a time: the first to come enters it, the last to go leaves it."""

    def __init__(self, make: Callable[[], ExitStack]):
        self._make, self._lock, self._users = make, threading.Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            if self._users == 0:
                self._context = self._make()
            self._users += 1

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._context.close()


def hooks(edit: Edit, compile_: Compile) -> Shared:
    """A context in which TVM edits CUDA source with `edit` and compiles it with `compile_`, or what a thread wants."""

    def register() -> ExitStack:
        whole = tvm_ffi.get_global_func(_COMPILE)
        with ExitStack() as stack:
            _register(stack, _EDIT, lambda source, _target: (_INSTEAD.get()[0] or edit)(source))
            _register(stack, _COMPILE, lambda source: (_INSTEAD.get()[1] or compile_)(source, whole))
            return stack.pop_all()

    return Shared(register)


@contextmanager
def instead(edit: Edit | None = None, compile_: Compile | None = None) -> Iterator[None]:
    """Within `hooks`: have the sources that this thread makes edited and compiled by these; None: as all others do."""
    token = _INSTEAD.set((edit, compile_))
    try:
        yield
    finally:
        _INSTEAD.reset(token)


def _register(stack: ExitStack, name: str, function: Callable[..., Any]) -> None:
    """`function` as TVM's global function `name` until `stack` is closed."""
    before = tvm_ffi.get_global_func(name, allow_missing=True)
    tvm_ffi.register_global_func(name, function, override=True)
    if before is None:
        stack.callback(tvm_ffi.registry.remove_global_func, name)
    else:
        stack.callback(tvm_ffi.register_global_func, name, before, override=True)
