"""Runs ONNX files in a process of their own: whatever a model does there, this process goes on."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvm_sparse.compiler.comparison.reference import NotCompared, Refused
from tvm_sparse.errors import MAX_QUOTE, BuildError, first_line, printable
from tvm_sparse.files.temporary import TemporaryFolder
from tvm_sparse.frontend.optional_imports import onnx, require
from tvm_sparse.measure import memory
from tvm_sparse.measure.worker import Worker


class OnnxProcess:
    """A process that runs models with one of `onnx_worker.ENGINES`, and a folder for models and arrays."""

    command: Sequence[str] = (sys.executable, "-m", "tvm_sparse.compiler.comparison.onnx_worker")
    # For reading or running a model once.
    time_limit_s = 60.0

    def __init__(self) -> None:
        self._folder = TemporaryFolder()
        self._worker = Worker({}, memory.total_bytes() / 2, self.command)

    def path(self, name: str) -> Path:
        """Of a file in the folder."""
        return Path(self._folder.name, name)

    def save(self, model: Any, name: str) -> Path:
        """Write an `onnx.ModelProto` into the folder.

        NotCompared where its weights take more than one such file can hold.
        """
        path = self.path(name)
        encode_error = require("google.protobuf.message", "onnx").EncodeError
        try:
            onnx.save(model, path)
        except (ValueError, encode_error) as error:
            raise NotCompared(f"the model cannot be written again ({first_line(error)})") from error
        return path

    def open(self, engine: str, model: Path) -> None:
        """Read a file; see `run` for errors."""
        self._ask({"action": "open", "engine": engine, "path": str(model)}, self.time_limit_s)

    def run(
        self, engine: str, model: Path, inputs: Sequence[np.ndarray], time_limit_s: float | None = None
    ) -> list[np.ndarray]:
        """What a file makes of its inputs, in their order.

        Refused where the engine cannot read the model, or not run it on these inputs. NotCompared where the process
        ended, or was ended as it took too long or too much memory.
        """
        given, made = self.path("inputs.npz"), self.path("outputs.npz")
        try:
            np.savez(given, *inputs)
        except OSError as error:
            raise NotCompared(f"its inputs cannot be written ({first_line(error)})") from error
        request = {"action": "run", "engine": engine, "path": str(model), "inputs": str(given), "outputs": str(made)}
        self._ask(request, time_limit_s or self.time_limit_s)
        with np.load(made, allow_pickle=False) as arrays:
            return [arrays[name] for name in arrays.files]

    def _ask(self, request: dict[str, Any], time_limit_s: float) -> None:
        try:
            answer = self._worker.ask(request, time_limit_s)
        except BuildError as error:
            raise NotCompared(str(error)) from error
        if "timeout" in answer:
            raise NotCompared(f"the source ran for more than {time_limit_s:.3g} s")
        if "failure" in answer:
            text = printable(answer["failure"])[:MAX_QUOTE]
            # The process says so itself, and goes on.
            is_alive = text.startswith("RuntimeError: ")
            raise Refused(text.removeprefix("RuntimeError: ")) if is_alive else NotCompared(text)

    def kill(self) -> None:
        """End the process, from any thread."""
        self._worker.kill()

    def close(self) -> None:
        """End the process and remove the folder."""
        self._worker.stop()
        self._folder.cleanup()
