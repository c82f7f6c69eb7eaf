"""A tensor from NCHW to NHWC or back, by cuDNN."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tvm_sparse.conv.storage import STORAGE
from tvm_sparse.cudnn.api import Cudnn, CudnnError
from tvm_sparse.cudnn.convolution import ONE, ZERO, Shape, strides_of
from tvm_sparse.errors import BuildError, typed


@dataclass(frozen=True)
class LayoutChange:
    """Of a tensor (N, C, H, W), which lies so in memory before or after; `to` is what it becomes."""

    shape: Shape
    dtype: str
    to: Literal["nchw", "nhwc"]

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the arrays that the call takes."""
        return ("x", "y")

    @property
    def moved_bytes(self) -> int:
        """Read and written."""
        return 2 * STORAGE[self.dtype].size_bytes * math.prod(self.shape)

    def to_text(self) -> str:
        """As JSON; `from_text` reads it back."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> "LayoutChange":
        """The change that `to_text` wrote."""
        values: dict[str, Any] = json.loads(text)
        n, c, h, w = values.pop("shape")
        return cls((n, c, h, w), **values)


class Transposition:
    """What `change` says, with a handle of one GPU; not for two threads at once.

    BuildError where cuDNN fails; also from calls.
    """

    def __init__(self, cudnn: Cudnn, handle: int, change: LayoutChange):
        self._cudnn, self._handle, self._change = cudnn, handle, change
        layouts = ("nchw", "nhwc") if change.to == "nhwc" else ("nhwc", "nchw")
        try:
            self._x, self._y = (
                cudnn.tensor(change.shape, strides_of(change.shape, layout), change.dtype) for layout in layouts
            )
        except CudnnError as error:
            raise self._failure(error) from error

    def __call__(self, stream: int, addresses: Mapping[str, int]) -> None:
        """Put the work on a stream; `addresses` of the arrays x and y."""
        try:
            self._cudnn.call("cudnnSetStream", self._handle, stream)
            arrays = (ONE, self._x, addresses["x"], ZERO, self._y, addresses["y"])
            self._cudnn.call("cudnnTransformTensor", self._handle, *arrays)
        except CudnnError as error:
            raise self._failure(error) from error

    def _failure(self, error: CudnnError) -> BuildError:
        change = self._change
        where = f"{change.dtype} tensor {change.shape} to {change.to} by cuDNN"
        return BuildError(where, f"cuDNN {self._cudnn.version} fails, {error}", hint=f"see {typed('doctor')}")
