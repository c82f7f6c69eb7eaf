"""Vector units of processors, for kernels whose vectors any processor computes with those that it has."""

from tvm_sparse.target.cpu_info import CpuInfo

UNITS = {
    "AVX-512": CpuInfo(16, "zmm", True),
    "AVX2": CpuInfo(8, "ymm"),
    "NEON": CpuInfo(4, "v"),
    "SSE": CpuInfo(4),
}
