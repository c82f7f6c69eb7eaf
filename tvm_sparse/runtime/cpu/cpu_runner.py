"""CpuRunner: calls of one model on a CPU, from any thread."""

import time
from collections.abc import Sequence
from typing import Any

import tvm
from tvm.target import Target

from tvm_sparse.runtime.cpu.core_shares import CORE_SHARES
from tvm_sparse.runtime.cpu.short_calls import ShortCalls
from tvm_sparse.runtime.index_checks import input_error
from tvm_sparse.runtime.workspace import main_of
from tvm_sparse.target.compatibility import device_of
from tvm_sparse.target.resolve import thread_count


class CpuRunner:
    """Runs a model with as many threads as `target` says, or fewer where several threads call; see `CoreShares`.

    With one where that is faster; see `ShortCalls`.

    TVM's virtual machine holds the state of one call, so calls that run side by side have one each, one a core at most.
    The weights, which are in the library, are there once.
    """

    def __init__(self, executable: tvm.runtime.Executable | tvm.runtime.Module, target: Target):
        self._executable, self._device = executable, device_of(target)
        self._threads = ShortCalls(thread_count(target))
        # Machines that are not in a call. Threads take from a list and put back without a lock.
        self._idle = [main_of(executable, self._device)]

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs for `inputs`; InputError where an assertion of the model fails."""
        threads, began = self._threads.threads, time.perf_counter()
        # A context manager would take as long as to run a small layer.
        try:
            result = CORE_SHARES.run(threads, lambda: self._run(inputs))
        except AssertionError as error:
            raise input_error(error) from None
        self._threads.took(threads, time.perf_counter() - began)
        return [result] if hasattr(result, "__dlpack__") else list(result)

    def _run(self, inputs: Sequence[Any]) -> Any:
        try:
            main = self._idle.pop()
        except IndexError:
            main = main_of(self._executable, self._device)
        try:
            return main(*inputs)
        finally:
            self._idle.append(main)
