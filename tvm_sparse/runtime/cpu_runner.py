"""CpuRunner: calls of one model on a CPU, from any thread."""

import threading
from collections.abc import Sequence
from typing import Any

import tvm
from tvm.target import Target

from tvm_sparse.runtime.index_checks import as_input_errors
from tvm_sparse.runtime.threads import use_threads
from tvm_sparse.runtime.workspace import main_of
from tvm_sparse.target.compatibility import device_of
from tvm_sparse.target.resolve import thread_count


class CpuRunner:
    """Runs a model with as many threads as `target` says; calls from several threads take turns.

    TVM's virtual machine holds the state of one call, and a call uses all cores.
    """

    def __init__(self, executable: tvm.runtime.Executable | tvm.runtime.Module, target: Target):
        self._main = main_of(executable, device_of(target))
        self._threads = thread_count(target)
        self._lock = threading.Lock()

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs for `inputs`.

        Raises
        ------
        InputError
            An assertion of the model fails.
        """
        use_threads(self._threads)
        with self._lock, as_input_errors():
            result = self._main(*inputs)
        return [result] if hasattr(result, "__dlpack__") else list(result)
