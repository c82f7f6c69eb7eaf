"""CompiledModel: calling a compiled model with the caller's own tensors, whether it was just compiled or loaded.

TVM checks shapes itself, but ends the process on a misaligned tensor; so every input is checked here first, in constant
time, and what TVM cannot take as it is gets copied.
"""

import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import tvm
from tvm import relax
from tvm.target import Target

from tvm_sparse.errors import BuildError, InputError
from tvm_sparse.runtime.signature import Signature, TensorSpec
from tvm_sparse.runtime.tensors import ALIGNMENT, Library, NumPy, library_of
from tvm_sparse.runtime.threads import use_threads
from tvm_sparse.target.compatibility import device_of, why_not_here
from tvm_sparse.target.resolve import thread_count

COLUMNS = ("layer", "density", "structure", "schedule", "dense_time_us", "time_us", "reason")


class CompiledModel:
    """A model ready to run. Call it with one tensor for each input; not from two threads at once.

    On a CPU each call runs with as many threads as `target` has ``num-cores``, or as there are cores where these are
    fewer, whatever ``TVM_NUM_THREADS`` says and other models in the process use; see `use_threads`.

    Parameters
    ----------
    executable
        What `tvm.compile` made of a Relax module, or its library loaded again.
    target
        What it was compiled for.
    signature
        Its inputs and outputs.
    decisions
        One JSON object for each convolution, with `COLUMNS` as keys.
    """

    def __init__(
        self,
        executable: tvm.runtime.Executable | tvm.runtime.Module,
        target: Target,
        signature: Signature,
        decisions: Sequence[dict[str, Any]],
    ):
        self.executable, self.target, self.signature = executable, target, signature
        self.decisions = list(decisions)
        self.device = device_of(target)
        self._device_name = f"{self.device.type}:{self.device.index}"
        self._threads = thread_count(target)
        self._has_warned = False

    def __call__(self, *inputs: Any) -> Any:
        """Run the model.

        Parameters
        ----------
        inputs
            torch tensors, NumPy arrays or other DLPack tensors, shaped as `signature` says, on `device`. They are read
            in place; one that is not contiguous or not aligned to 64 bytes is copied, with one warning (NumPy does not
            align, so no warning for NumPy).

        Returns
        -------
        The outputs, of the type of the first input; a list where there are several.

        Raises
        ------
        InputError
            The number of inputs, or the type, shape, element type or device of one, is wrong.
        BuildError
            This machine cannot run code for `target`.
        """
        specs = self.signature.inputs
        if len(inputs) != len(specs):
            names = ", ".join(spec.name for spec in specs)
            raise InputError("inputs", "wrong number of tensors", len(inputs), f"{len(specs)} ({names})")
        libraries = [library_of(spec.name, value) for value, spec in zip(inputs, specs, strict=True)]
        # A plain loop: the warning in it counts stack frames to name the caller's line.
        arguments = []
        for library, value, spec in zip(libraries, inputs, specs, strict=True):
            arguments.append(self._argument(library, value, spec))
        main = self._main
        use_threads(self._threads)
        result = main(*arguments)
        give_back = libraries[0].give_back
        return give_back(result) if self.signature.single else [give_back(tensor) for tensor in result]

    @cached_property
    def _main(self) -> Any:
        obstacle = why_not_here(self.target)
        if obstacle:
            raise BuildError(
                "model", f"this machine cannot run it: {obstacle}", hint="save it and load it where it fits"
            )
        return relax.VirtualMachine(self.executable, self.device)["main"]

    def _argument(self, library: Library, value: Any, spec: TensorSpec) -> Any:
        layout = library.layout(value)
        if layout.obstacle:
            hint = "pass an ordinary dense tensor"
            raise InputError(f"input {spec.name}", f"this tensor cannot be read, {layout.obstacle}", hint=hint)
        if layout.device != self._device_name:
            hint = f"move it to {self._device_name}"
            raise InputError(f"input {spec.name}", "wrong device", layout.device, self._device_name, hint)
        if layout.dtype != spec.dtype:
            raise InputError(f"input {spec.name}", "wrong element type", layout.dtype, spec.dtype, "convert it")
        if layout.shape != spec.shape:
            raise InputError(f"input {spec.name}", "wrong shape", layout.shape, str(spec.shape))
        if layout.is_contiguous and layout.is_aligned:
            return library.borrow(value)
        if not isinstance(library, NumPy) and not self._has_warned:
            self._has_warned = True
            problem = f"is not contiguous and aligned to {ALIGNMENT} bytes, so it is copied each time"
            warnings.warn(f"input {spec.name} {problem}", stacklevel=3)
        return library.aligned_copy(value)

    def report(self) -> list[dict[str, Any]]:
        """What was chosen for each convolution and why, one object with keys `COLUMNS` each; times in microseconds.

        On a GPU the key ``kernels`` has the names under which a profiler shows the layer's kernels.
        """
        return [dict(decision) for decision in self.decisions]

    def report_text(self) -> str:
        """`report` as a table."""
        rows = [COLUMNS, *([_cell(row[column]) for column in COLUMNS] for row in self.decisions)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
        return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
