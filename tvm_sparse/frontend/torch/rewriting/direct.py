"""Which torch programs TVM imports as they were exported, without having torch decompose them first.

`ExportedProgram.run_decompositions` traces a program again: more than two of the three seconds that importing ResNet-50
takes. TVM makes the same of the operators here either way, if it is told how to convert two of them.
"""

import math
from types import SimpleNamespace
from typing import Any

from tvm_sparse.frontend.torch.graph import operator_name
from tvm_sparse.frontend.torch.rules.require_operators import is_known

# Operators that may return their input, or a view of it.
_VIEWS = (
    "dropout.default",
    "dropout_.default",
    "flatten.using_ints",
    "permute.default",
    "reshape.default",
    "slice.Tensor",
    "view.default",
)
# Those that make a new tensor, or change one in place, for inputs of any rank, or of one alone.
_MAKERS = (
    "add.Tensor",
    "add_.Tensor",
    "batch_norm.default",
    "cat.default",
    "hardtanh.default",
    "hardtanh_.default",
    "mean.dim",
    "mul.Tensor",
    "relu.default",
    "relu_.default",
    "sigmoid.default",
)
_OF_RANK = {
    "adaptive_avg_pool2d.default": 4,
    "avg_pool2d.default": 4,
    "conv2d.default": 4,
    "linear.default": 2,
    "max_pool2d.default": 4,
}


def is_direct(program: Any) -> bool:
    """Whether a `torch.export.ExportedProgram` is float32, its shapes fixed, and its operators known as they are.

    None of these may change what others read: as TVM imports it, each makes a new tensor.
    """
    return all(map(_is_direct, program.graph.nodes))


def _is_direct(node: Any) -> bool:
    if node.op == "placeholder":
        # TVM's linear layers are float32 whatever they get; batch norms count their batches, which nobody reads.
        is_read = str(getattr(node.meta.get("val"), "dtype", "")) == "torch.float32" or not node.users
        return is_read and all(isinstance(size, int) for size in _shape(node))
    if node.op != "call_function":
        return True
    name = operator_name(node)
    if not is_known(node):
        return False
    if name in CONVERTERS and node.kwargs:
        return False
    if name in _VIEWS:
        return True
    if name in _OF_RANK:
        return len(_shape(node.args[0])) == _OF_RANK[name]
    return name in _MAKERS and (not node.target._schema.is_mutable or _is_sole_reader(node))


def _shape(node: Any) -> Any:
    return getattr(node.meta.get("val"), "shape", ())


def _is_sole_reader(node: Any) -> bool:
    """Whether nobody else sees what an operator in place changes."""
    changed = node.args[0]
    return len(changed.users) == 1 and operator_name(changed) in (*_MAKERS, *_OF_RANK)


def adaptive_avg_pool2d(node: Any, importer: Any) -> Any:
    """The mean of each map, as torch decomposes it, where one value is left of a map."""
    from tvm import relax

    sizes = node.args[1] if isinstance(node.args[1], list | tuple) else [node.args[1]]
    if math.prod(sizes) != 1:
        return importer._adaptive_avg_pool2d(node)
    return importer.block_builder.emit(relax.op.mean(importer.env[node.args[0]], [-1, -2], keepdims=True))


def batch_norm(node: Any, importer: Any) -> Any:
    """As torch decomposes it: without the argument that says whether it trains, which TVM takes for the momentum."""
    *parameters, _is_training, momentum, epsilon = node.args[:8]
    name = SimpleNamespace(__name__="_native_batch_norm_legit_no_training.default")
    decomposed = SimpleNamespace(args=(*parameters, momentum, epsilon), kwargs={}, target=name)
    return importer._batch_norm_legit_no_training(decomposed)


# How TVM's importer converts what it would convert in another way, by the names of operators.
CONVERTERS: dict[str, Any] = {"adaptive_avg_pool2d.default": adaptive_avg_pool2d, "batch_norm.default": batch_norm}
