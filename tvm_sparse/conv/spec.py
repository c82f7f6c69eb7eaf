"""ConvSpec: everything about a 2-D convolution except the values of its weights.

Names are the field's: batch N, input channels C, input height H and width W, output channels K,
kernel height R and width S. Layouts are NCHW for tensors and KCRS for weights.
"""

import dataclasses
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from tvm_sparse.conv.codes import CODES
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.storage import STORAGE
from tvm_sparse.conv.volumes import Volumes
from tvm_sparse.errors import ModelError

# Elements of one tensor: compiled code computes addresses in 32-bit integers.
MAX_ELEMENTS = 2**31 - 1
# The least code of inputs that are no codes.
NO_CODES = 1


@dataclass(frozen=True, order=True)
class ConvSpec:
    """A 2-D convolution with its fused epilogue ``y = relu(conv(x, w) + bias + residual)``.

    Parameters
    ----------
    n, c, h, w
        Input shape (N, C, H, W).
    k, r, s
        Output channels and kernel height and width; the weight is (K, C / groups, R, S).
    stride, dilation
        Along H and W.
    padding
        Zeros added (top, left, bottom, right).
    groups
        C and K are split into this many independent parts; ``groups == c == k`` is depthwise.
    bias, residual, relu
        Which parts of the epilogue are fused. The bias is (K,), the residual has the output's shape.
    relu_max
        The largest value that the ReLU lets pass, 6 for ReLU6; infinity for a plain one.
    dtype
        In which input, bias, residual and output are stored (`storage`); weights have numbers of this type. Sums are
        float32.
    least
        Of a quantised one, whose input has only integers from `least`, 0 or less, up to `least` + 255, and whose weight
        those from -128 to 127; 1 where that is not known.
    volumes
        How it reads the maps of volumes in place, which are its input then; None where that is as it says.

    Raises
    ------
    ModelError
        A value that no convolution can have; the sentence names it.
    """

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    bias: bool = False
    residual: bool = False
    relu: bool = False
    dtype: str = FLOAT32
    # Older lines of logs lack it.
    relu_max: float = field(default_factory=lambda: math.inf, metadata={"optional": True})
    least: int = field(default_factory=lambda: NO_CODES, metadata={"optional": True})
    volumes: Volumes | None = field(default_factory=lambda: None, metadata={"optional": True})

    def __post_init__(self) -> None:
        where = f"convolution {self.key}"
        for name in ("n", "c", "h", "w", "k", "r", "s", "groups"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ModelError(where, f"{name} is not usable", value, "an integer of 1 or more")
        for name, length, least, allowed in (
            ("stride", 2, 1, "two integers of 1 or more"),
            ("dilation", 2, 1, "two integers of 1 or more"),
            ("padding", 4, 0, "(top, left, bottom, right), each 0 or more"),
        ):
            values = getattr(self, name)
            if len(values) != length or any(type(value) is not int or value < least for value in values):
                raise ModelError(where, f"{name} is not usable", values, allowed)
        if type(self.relu_max) not in (int, float) or not self.relu_max > 0 or (self.is_clipped and not self.relu):
            raise ModelError(where, "relu_max is not usable", self.relu_max, "a number above 0, of a ReLU")
        if type(self.least) is not int or not -CODES < self.least <= NO_CODES:
            raise ModelError(where, "least is not usable", self.least, f"{1 - CODES} to 0, or {NO_CODES} for none")
        if self.volumes is not None and not self._has_volumes:
            raise ModelError(where, "volumes are not usable", self.volumes, "maps that its images and channels divide")
        if self.c % self.groups or self.k % self.groups:
            raise ModelError(
                where, "channels do not split into the groups", self.groups, f"a divisor of {self.c} and {self.k}"
            )
        if self.dtype not in STORAGE:
            hint = "convert the model to float32"
            raise ModelError(where, "element type is not supported", self.dtype, ", ".join(STORAGE), hint)
        if self.out_h < 1 or self.out_w < 1:
            raise ModelError(
                where, "the kernel is larger than the padded input", f"output {self.out_h}x{self.out_w}", "1x1 or more"
            )
        for name, shape in (("padded input", self.padded_shape), ("output", self.output_shape)):
            if math.prod(shape) > MAX_ELEMENTS:
                found, allowed = f"{math.prod(shape)} elements", f"up to {MAX_ELEMENTS}"
                raise ModelError(where, f"the {name} is too large", found, allowed, "use a smaller input or batch")

    @property
    def _has_volumes(self) -> bool:
        """Whether `volumes` can be its input."""
        found = self.volumes
        if not isinstance(found, Volumes) or any(type(each) is not int for each in found):
            return False
        is_whole = min(found[:5]) > 0 and not self.n % found.outputs and not self.c % (found.taps * self.groups)
        return is_whole and self.dtype == FLOAT32

    @property
    def is_clipped(self) -> bool:
        """Whether its ReLU has a largest value."""
        return self.relu_max < math.inf

    @property
    def is_quantised(self) -> bool:
        """Whether its input and weight are known to be integers of eight bits."""
        return self.least != NO_CODES

    @cached_property
    def padded_shape(self) -> tuple[int, int, int, int]:
        """(N, C, H + top + bottom, W + left + right)."""
        top, left, bottom, right = self.padding
        return (self.n, self.c, self.h + top + bottom, self.w + left + right)

    @cached_property
    def out_h(self) -> int:
        """Height of the output."""
        return _outputs(self.padded_shape[2], self.r, self.stride[0], self.dilation[0])

    @cached_property
    def out_w(self) -> int:
        """Width of the output."""
        return _outputs(self.padded_shape[3], self.s, self.stride[1], self.dilation[1])

    @property
    def symmetric_padding(self) -> tuple[int, int] | None:
        """Padding (height, width) that gives the same outputs where both sides get it; None: there is none.

        At the bottom and right that may be more or less than `padding` has, as long as no output reads the difference.
        """
        top, left = self.padding[:2]
        out_h = _outputs(self.h + 2 * top, self.r, self.stride[0], self.dilation[0])
        out_w = _outputs(self.w + 2 * left, self.s, self.stride[1], self.dilation[1])
        return (top, left) if (out_h, out_w) == (self.out_h, self.out_w) else None

    @property
    def input_shape(self) -> tuple[int, int, int, int]:
        """(N, C, H, W), of volumes those of their maps."""
        shape = (self.n, self.c, self.h, self.w)
        return shape if self.volumes is None else self.volumes.shape(*shape)

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        """(K, C / groups, R, S)."""
        return (self.k, self.c // self.groups, self.r, self.s)

    @cached_property
    def output_shape(self) -> tuple[int, int, int, int]:
        """(N, K, OH, OW)."""
        return (self.n, self.k, self.out_h, self.out_w)

    @property
    def output_bytes(self) -> int:
        """Of the output, as it is stored."""
        return STORAGE[self.dtype].size_bytes * math.prod(self.output_shape)

    @property
    def pixels(self) -> int:
        """Pixels of all outputs, N * OH * OW: the rows of the matrix product that a convolution is (implicit GEMM)."""
        return self.n * self.out_h * self.out_w

    @cached_property
    def traffic_bytes(self) -> int:
        """Bytes that a kernel must move: input, output and residual, once each."""
        outputs = math.prod(self.output_shape) * (2 if self.residual else 1)
        return STORAGE[self.dtype].size_bytes * (math.prod(self.input_shape) + outputs)

    @property
    def dense_flops(self) -> int:
        """Floating-point operations of the dense convolution, 2 per multiply-add."""
        return self.sparse_flops(math.prod(self.weight_shape))

    def sparse_flops(self, nnz: int) -> int:
        """Floating-point operations for `nnz` non-zero weights, 2 per multiply-add."""
        return 2 * nnz * self.pixels

    @property
    def key(self) -> str:
        """A short text that identifies it, for example ``n1c64h56w56-k64r3s3-st1x1-p1.1.1.1-d1x1-g1-br``.

        With a ReLU6 it ends in ``br6``, and where tensors are not float32 in their type, such as ``-float16``.
        """
        epilogue = "".join(letter for letter, on in (("b", self.bias), ("a", self.residual), ("r", self.relu)) if on)
        epilogue += f"{self.relu_max:g}" if self.is_clipped else ""
        text = (
            f"n{self.n}c{self.c}h{self.h}w{self.w}-k{self.k}r{self.r}s{self.s}"
            f"-st{'x'.join(map(str, self.stride))}-p{'.'.join(map(str, self.padding))}"
            f"-d{'x'.join(map(str, self.dilation))}-g{self.groups}"
        )
        text = f"{text}-{epilogue}" if epilogue else text
        text = f"{text}-codes{self.least}" if self.is_quantised else text
        text = f"{text}-v{'.'.join(map(str, self.volumes))}" if self.volumes is not None else text
        return text if self.dtype == FLOAT32 else f"{text}-{self.dtype}"

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values; `from_json` reads them back. What is usual is left out."""
        # Not `asdict`, which copies each value: logs have thousands.
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        if not self.is_clipped:
            del values["relu_max"]
        if not self.is_quantised:
            del values["least"]
        if self.volumes is None:
            del values["volumes"]
        return values

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "ConvSpec":
        """Rebuild a spec from `to_json`'s output.

        Raises
        ------
        ModelError
            A field is missing, unknown or has no valid value.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(data, dict) or not set(data) <= names:
            raise ModelError("convolution", "unknown fields", data, ", ".join(sorted(names)))
        try:
            values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
            if values.get("volumes") is not None:
                values["volumes"] = Volumes(*values["volumes"])
            return cls(**values)
        except TypeError as error:
            raise ModelError("convolution", str(error), data, "the fields of ConvSpec") from None


def _outputs(size: int, kernel: int, stride: int, dilation: int) -> int:
    """Along one axis, of an input of `size` with its padding."""
    return (size - dilation * (kernel - 1) - 1) // stride + 1


def check_weight(layer: str, weight: np.ndarray) -> None:
    """Raise ModelError unless `weight` is float32 and finite."""
    if weight.dtype != np.float32:
        raise ModelError(
            f"layer {layer}", "weight has an unsupported element type", weight.dtype, "float32", "convert the model"
        )
    check_finite(layer, "weight", weight)


def check_finite(layer: str, name: str, array: np.ndarray) -> None:
    """Raise ModelError where `array`, called `name` in the message, holds NaN or infinity."""
    finite = np.isfinite(array)
    if not finite.all():
        index = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise ModelError(
            f"layer {layer}", f"{name}{list(index)} is not finite", array[index], "finite numbers", "repair the model"
        )
