"""Model file or object -> folded Relax module and its convolutions: what is read, and the passes in their order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import tvm

from tvm_sparse.conv.dtypes import FLOAT32, INT8
from tvm_sparse.conv.index_check import INT64, IndexCheck
from tvm_sparse.conv.storage import STORAGE
from tvm_sparse.errors import UsageError
from tvm_sparse.frontend.model_source import ModelSource
from tvm_sparse.frontend.one_at_a_time import one_at_a_time
from tvm_sparse.frontend.passes.channels.drop_channels import drop_channels
from tvm_sparse.frontend.passes.check_constants import check_constants
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer, Group, find_groups
from tvm_sparse.frontend.passes.folding.divide_integers import divide_integers
from tvm_sparse.frontend.passes.folding.einsum_as_matmul import einsum_as_matmul
from tvm_sparse.frontend.passes.folding.fold_batch_norm import fold_batch_norm
from tvm_sparse.frontend.passes.folding.fold_clips import fold_clips
from tvm_sparse.frontend.passes.folding.fold_constants import fold_constants
from tvm_sparse.frontend.passes.folding.fold_padding import fold_padding
from tvm_sparse.frontend.passes.folding.fold_rounding import fold_rounding
from tvm_sparse.frontend.passes.folding.fold_scaling import fold_scaling
from tvm_sparse.frontend.passes.folding.trim_taps import trim_taps
from tvm_sparse.frontend.passes.indices.guard_indices import guard_indices
from tvm_sparse.frontend.passes.indices.settle_checks import settle_checks
from tvm_sparse.frontend.passes.name_convolutions import name_convolutions
from tvm_sparse.frontend.passes.ranks.as_2d import as_2d
from tvm_sparse.frontend.passes.relax_graph import Graph
from tvm_sparse.frontend.passes.store_half import store_half
from tvm_sparse.frontend.relax_import import tvm_frontend
from tvm_sparse.frontend.scales import LayerScales


@dataclass(frozen=True)
class PreparedModel:
    """A Relax module after all folding, and its convolutions and sparse linear layers in program order.

    * `mod`, `graph`: the module, and what its ``main`` binds and uses.
    * `groups`: the layers, each with its place in ``main``.
    * `inputs`: the element types of the inputs that the model has in its own precision.
    * `checks`: where there are some, the last result of ``main`` is what they are of, and none of the model's; see
      `guard_indices`.
    * `outputs`: what an ONNX file calls its outputs.
    * `whole`: the model with all its filters and channels, where `drop_channels` has taken some out.
    * `scales`: of layers of a quantised model, by name.
    * `turns`: how many times ``main`` runs in a call, one after the other, on so many parts of the inputs' samples.
    """

    mod: tvm.IRModule
    graph: Graph
    groups: Sequence[Group]
    inputs: tuple[str, ...] = ()
    checks: tuple[IndexCheck, ...] = ()
    outputs: tuple[str, ...] = ()
    whole: "PreparedModel | None" = None
    turns: int = 1
    scales: Mapping[str, LayerScales] = field(default_factory=dict)

    @classmethod
    def of(cls, module: tvm.IRModule, *rest: Any) -> "PreparedModel":
        """Of a module whose layers are looked for, and the `rest` of the attributes."""
        graph = Graph.of(module)
        return cls(module, graph, find_groups(graph), *rest)

    def in_turns(self, turns: int, module: tvm.IRModule) -> "PreparedModel":
        """The same model, whose calls run `module` so many times."""
        found = PreparedModel.of(module, self.inputs, self.checks, self.outputs, self.whole)
        return replace(found, turns=turns, scales=self.scales)

    @cached_property
    def layers(self) -> list[ConvLayer]:
        """Those of `groups`."""
        return [group.layer for group in self.groups]

    @property
    def is_quantised(self) -> bool:
        """Whether a layer computes on integers of eight bits."""
        return any(layer.is_quantised for layer in self.layers)

    @property
    def as_given(self) -> "PreparedModel":
        """`whole`, or itself where nothing was taken out."""
        return self.whole or self

    @cached_property
    def removed(self) -> tuple[int, int]:
        """How many filters, and how many input channels, the layers have no more."""
        left = {layer.name: layer.spec for layer in self.layers}
        pairs = [(each.spec, left[each.name]) for each in self.as_given.layers if each.name in left]
        channels = sum(old.c - new.c for old, new in pairs if old.groups == 1)
        return sum(old.k - new.k for old, new in pairs), channels


@one_at_a_time
def prepare(
    source: Any,
    example_inputs: Any = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    batch: int | None = None,
    dtype: str | None = None,
) -> PreparedModel:
    """Open a model and fold what can be folded; see `ModelSource` for the other arguments and errors.

    With `dtype`, a key of `STORAGE`, tensors are stored in that type, inputs and outputs too, whatever the model says.
    UsageError where there is no such `dtype`. ModelError where a weight is too large for the type.
    """
    if dtype is not None and dtype not in STORAGE:
        raise UsageError("dtype", "no tensors are stored in it", repr(dtype), ", ".join((*STORAGE, INT8)))
    opened = ModelSource(source, dtype)
    # Before the import: a bad weight is named here, and only as a number of the module there.
    weights = opened.weights()
    module = opened.relax_module(example_inputs, shapes, batch)
    # Before anything is computed of constants.
    module, checks = guard_indices(divide_integers(module))
    # Constants, so that pruning masks are in the weights. TVM computes some, and then sees what it cannot.
    with tvm_frontend("model"):
        module = fold_constants(module)
    module, checks = settle_checks(module, checks)
    module = fold_clips(module)
    module = fold_rounding(module)
    module = einsum_as_matmul(module)
    # Names, while weights still are the layers' own.
    assert opened.precision is not None, "known once the model is imported"
    module = name_convolutions(module, weights | opened.quantised, opened.precision.dtype)
    check_constants(module)
    module = as_2d(module)
    # What surrounds a layer moves into it.
    module = trim_taps(fold_padding(module))
    module = fold_scaling(module)
    module = fold_batch_norm(module)
    dropped = drop_channels(module)
    inputs, precision = opened.precision.inputs, opened.precision if dtype is None else opened.precision.cast(dtype)
    stored = replace(precision, outputs=precision.outputs + ((INT64,) if checks else ()))

    def model(module: tvm.IRModule, *whole: PreparedModel) -> PreparedModel:
        module = store_half(module, stored) if precision.dtype != FLOAT32 else module
        found = PreparedModel.of(module, inputs, tuple(checks), opened.outputs, *whole)
        return replace(found, scales=opened.scales)

    return model(module) if dropped is module else model(dropped, model(module))
