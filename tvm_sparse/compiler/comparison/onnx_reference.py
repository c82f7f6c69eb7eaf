"""An ONNX file, in ONNX Runtime or in the reference implementation of the package onnx."""

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tvm_sparse.compiler.comparison.onnx_nodes import NodeSearch
from tvm_sparse.compiler.comparison.onnx_process import OnnxProcess
from tvm_sparse.compiler.comparison.reference import Alone, Answer, NotCompared, Settled, Way, in_float32
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.frontend.onnx.model import fix_shapes, load_onnx
from tvm_sparse.frontend.onnx.rewriting import half

# The reference implementation is slow: what it is given at most, in bytes of a file, and for how long.
EVALUATOR_BYTES = 16 << 20
EVALUATOR_S = 10.0
NAMES = {"runtime": "ONNX Runtime", "evaluator": "ONNX's reference implementation"}


class OnnxReference:
    """The model in `path`, its inputs given `shapes` and `batch` as `ModelSource.relax_module` takes them."""

    def __init__(self, path: Path, shapes: Mapping[str, Sequence[int]] | None, batch: int | None):
        self.where, self._path, self._shapes, self._batch = str(path), path, dict(shapes or {}), batch
        self._process = OnnxProcess()
        # One thread, in which all requests wait for each other.
        self._thread = ThreadPoolExecutor(1)
        # What has run the model, if anything.
        self._engine = "runtime"
        self._has_runtime = importlib.util.find_spec("onnxruntime") is not None
        if self._has_runtime and batch is None:
            # While the model is imported.
            self._thread.submit(self._process.open, "runtime", path)

    def ways(self) -> Iterator[Way]:
        """ONNX Runtime with the file as it is, or in float32; the reference implementation where it is small."""
        if self._has_runtime and self._batch is None:
            yield self._way("runtime", lambda: self._path)
        if self._has_runtime and (self._batch is not None or self._is_half):
            yield self._way("runtime", lambda: self._file)
        if self._path.stat().st_size <= EVALUATOR_BYTES:
            self._engine = "evaluator"
            yield self._way("evaluator", lambda: self._file)
        elif not self._has_runtime:
            raise NotCompared("ONNX Runtime is not installed, and the model is too large for ONNX's own implementation")

    def _way(self, engine: str, path: Callable[[], Path]) -> Way:
        limit_s = EVALUATOR_S if engine == "evaluator" else None
        return Way(NAMES[engine], lambda inputs: self._process.run(engine, path(), self._cast(inputs, path()), limit_s))

    def _cast(self, inputs: Sequence[np.ndarray], path: Path) -> list[np.ndarray]:
        """Inputs as the file at `path` takes them: neither NumPy's files nor ONNX Runtime know bfloat16."""
        is_widened = path != self._path and self._is_half
        return in_float32(inputs) if is_widened else list(inputs)

    @cached_property
    def _is_half(self) -> bool:
        return half.precision_of(self.where, load_onnx(self._path)).dtype != FLOAT32

    @cached_property
    def model(self) -> Any:
        """The `onnx.ModelProto` in float32, its shapes fixed."""
        model = load_onnx(self._path)
        half.widen(model)
        fix_shapes(self.where, model, self._shapes, self._batch)
        for value in model.graph.output:
            # They may be those of another batch.
            value.type.tensor_type.ClearField("shape")
        del model.graph.value_info[:]
        return model

    @cached_property
    def _file(self) -> Path:
        """`model` as a file."""
        return self._process.save(self.model, "model.onnx")

    def widened(self) -> Way | None:
        """In float32 where the file is in half precision and ONNX Runtime runs that."""
        return self._way("runtime", lambda: self._file) if self._has_runtime and self._is_half else None

    def begin(self, work: Callable[[], Answer]) -> Callable[[], Answer]:
        """Beside whatever this process does meanwhile."""
        return self._thread.submit(work).result

    def settle(self, inputs: Sequence[np.ndarray], alone: Alone, end_s: float) -> Settled:
        """Every node alone, on what the nodes before it gave in ONNX Runtime; see `NodeSearch`."""
        return NodeSearch(self._process, self._engine, self.model, in_float32(inputs), alone, end_s).run()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._thread.shutdown()
        self._process.close()
