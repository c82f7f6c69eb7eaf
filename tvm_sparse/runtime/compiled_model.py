"""CompiledModel: calling a compiled model with the caller's own tensors, whether it was just compiled or loaded.

TVM checks shapes itself, but ends the process on a misaligned tensor; so every input is checked here first, in constant
time, and what TVM cannot take as it is gets copied.
"""

import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm.target import Target

from tvm_sparse.conv.index_check import IndexCheck
from tvm_sparse.display import tables
from tvm_sparse.display.consoles import plain_text
from tvm_sparse.errors import BuildError, InputError
from tvm_sparse.runtime.comparison import Comparison
from tvm_sparse.runtime.cpu.core_shares import CORE_SHARES
from tvm_sparse.runtime.cpu.cpu_runner import CpuRunner
from tvm_sparse.runtime.gpu.gpu_failures import as_sentences
from tvm_sparse.runtime.gpu.gpu_runner import GpuRunner
from tvm_sparse.runtime.index_checks import on_host, require_in_range, with_bounds
from tvm_sparse.runtime.libraries import provide
from tvm_sparse.runtime.library_file import LibraryFile
from tvm_sparse.runtime.model_file import ModelFile
from tvm_sparse.runtime.saving import write
from tvm_sparse.runtime.signature import Signature, TensorSpec
from tvm_sparse.runtime.tensors import ALIGNMENT, Library, NumPy, Torch, library_of
from tvm_sparse.runtime.verdict import Verdict
from tvm_sparse.target.compatibility import device_of, require_alike, why_not_here

# Environment variable that, set to 0, turns CUDA graphs off in all models that are made or loaded from then on.
CUDA_GRAPH = "TVM_SPARSE_CUDA_GRAPH"
COLUMNS = ("layer", "density", "structure", "schedule", "precision", "dense_time_us", "time_us", "reason")
# Beside these: the same in words, and what it is or should be worth.
WORDS = ("kernel", "status", "speedup")


class CompiledModel:
    """A model ready to run. Call it with one tensor for each input, from any thread.

    On a CPU a call runs with as many threads as `target` has ``num-cores``, or with all cores if there are fewer,
    whatever ``TVM_NUM_THREADS`` says. Calls that meet, of one model or of several, share the cores.

    On a GPU calls of one model take turns. A call goes to the caller's stream, torch's current one or else TVM's, and
    returns before it has run. The first call launches the kernels one by one and records them in a CUDA graph, which
    later calls launch. It also allocates the workspace, which the model keeps. A stream that is being captured, as by
    ``torch.cuda.graph``, gets the kernels themselves; call the model once before, and keep it as long as the capture.

    If inputs say at which places of a tensor an operator reads or writes, the model checks these places, and a call on
    a GPU returns when it has run. In a stream that is being captured it moves them into the tensor and says nothing.

    Parameters
    ----------
    executable
        What `tvm.compile` made of a Relax module, or its library loaded again.
    target
        What it was compiled for.
    signature
        Its inputs and outputs.
    decisions
        One JSON object for each convolution, with `COLUMNS` and `WORDS` as keys.
    cuda_graph
        Whether to record and launch CUDA graphs; never if the environment variable `CUDA_GRAPH` is 0. You may set the
        attribute later.
    libraries
        Libraries that it calls, name -> version that it was made with.
    library
        The file that `executable` was loaded from, where it was just compiled into one.
    checks
        What is known of indices that inputs say; `executable` returns one more result for them.

    Attributes
    ----------
    comparison
        What comparing it with its source has shown; None if nothing was compared, and for a model that was loaded.
    verdict
        Whether it pays; None where nobody has asked.
    file
        The file that it was compiled from; None of a module.
    """

    def __init__(
        self,
        executable: tvm.runtime.Executable | tvm.runtime.Module,
        target: Target,
        signature: Signature,
        decisions: Sequence[dict[str, Any]],
        cuda_graph: bool = True,
        libraries: Mapping[str, str] | None = None,
        library: LibraryFile | None = None,
        checks: Sequence[IndexCheck] = (),
    ):
        self.executable, self.target, self.signature = executable, target, signature
        self.decisions = list(decisions)
        self.libraries, self.library, self.checks = dict(libraries or {}), library, tuple(checks)
        self.comparison: Comparison | None = None
        self.verdict: Verdict | None = None
        self.file: ModelFile | None = None
        provide(self.libraries)
        self.run_on(0)
        self.cuda_graph = cuda_graph and os.environ.get(CUDA_GRAPH) != "0"
        # A handler may call the model in the middle of its first call.
        self._lock = threading.RLock()
        self._has_warned: set[str] = set()

    def __call__(self, *inputs: Any) -> Any:
        """Run the model.

        Parameters
        ----------
        inputs
            torch tensors, NumPy arrays or other DLPack tensors, shaped as `signature` says, on `device`; or one dict
            that holds them by name. They are read in place; one that is not contiguous or not aligned to 64 bytes is
            copied, with one warning (NumPy does not align, so no warning for NumPy).

        Returns
        -------
        The outputs, of the type of the first input; a list where there are several; for a dict a dict, by the names of
        the outputs. They are the caller's own: no later call writes to them.

        Raises
        ------
        InputError
            The number of inputs, or the type, shape, element type or device of one, is wrong, or an index is out of
            range.
        BuildError
            This machine cannot run code for `target`, or the GPU is out of memory or lost to this process, or was used
            before a fork; or, on a GPU, the calling thread is in a call of the model already.
        """
        specs, is_named = self.signature.inputs, len(inputs) == 1 and isinstance(inputs[0], Mapping)
        values = self.signature.in_order(inputs[0] if is_named else inputs)
        libraries = [library_of(spec.name, value) for value, spec in zip(values, specs, strict=True)]
        # A plain loop: the warning in it counts stack frames to name the caller's line.
        arguments = []
        for library, value, spec in zip(libraries, values, specs, strict=True):
            arguments.append(self._argument(library, value, spec))
        # A fork waits for it, so that no child finds the lock held.
        runner = self._runner or CORE_SHARES.run(1, self._make_runner)
        stream = 0
        if isinstance(runner, CpuRunner):
            outputs = runner(arguments)
        else:
            runner.require_own_process()
            current = next((library for library in libraries if isinstance(library, Torch)), libraries[0])
            stream = current.stream(self.device)
            outputs = runner(arguments, libraries[0], stream, self.cuda_graph)
            if runner.obstacle:
                slower = "so its kernels are launched one by one, which takes longer"
                self._warn("graph", f"the model cannot be recorded as a CUDA graph ({runner.obstacle}), {slower}", 3)
        if self.checks:
            self._require_in_range(runner, outputs.pop(), stream)
        results = [libraries[0].give_back(output) for output in outputs]
        return self.signature.returned(results, is_named)

    def run_on(self, index: int) -> None:
        """Run on this machine's GPU of that number from now on, which must be like its first; of a CPU nothing changes.

        Raises
        ------
        UsageError
            There is no such GPU, or it is another kind.
        """
        require_alike(index)
        self.device = device_of(self.target, index)
        self._device_name = f"{self.device.type}:{self.device.index}"
        self._runner: CpuRunner | GpuRunner | None = None

    def save(self, directory: str | Path) -> Path:
        """Write the model to `directory`, in the place of an older artifact of that name; returns the directory.

        Files in it that are not of an artifact stay as they are.

        Raises
        ------
        ArtifactError
            `directory` exists and is no artifact, is a link, cannot be written, or the model was loaded from one.
        BuildError
            The library cannot be linked.
        """
        return write(self, {"": self}, directory)

    def _require_in_range(self, runner: CpuRunner | GpuRunner, bounds: Any, stream: int) -> None:
        """Raise InputError where the indices of a call were not; `bounds` is what the code returned of them."""
        if isinstance(runner, CpuRunner):
            found = bounds.numpy()
        elif runner.is_capturing(stream):
            return
        else:
            with as_sentences():
                found = on_host(bounds, self.device, stream)
        require_in_range(self.checks, found)

    def _make_runner(self) -> CpuRunner | GpuRunner:
        with self._lock:
            if self._runner is None:
                obstacle = why_not_here(self.target)
                if obstacle:
                    hint = "save it and load it where it fits"
                    raise BuildError("model", f"this machine cannot run it: {obstacle}", hint=hint)
                if self.device.type == "cpu":
                    self._runner = CpuRunner(self.executable, self.target)
                else:
                    signature = with_bounds(self.signature, self.checks)
                    self._runner = GpuRunner(self.executable, self.device, signature)
            return self._runner

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
        if not isinstance(library, NumPy):
            wrong = f"is not contiguous and aligned to {ALIGNMENT} bytes"
            self._warn("input", f"input {spec.name} {wrong}, so it is copied each time", 4)
        if self.device.type == "cpu":
            return library.aligned_copy(value)
        with as_sentences():
            return library.aligned_copy(value)

    def _warn(self, subject: str, message: str, stacklevel: int) -> None:
        """Warn once of each subject; `stacklevel` 3 is the caller of this method's caller."""
        if subject not in self._has_warned:
            self._has_warned.add(subject)
            warnings.warn(message, stacklevel=stacklevel)

    def report(self) -> list[dict[str, Any]]:
        """What was chosen for each convolution and why, one object with keys `COLUMNS` and `WORDS` each.

        Times are microseconds. On a GPU the key ``kernels`` has the names under which a profiler shows the layer's
        kernels.
        """
        return [dict(decision) for decision in self.decisions]

    def report_text(self) -> str:
        """`report` as a table, and the verdict."""
        return plain_text(tables.layers("", self.report()), *self._verdict_lines())

    def _verdict_lines(self) -> list[str]:
        return [] if self.verdict is None else [self.verdict.line()]

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(str, each)) for each in (self.signature.inputs, self.signature.outputs))
        layers = f"{len(self.decisions)} layers"
        head = f"CompiledModel({inputs} -> {outputs}; {layers}, {self._device_name})"
        return "\n".join([head, *self._verdict_lines()])

    def _repr_html_(self) -> str:
        return tables.layers(repr(self), self.report()).html()
