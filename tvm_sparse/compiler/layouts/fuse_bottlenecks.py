"""Put one call in the place of three of cuDNN that compute a bottleneck in NHWC."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Expr, Var

from tvm_sparse.compiler.layouts.keep_nhwc import call_in_nhwc
from tvm_sparse.compiler.plan.bottlenecks import Joined
from tvm_sparse.conv.storage import stored
from tvm_sparse.cudnn.plan import Plan
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer
from tvm_sparse.frontend.passes.relax_graph import Graph, rebuild
from tvm_sparse.scheduling.cuda.bottleneck.call import bottleneck_call
from tvm_sparse.scheduling.cuda.bottleneck.packing import packed
from tvm_sparse.scheduling.kernel import opaque
from tvm_sparse.target.gpu import GpuInfo


def fuse_bottlenecks(module: tvm.IRModule, names: Mapping[str, Joined], gpu: GpuInfo) -> tvm.IRModule:
    """`module` with bottlenecks as functions of these `names`, of layers that only these read.

    Run it after `keep_nhwc`. What it does not find, as its layers convert something between them, stays as it is.
    """
    module = module.clone()
    # What layers in float32 would have read.
    module["main"] = relax.analysis.remove_all_unused(module["main"])
    graph, builder = Graph.of(module), relax.BlockBuilder(module)
    edits: dict[Var, list[tuple[Var, Expr]]] = {}
    open_ = dict(names)
    for var, value in graph.definitions.items():
        calls = _calls(module, graph, value)
        name = next((each for each, joined in open_.items() if _compute(calls, joined)), None)
        if name is None:
            continue
        joined = open_.pop(name)
        function = builder.add_func(opaque(bottleneck_call(joined.bottleneck, gpu), name), name)
        arguments = relax.Tuple([calls[0].arguments["x"], relax.const(packed_of(joined))])
        edits |= {each.arguments["x"]: [] for each in calls[1:]}
        edits[var] = [(var, relax.call_tir(function, arguments, var.ty))]
    return rebuild(builder.get(), edits)


def packed_of(joined: Joined) -> np.ndarray:
    """Weights and biases of three layers for their kernel."""
    biases = [each.bias for each in joined if each.bias is not None]
    return packed([each.weight for each in joined], biases, joined.first.spec.dtype)


class _Call(NamedTuple):
    """Of cuDNN, which converts nothing: its plan, and what it is given, by names."""

    plan: Plan
    arguments: dict[str, Expr]

    def computes(self, layer: ConvLayer) -> bool:
        """Whether it is this layer, all of whose numbers it has."""
        weight = np.ascontiguousarray(self._array("weight").transpose(0, 3, 1, 2))
        if self.plan.spec != layer.spec or layer.bias is None:
            return False
        same = np.array_equal(weight, stored(layer.weight, layer.spec.dtype))
        return same and np.array_equal(self._array("bias"), layer.bias)

    def _array(self, name: str) -> np.ndarray:
        found: np.ndarray = self.arguments[name].value.numpy()
        return found


def _calls(module: tvm.IRModule, graph: Graph, value: Expr | None) -> list[_Call]:
    """Three calls that end with `value`, each the only one that reads what the one before computes; none elsewhere."""
    found: list[_Call] = []
    while (known := call_in_nhwc(module, value)) is not None:
        call = _Call(*known)
        found.insert(0, call)
        x = call.arguments["x"]
        if len(found) == 3:
            return found
        if not isinstance(x, Var) or len(graph.users[x]) != 1 or x in graph.returned:
            break
        value = graph.definitions.get(x)
    return []


def _compute(calls: Sequence[_Call], joined: Joined) -> bool:
    """Whether calls are these layers, of which the last adds what the first reads."""
    if not calls or not all(call.computes(layer) for call, layer in zip(calls, joined, strict=True)):
        return False
    return bool(calls[2].arguments["residual"].same_as(calls[0].arguments["x"]))


def names_of(bottlenecks: Iterable[Joined], prefix: str) -> dict[str, Joined]:
    """Bottlenecks by names of their functions."""
    return {f"{prefix}_bottleneck_{index}": each for index, each in enumerate(bottlenecks)}
