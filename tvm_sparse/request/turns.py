"""Whether a batch on a CPU is computed in turns of fewer samples, one a core.

A core works on a sample from the first layer to the last while its tensors are in the cache; those of a whole batch go
to memory and back at each layer. But weights are read anew in each turn.
"""

from dataclasses import replace

from tvm.target import Target

from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer
from tvm_sparse.frontend.passes.rebatch import rebatched
from tvm_sparse.frontend.passes.relax_graph import constants_bytes
from tvm_sparse.frontend.prepare import PreparedModel
from tvm_sparse.target.resolve import thread_count

# Of a core's own cache: 1 to 2 MB on servers since 2019, less on others.
CACHE_BYTES = 1 << 20
# A non-zero with its place, and a weight of a dense layer.
NONZERO_BYTES, WEIGHT_BYTES = 6, 4


def in_turns(prepared: PreparedModel, target: Target) -> PreparedModel:
    """`prepared` for the samples of a turn, where turns should be faster and compute the same; else itself."""
    samples = _samples(prepared)
    turn = max((size for size in range(1, thread_count(target) + 1) if samples % size == 0), default=1)
    if target.kind.name != "llvm" or turn >= samples or prepared.checks or not _pays(prepared, samples, turn):
        return prepared
    module = rebatched(prepared.mod, turn)
    whole = prepared.whole and rebatched(prepared.whole.mod, turn)
    if module is None or (prepared.whole is not None and whole is None):
        return prepared
    found = prepared.in_turns(samples // turn, module)
    return found if whole is None else replace(found, whole=prepared.as_given.in_turns(found.turns, whole))


def _samples(prepared: PreparedModel) -> int:
    shapes = [each.ty.shape.values for each in prepared.mod["main"].params]
    return int(shapes[0][0]) if shapes and len(shapes[0]) else 1


def _pays(prepared: PreparedModel, samples: int, turn: int) -> bool:
    """Whether tensors of the batch do not fit the caches, and are more than the weights that turns read."""
    tensors = [_tensor_bytes(layer.spec) for layer in prepared.layers]
    zeros = sum(WEIGHT_BYTES * layer.pattern.size - _weight_bytes(layer) for layer in prepared.layers)
    weights = constants_bytes(prepared.mod) - zeros
    return max(tensors, default=0) > CACHE_BYTES * turn and sum(tensors) / samples > weights / turn


def _tensor_bytes(spec: ConvSpec) -> int:
    """Of the input and the output of a layer."""
    elements = [n * c * h * w for n, c, h, w in (spec.input_shape, spec.output_shape)]
    return sum(elements) * WEIGHT_BYTES


def _weight_bytes(layer: ConvLayer) -> int:
    return min(NONZERO_BYTES * layer.pattern.nnz, WEIGHT_BYTES * layer.pattern.size)
