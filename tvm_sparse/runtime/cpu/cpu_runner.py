"""CpuRunner: calls of one model on a CPU, from any thread."""

from collections.abc import Sequence
from typing import Any

import tvm
from tvm.target import Target

from tvm_sparse.runtime.cpu.core_shares import CORE_SHARES
from tvm_sparse.runtime.index_checks import as_input_errors
from tvm_sparse.runtime.workspace import main_of
from tvm_sparse.target.compatibility import device_of
from tvm_sparse.target.resolve import thread_count


class CpuRunner:
    """Runs a model with as many threads as `target` says, or fewer where several threads call; see `CoreShares`.

    TVM's virtual machine holds the state of one call, so calls that run side by side have one each, one a core at most.
    The weights, which are in the library, are there once.
    """

    def __init__(self, executable: tvm.runtime.Executable | tvm.runtime.Module, target: Target):
        self._executable, self._device = executable, device_of(target)
        self._threads = thread_count(target)
        # Machines that are not in a call. Threads take from a list and put back without a lock.
        self._idle = [main_of(executable, self._device)]

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs for `inputs`; InputError where an assertion of the model fails."""
        with as_input_errors():
            result = CORE_SHARES.run(self._threads, lambda: self._run(inputs))
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
