"""One convolution by cuDNN: its descriptors, made once, and its calls."""

import ctypes
from collections.abc import Mapping, Sequence

from tvm_sparse.conv.volumes import Volumes
from tvm_sparse.cudnn.api import CLIPPED_RELU, IDENTITY, RELU, TYPES, Cudnn, CudnnError
from tvm_sparse.cudnn.graph import ConvolutionGraph, Tensor
from tvm_sparse.cudnn.plan import ALGORITHMS, Plan
from tvm_sparse.errors import BuildError

# Factors of what is computed and of what lay in the output before.
ONE, ZERO = (ctypes.byref(ctypes.c_float(value)) for value in (1.0, 0.0))
Shape = tuple[int, int, int, int]


def strides_of(shape: Shape, layout: str = "nchw") -> Shape:
    """Of a tensor (N, C, H, W) that is dense in memory, in elements."""
    _, c, h, w = shape
    return (c * h * w, h * w, w, 1) if layout == "nchw" else (h * w * c, 1, w * c, c)


def _strides_in_depth(shape: Sequence[int]) -> tuple[int, ...]:
    """Of a tensor (N, C, D, H, W) that lies as (N, D, H, W, C) in memory."""
    _, c, d, h, w = shape
    return (d * h * w * c, 1, h * w * c, w * c, c)


class Convolution:
    """What `plan` says, with a handle of one GPU; not for two threads at once.

    `needed_bytes` is the workspace that cuDNN asks for. BuildError where cuDNN does not compute it, or needs more
    workspace than the plan has; also from calls.
    """

    def __init__(self, cudnn: Cudnn, handle: int, plan: Plan):
        self._cudnn, self._handle, self._plan, self._offsets = cudnn, handle, plan, plan.scratch
        try:
            self._describe()
        except CudnnError as error:
            raise self._failure(error) from error

    def __call__(self, stream: int, addresses: Mapping[str, int]) -> None:
        """Put the work on a stream; `addresses` of the arrays that ``plan.arguments`` names."""
        staged = {f"staged {name}": addresses["scratch"] + offset for name, offset in self._offsets.items()}
        try:
            self._cudnn.call("cudnnSetStream", self._handle, stream)
            self._run({**addresses, **staged})
        except CudnnError as error:
            raise self._failure(error) from error

    def _describe(self) -> None:
        cudnn, plan, spec = self._cudnn, self._plan, self._plan.spec
        shape = plan.read_shape
        strides = strides_of(shape, plan.layout)
        top, left = (0, 0) if spec.symmetric_padding else spec.padding[:2]
        dtype = spec.dtype
        self._x, self._y = (
            cudnn.tensor(each, strides_of(each, plan.layout_of(name)), dtype)
            for name, each in (("x", spec.input_shape), ("y", spec.output_shape))
        )
        # What is copied, in its layout, and where in what the convolution reads the input goes.
        self._own_x = cudnn.tensor(shape, strides, dtype)
        self._own_y = cudnn.tensor(spec.output_shape, strides_of(spec.output_shape, plan.layout), dtype)
        self._inner_x = cudnn.tensor(spec.input_shape, strides, dtype)
        self._inner_bytes = plan.element_bytes * (top * strides[2] + left * strides[3])
        self._bias = cudnn.tensor((1, spec.k, 1, 1), (spec.k, 1, 1, 1), dtype)
        self._relu, self._identity = cudnn.activation(RELU), cudnn.activation(IDENTITY)
        # cuDNN fuses a plain ReLU only.
        self._last = cudnn.activation(CLIPPED_RELU, spec.relu_max) if spec.is_clipped else self._relu
        self._conv_x, self._conv_y, self._conv_bias = self._own_x, self._own_y, self._bias
        padding = spec.symmetric_padding or (0, 0)
        if plan.suggestion is not None:
            self._kernel, self.needed_bytes = self._suggested(plan.suggestion, padding)
        elif spec.volumes is None:
            self._weight = cudnn.filters(spec.weight_shape, plan.layout, dtype)
            self._convolution = cudnn.convolution(padding, spec.stride, spec.dilation, spec.groups, plan.math)
        else:
            self._describe_volumes(spec.volumes, padding)
        if plan.suggestion is None:
            descriptors = (self._conv_x, self._weight, self._convolution, self._conv_y)
            self.needed_bytes = cudnn.workspace_bytes(self._handle, *descriptors, ALGORITHMS[plan.algorithm])
        if self.needed_bytes > plan.workspace_bytes:
            hint = "tune the layer again, so that another kernel is chosen"
            allowed = f"up to {plan.workspace_bytes} bytes"
            raise BuildError(
                self._where, "cuDNN needs more workspace than is planned for it", self.needed_bytes, allowed, hint
            )

    def _suggested(self, rank: int, padding: tuple[int, int]) -> tuple[int, int]:
        """cuDNN's suggestion of that rank, or its last one, and the workspace that it needs."""
        plan, spec = self._plan, self._plan.spec
        weight, out = (spec.k, spec.c // spec.groups, spec.r, spec.s), spec.output_shape
        shapes = {"x": plan.read_shape, "weight": weight, "y": out}
        if plan.is_fused:
            shapes |= {"bias": (1, spec.k, 1, 1)} | ({"residual": out} if spec.residual else {})
        tensors = {name: Tensor(shape, strides_of(shape, plan.layout)) for name, shape in shapes.items()}
        sizes = {"padding": padding, "stride": spec.stride, "dilation": spec.dilation}
        relu = plan.is_fused and spec.relu
        self._graph = ConvolutionGraph(self._cudnn, self._handle, tensors, TYPES[spec.dtype], relu, **sizes)
        found = self._graph.suggestions(rank + 1)
        if not found:
            raise CudnnError("cudnnBackendGetAttribute: no kernel is suggested")
        return self._graph.planned(found[-1])

    def _describe_volumes(self, volumes: Volumes, padding: tuple[int, int]) -> None:
        """What the convolution itself is told of volumes, whose maps lie behind each other in NHWC."""
        cudnn, plan, spec = self._cudnn, self._plan, self._plan.spec
        count, (_, c, h, w), k = spec.n // volumes.outputs, spec.input_shape, spec.k
        self._conv_x, self._conv_y, self._conv_bias = (
            cudnn.tensor(shape, _strides_in_depth(shape), spec.dtype)
            for shape in (
                (count, c, volumes.size, h, w),
                (count, k, volumes.outputs, spec.out_h, spec.out_w),
                (1, k, 1, 1, 1),
            )
        )
        kernel = (k, c // spec.groups, volumes.taps, spec.r, spec.s)
        self._weight = cudnn.filters(kernel, plan.layout, spec.dtype)
        pads, stride = (volumes.before, *padding), (volumes.stride, *spec.stride)
        dilation = (volumes.dilation, *spec.dilation)
        self._convolution = cudnn.convolution(pads, stride, dilation, spec.groups, plan.math)

    def _run(self, at: Mapping[str, int]) -> None:
        plan, spec = self._plan, self._plan.spec
        x, y, residual = (at.get(f"staged {name}", at.get(name)) for name in ("x", "y", "residual"))
        assert x is not None and y is not None
        if plan.is_padded:
            self._call("cudnnSetTensor", self._own_x, x, ZERO)
        if x != at["x"]:
            self._copy(self._x, at["x"], self._inner_x, x + self._inner_bytes)
        if residual is not None and residual != at["residual"]:
            self._copy(self._y, at["residual"], self._own_y, residual)
        if plan.suggestion is not None:
            read = {name: at[name] for name in ("weight", "bias") if name in at}
            given = {**read, "x": x, "y": y, **({"residual": residual} if residual is not None else {})}
            self._graph.run(self._kernel, given, at["staged workspace"])
        else:
            self._convolve(x, y, residual, at)
        if y != at["y"]:
            self._copy(self._own_y, y, self._y, at["y"])
        if not plan.is_fused:
            self._add_epilogue(at)
        elif spec.is_clipped:
            self._activate(at["y"])

    def _convolve(self, x: int, y: int, residual: int | None, at: Mapping[str, int]) -> None:
        plan, spec = self._plan, self._plan.spec
        workspace = (ALGORITHMS[plan.algorithm], at["staged workspace"], plan.workspace_bytes)
        convolution = (ONE, self._conv_x, x, self._weight, at["weight"], self._convolution, *workspace)
        if plan.is_fused:
            # What is added: the residual, or nothing, for which cuDNN takes the output.
            added = (ONE, self._conv_y, residual) if spec.residual else (ZERO, self._conv_y, y)
            activation = self._relu if spec.relu else self._identity
            arguments = (*convolution, *added, self._conv_bias, at["bias"], activation, self._conv_y, y)
            self._call("cudnnConvolutionBiasActivationForward", *arguments)
        else:
            self._call("cudnnConvolutionForward", *convolution, ZERO, self._conv_y, y)

    def _add_epilogue(self, at: Mapping[str, int]) -> None:
        spec, y = self._plan.spec, at["y"]
        if spec.bias:
            self._call("cudnnAddTensor", ONE, self._bias, at["bias"], ONE, self._y, y)
        if spec.residual:
            self._call("cudnnAddTensor", ONE, self._y, at["residual"], ONE, self._y, y)
        if spec.relu:
            self._activate(y)

    def _activate(self, y: int) -> None:
        self._call("cudnnActivationForward", self._last, ONE, self._y, y, ZERO, self._y, y)

    def _copy(self, source: int, from_address: int, to: int, to_address: int) -> None:
        self._call("cudnnTransformTensor", ONE, source, from_address, ZERO, to, to_address)

    def _call(self, name: str, *arguments: object) -> None:
        self._cudnn.call(name, self._handle, *arguments)

    @property
    def _where(self) -> str:
        plan = self._plan
        precision = "TF32" if plan.tf32 else plan.spec.dtype
        return f"convolution {plan.spec.key} by cuDNN in {precision}, {plan.layout}, {plan.algorithm}, {plan.epilogue}"

    def _failure(self, error: CudnnError) -> BuildError:
        hint = "tune the layer again, so that another kernel is chosen"
        return BuildError(self._where, f"cuDNN {self._cudnn.version} fails, {error}", hint=hint)
