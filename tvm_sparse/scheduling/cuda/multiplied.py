"""What kernels on tensor cores multiply: numbers of the tensors' type, or float32 that may be rounded to TF32."""

from tvm_sparse.scheduling.cuda.library.kernel_library import DEFINED, OF_TYPE
from tvm_sparse.scheduling.family import TF32_VARIANT

# How names of kernels and libraries end by what is multiplied, and names that are defined for their C++.
OF_MULTIPLIED = {**OF_TYPE, TF32_VARIANT: "_tf32"}
DEFINED_FOR = {**DEFINED, TF32_VARIANT: ("TVM_SPARSE_TF32",)}
