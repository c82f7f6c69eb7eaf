"""Kernel families, one a file, in the order in which they are tried: sparse ones first, then the dense baseline.

In: a convolution, the zeros of its weight and a target. Out: the spaces to search, or one of them by its name, which
`lookup` finds. A module of this package offers ``FAMILY``, a `tvm_sparse.scheduling.family.KernelFamily`.
"""

from tvm_sparse.schedules import (
    bias_cpu,
    bias_cuda,
    bottleneck_cuda,
    byte_cpu,
    csr_cpu,
    csr_cuda,
    data_cuda,
    dense_cpu,
    dense_cuda,
    dense_cudnn,
    depthwise_cuda,
    first_cuda,
    folded_cpu,
    folded_cuda,
    folded_half_cuda,
    generated_cpu,
    linear_cpu,
    linear_cuda,
    linear_tensor_cuda,
    plane_cuda,
    pooled_cuda,
    quad_cuda,
    slice_cuda,
    vector_cpu,
    vector_cuda,
    winograd_cpu,
)
from tvm_sparse.scheduling.family import KernelFamily

FAMILIES: tuple[KernelFamily, ...] = (
    bias_cpu.FAMILY,
    folded_cpu.FAMILY,
    generated_cpu.FAMILY,
    vector_cpu.FAMILY,
    byte_cpu.FAMILY,
    csr_cpu.FAMILY,
    linear_cpu.FAMILY,
    winograd_cpu.FAMILY,
    dense_cpu.FAMILY,
    bias_cuda.FAMILY,
    folded_cuda.FAMILY,
    folded_half_cuda.FAMILY,
    slice_cuda.FAMILY,
    plane_cuda.FAMILY,
    quad_cuda.FAMILY,
    vector_cuda.FAMILY,
    data_cuda.FAMILY,
    csr_cuda.FAMILY,
    linear_cuda.FAMILY,
    linear_tensor_cuda.FAMILY,
    pooled_cuda.FAMILY,
    bottleneck_cuda.FAMILY,
    first_cuda.FAMILY,
    depthwise_cuda.FAMILY,
    dense_cudnn.FAMILY,
    dense_cuda.FAMILY,
)
