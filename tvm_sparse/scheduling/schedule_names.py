"""What the name of a schedule, or of a space ``schedule:variant``, says about its kernels.

It is all that records, requests and decision tables have of them.
"""

# A variant whose kernels may round their inputs to TF32.
TF32 = "tf32"
# A schedule whose kernels are calls of cuDNN.
CUDNN = "dense_cudnn"


def is_tf32(name: str) -> bool:
    """Whether kernels may round their inputs to TF32."""
    return name.partition(":")[2] == TF32


def is_exact(name: str) -> bool:
    """Whether kernels compute in float32 throughout."""
    return not is_tf32(name)


def is_library(name: str) -> bool:
    """Whether kernels are calls of a library, so that no compiler runs for them."""
    return name.partition(":")[0] == CUDNN
