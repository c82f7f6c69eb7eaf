"""A layer whose weights are all zero, for a CPU: its bias, with residual and ReLU. Taken without being measured."""

from tvm.target import Target

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.bias_space import BiasSpace, BlockedBiasSpace, require_zeros
from tvm_sparse.scheduling.family import KernelFamily
from tvm_sparse.scheduling.space import Space

NAME = "bias_cpu"


def spaces(spec: ConvSpec, pattern: SparsityPattern, _target: Target) -> list[Space]:
    """The only space of `spec`; NotApplicable where a weight is not zero."""
    require_zeros(pattern)
    return [BiasSpace(NAME, spec)]


FAMILY = KernelFamily(NAME, "llvm", spaces, asked_for_only=True, of_zeros=True, blocked=(BlockedBiasSpace,))
