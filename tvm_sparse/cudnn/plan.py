"""How cuDNN is to compute one convolution: what travels from a schedule to the call, as text in the kernel's code."""

import json
import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.staged_input import StagedInput
from tvm_sparse.conv.storage import STORAGE, is_half

# cuDNN's numbers of the algorithms that are offered. The others are not: Winograd's and the FFTs mix neighbouring
# inputs, so an output may be wrong by a fraction of inputs that it does not depend on, which no bound of ours admits,
# and the explicit GEMM writes the matrix that the implicit ones do without.
ALGORITHMS = {"implicit_gemm": 0, "implicit_precomp_gemm": 1}
# The algorithm that can fuse an epilogue without a ReLU, and compute in TF32.
PRECOMP = "implicit_precomp_gemm"
# cuDNN's own suggestions for a convolution with its epilogue, by their ranks: 9.19 has up to 40.
SUGGESTIONS = {f"suggested_{rank}": rank for rank in range(40)}
# What cuDNN may use beside room for copies of input, weight and output in another layout, with channels filled up.
_WORKSPACE_BYTES, _COPIES = 8 << 20, 2
_ALIGNMENT = 256


@dataclass(frozen=True)
class Plan:
    """One way to compute a convolution.

    * `layout`: in which cuDNN computes.
    * `algorithm`: a key of `ALGORITHMS`, or of `SUGGESTIONS`, which have a fused epilogue and no volumes.
    * `epilogue`: bias, residual and ReLU ``fused`` with the convolution, or ``apart``, each by a call of its own.
    * `tf32`: whether float32 inputs may be rounded to TF32, for the tensor cores.
    * `converts`: whether input, residual and output are NCHW, so that ``nhwc`` transposes them before and after.
      Otherwise they are as `layout` says.
    * `staged`: how a kernel of ours writes the input anew before `spec`, whose input that is.
    * `reads_nhwc`: whether the input is NHWC although residual and output may not be: another kernel has written it so.
    """

    spec: ConvSpec
    layout: Literal["nchw", "nhwc"]
    algorithm: str
    epilogue: Literal["fused", "apart"]
    tf32: bool
    converts: bool = True
    staged: StagedInput | None = None
    reads_nhwc: bool = False

    def to_text(self) -> str:
        """As JSON; `from_text` reads it back."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> "Plan":
        """The plan that `to_text` wrote."""
        values: dict[str, Any] = json.loads(text)
        staged = values["staged"] and StagedInput.from_json(values["staged"])
        return cls(**{**values, "spec": ConvSpec.from_json(values["spec"]), "staged": staged})

    @property
    def after_staging(self) -> "Plan":
        """What the library is told."""
        return replace(self, staged=None, reads_nhwc=True) if self.staged is not None else self

    @property
    def suggestion(self) -> int | None:
        """The rank of cuDNN's suggestion; None where it chooses itself."""
        return SUGGESTIONS.get(self.algorithm)

    @property
    def unsuggested(self) -> "Plan":
        """The plan by which cuDNN chooses itself: suggestions are for one convolution on one machine."""
        return replace(self, algorithm=PRECOMP) if self.suggestion is not None else self

    @property
    def input_shape(self) -> tuple[int, int, int, int]:
        """(N, C, H, W) of the input as it is given."""
        return (self.staged.spec if self.staged is not None else self.spec).input_shape

    def layout_of(self, name: str) -> Literal["nchw", "nhwc", "ncdhw"]:
        """Of ``x``, ``residual`` or ``y`` as the call takes it."""
        if name == "x" and (self.staged is not None or self.reads_nhwc):
            return self.staged.layout if self.staged is not None else "nhwc"
        return "nchw" if self.converts else self.layout

    @property
    def read_shape(self) -> tuple[int, int, int, int]:
        """(N, C, H, W) of what the convolution itself reads."""
        return self.spec.input_shape if self.spec.symmetric_padding else self.spec.padded_shape

    @property
    def is_fused(self) -> bool:
        """Whether there is an epilogue that the convolution's own call computes."""
        spec = self.spec
        return self.epilogue == "fused" and (spec.bias or spec.residual or spec.relu)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the arrays that the call takes; a fused epilogue has a bias also where the convolution has none."""
        bias = ("bias",) if self.spec.bias or self.is_fused else ()
        residual = ("residual",) if self.spec.residual else ()
        return ("x", "weight", *bias, *residual, "scratch", "y")

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the arrays that the call reads, in the order of `arguments`."""
        return tuple(name for name in self.arguments if name not in ("scratch", "y"))

    @property
    def element_bytes(self) -> int:
        """Of an element of any tensor."""
        return STORAGE[self.spec.dtype].size_bytes

    @property
    def math(self) -> str:
        """How it is computed, as `Cudnn.convolution` calls it; half precision always on tensor cores."""
        if is_half(self.spec.dtype):
            return "tensor_cores"
        return "tf32" if self.tf32 else "float32"

    @property
    def is_padded(self) -> bool:
        """Whether the input is padded in a copy: cuDNN itself pads both sides alike."""
        return self.spec.symmetric_padding is None

    @property
    def workspace_bytes(self) -> int:
        """What cuDNN may use at most."""
        # At least what a padded copy would be.
        shapes = (self.spec.padded_shape, self.spec.weight_shape, self.spec.output_shape)
        return _WORKSPACE_BYTES + _COPIES * self.element_bytes * sum(map(math.prod, shapes))

    @property
    def scratch(self) -> dict[str, int]:
        """Name -> offset in bytes of what lies in the scratch memory: staged arrays, ``workspace``, and its ``end``."""
        spec, sizes = self.spec, {}
        if self.layout != self.layout_of("x") or self.is_padded:
            sizes["x"] = math.prod(self.read_shape)
        if self.layout != self.layout_of("y"):
            sizes["y"] = math.prod(spec.output_shape)
            if spec.residual and self.is_fused:
                sizes["residual"] = math.prod(spec.output_shape)
        offsets, end = {}, 0
        for name, size in sizes.items():
            offsets[name] = end
            end += -(-size * self.element_bytes // _ALIGNMENT) * _ALIGNMENT
        return {**offsets, "workspace": end, "end": end + self.workspace_bytes}
