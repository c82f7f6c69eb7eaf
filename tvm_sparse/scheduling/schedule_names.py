"""What the name of a schedule, or of a space ``schedule:variant``, says about its kernels.

It is all that records, requests and decision tables have of them.
"""

from tvm_sparse.conv.dtypes import BFLOAT16, FLOAT16, FLOAT32
from tvm_sparse.conv.error_bounds import (
    CORRECTED_TF32,
    EXACT,
    HALF_SUMS,
    TENSOR_CORES,
    THREE_HALF,
    THREE_TF32,
    WINOGRAD,
)
from tvm_sparse.conv.error_bounds import TF32 as IN_TF32

# A variant whose kernels may round their inputs to TF32.
TF32 = "tf32"
# Variants of cuDNN's whose kernels multiply half-precision numbers on tensor cores, by the type of their tensors.
HALF_VARIANTS = {FLOAT16: "fp16", BFLOAT16: "bf16"}
# A schedule whose kernels are calls of cuDNN.
CUDNN = "dense_cudnn"
# A schedule whose kernels split their input into TF32 numbers and call cuDNN.
TENSOR = "tensor_cuda"
# A schedule whose kernels write the largest of each 2x2 outputs.
POOLED = "pooled_cuda"
# A schedule whose kernels add products up in float16.
FOLDED_HALF = "folded_half_cuda"
# Schedules that multiply on tensor cores: 16 filters that share their zeros, or 64, any zeros, and linear layers of
# many images.
SLICE, PLANE, QUAD, LINEAR_TENSOR = "slice_cuda", "plane_cuda", "quad_cuda", "linear_tensor_cuda"
# Schedules of earlier versions: nothing builds their kernels any more.
_GONE = ("pair_cuda",)
# Those whose kernels launch a library of ours, which is compiled once for all of them.
DATA = ("data_cuda", "vector_cuda", SLICE, PLANE, QUAD, LINEAR_TENSOR)
# How those compute that multiply float32 numbers in parts that tensor cores take, by the names of spaces.
_CORRECTED = (SLICE, LINEAR_TENSOR, f"{LINEAR_TENSOR}:dense")
_IN_PARTS = {TENSOR: THREE_TF32, QUAD: THREE_HALF, PLANE: THREE_HALF, **dict.fromkeys(_CORRECTED, CORRECTED_TF32)}
# How others compute that have a bound of their own.
_BY_SCHEDULE = {FOLDED_HALF: HALF_SUMS, "winograd_cpu": WINOGRAD}
_PARTS_IN_WORDS = {THREE_TF32: "3xTF32", THREE_HALF: "3xFP16", CORRECTED_TF32: "TF32+BF16"}


def schedule_of(name: str) -> str:
    """The schedule that a space belongs to: its name without the variant."""
    return name.partition(":")[0]


def is_gone(name: str) -> bool:
    """Whether a schedule is one of an earlier version, whose records count no more."""
    return schedule_of(name) in _GONE


def is_tf32(name: str) -> bool:
    """Whether kernels may round their inputs to TF32."""
    return name.partition(":")[2] == TF32


def is_folded(name: str) -> bool:
    """Whether the weight is in the code of kernels, so that they take the longer to build the larger it is."""
    return name.startswith("folded") or is_pooled(name)


def is_pooled(name: str) -> bool:
    """Whether kernels compute the max pool behind a convolution too, so that they serve no other layer."""
    return schedule_of(name) == POOLED


def is_bias(name: str) -> bool:
    """Whether kernels write the bias alone, as they serve layers whose weights are all zero."""
    return schedule_of(name).startswith("bias")


def must_be_asked_for(name: str) -> bool:
    """Whether a schedule is searched only where it is named.

    As it serves no other layers than those with a pool behind them, or of zeros alone, or rounds more than a model's
    type says.
    """
    return is_pooled(name) or is_bias(name) or schedule_of(name) == FOLDED_HALF


def arithmetic_of(name: str) -> str:
    """How kernels compute, as `conv.reference` calls it: what bound they are held to."""
    if is_tf32(name):
        return IN_TF32
    if is_in_parts(name):
        return _IN_PARTS[name]
    schedule, _, variant = name.partition(":")
    if schedule in _BY_SCHEDULE:
        return _BY_SCHEDULE[schedule]
    return TENSOR_CORES if schedule in (CUDNN, SLICE, PLANE) and variant in HALF_VARIANTS.values() else EXACT


def is_in_parts(name: str) -> bool:
    """Whether kernels multiply float32 numbers in parts that tensor cores take."""
    return name in _IN_PARTS


def is_exact(name: str) -> bool:
    """Whether kernels compute to float32's accuracy, however tensors are stored."""
    return not is_tf32(name)


def precision_of(name: str, dtype: str) -> str:
    """What kernels compute in and how their tensors are stored, in words for a decision table."""
    if is_tf32(name):
        return "TF32"
    if is_in_parts(name):
        return _PARTS_IN_WORDS[arithmetic_of(name)]
    if schedule_of(name) == FOLDED_HALF:
        return f"{dtype}, sums too"
    return FLOAT32 if dtype == FLOAT32 else f"{dtype}, {FLOAT32} sums"


def is_compiled(name: str) -> bool:
    """Whether each kernel has code of its own."""
    return schedule_of(name) not in (CUDNN, *DATA)


def is_library(name: str) -> bool:
    """Whether kernels are calls of a library, so that no compiler runs for them."""
    return schedule_of(name) == CUDNN


def calls_cudnn(name: str) -> bool:
    """Whether cuDNN has to be found where kernels run."""
    return schedule_of(name) in (CUDNN, TENSOR)
