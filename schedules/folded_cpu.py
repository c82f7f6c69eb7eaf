"""Folded convolution for CPUs: weights as immediates, vectors along flattened output rows.

One non-zero costs one vector multiply-add per pixel vector, with the weight broadcast from the constant pool and shared
by the tile's vectors. The structure is that of `cpu_rows`.
"""

from tvm.target import Target

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.cpu_rows import RowSpace, layouts, packs, vector_lanes
from tvm_sparse.scheduling.space import NotApplicable, Space

NAME = "folded_cpu"
TARGET = "llvm"
# Non-zeros a kernel may hold. Beyond about this number kernels take minutes to build and gain nothing: `csr_cpu`, whose
# weights are data, is as fast (256x1024x1x1 at density 0.1 with AVX-512: 198 us folded, 145 us as CSR).
MAX_NNZ = 40_000
# Layouts offered to the search, each with every place to pack.
LAYOUTS = 3


def spaces(spec: ConvSpec, pattern: SparsityPattern, target: Target) -> list[Space]:
    """Search spaces for `spec`, most promising first.

    Raises
    ------
    NotApplicable
        The weight has more than `MAX_NNZ` non-zeros.
    """
    if pattern.nnz > MAX_NNZ:
        streams = "make code that streams no faster than data would"
        raise NotApplicable(f"{pattern.nnz} non-zeros {streams}; at most {MAX_NNZ} are folded")
    return [
        RowSpace(NAME, spec, layout, pack, fold=True)
        for layout in layouts(spec, vector_lanes(target))[:LAYOUTS]
        for pack in packs(spec, layout)
    ]
