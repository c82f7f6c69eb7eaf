"""The minimum cut between layers that compute in NHWC and all others."""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tvm.ir import Expr, Var

from tvm_sparse.compiler.layouts.layout_free import tensors_of
from tvm_sparse.cudnn.layout_change import LayoutChange
from tvm_sparse.frontend.passes.find_convolutions import Group
from tvm_sparse.frontend.passes.relax_graph import is_call, static_shape
from tvm_sparse.frontend.prepare import PreparedModel
from tvm_sparse.schedules import dense_cudnn

# NHWC is the side of the source.
_SOURCE, _SINK = 0, 1


@dataclass(frozen=True)
class _Unit:
    """A layer, or an operator that computes in either layout; `node` is the sink's for what must be in NCHW.

    `inner` are variables that a layer computes on the way to its `result`.
    """

    node: int
    result: Var
    reads: tuple[Expr, ...]
    inner: tuple[Var, ...] = ()


def read_in_nhwc(group: Group) -> tuple[Expr, tuple[Var, ...]]:
    """What cuDNN reads of a layer's input in NHWC, maps of volumes in place; what is made of these on the way."""
    layer, data = group.layer, group.data
    if (
        group.maps is None
        or not isinstance(data, Var)
        or dense_cudnn.in_nhwc(layer.spec, layer.volumes).volumes is None
    ):
        return data, ()
    return group.maps, (data,)


def has_maps(group: Group) -> bool:
    """Whether a layer computes maps (N, C, H, W), not rows of a linear layer, which have no other layout."""
    return len(static_shape(group.result) or ()) == 4


class LayoutCut:
    """The cut at which layers, conversions and what else is computed together cost least.

    * `prepared`: the model.
    * `costs`: what each layer costs in NCHW and in NHWC; None for one that must be in NCHW.
    * `cost_of`: what a conversion costs.
    * `staged`: positions of layers that read their input in either layout, as a kernel of ours writes it anew.
    """

    def __init__(
        self,
        prepared: PreparedModel,
        costs: Sequence[tuple[float, float] | None],
        cost_of: Callable[[LayoutChange], float],
        staged: Collection[int] = (),
    ):
        self._graph, self._cost_of = prepared.graph, cost_of
        self._layer_count = len(costs)
        self._edges: dict[tuple[int, int], float] = defaultdict(float)
        self._nodes = 2 + len(costs)
        for index, each in enumerate(costs):
            if each is not None:
                self._edges[_SOURCE, 2 + index], self._edges[2 + index, _SINK] = each
        self._of_layers = {
            var for group in prepared.groups for var in (*read_in_nhwc(group)[1], *group.absorbed, group.result)
        }
        self._units = []
        for index, group in enumerate(prepared.groups):
            node = _SINK if costs[index] is None else 2 + index
            data, inner = read_in_nhwc(group)
            reads = tuple(each for each in (None if index in staged else data, group.residual) if each is not None)
            self._units.append(_Unit(node, group.result, reads, (*inner, *group.absorbed)))
        self._units += self._free_units()
        self._known = {var for unit in self._units for var in (unit.result, *unit.inner)}
        self._chosen = self._cut()

    @property
    def layers(self) -> set[int]:
        """Positions of the layers that are in NHWC."""
        return {index for index in range(self._layer_count) if 2 + index in self._chosen}

    @property
    def results(self) -> set[Var]:
        """What is made in NHWC, by layers and by operators that compute in either layout."""
        return {unit.result for unit in self._units if unit.node in self._chosen}

    def _cut(self) -> set[int]:
        makers = {unit.result: unit.node for unit in self._units}
        readers: dict[Expr, list[_Unit]] = {result: [] for result in makers}
        for unit in self._units:
            for tensor in unit.reads:
                readers.setdefault(tensor, []).append(unit)
        for tensor, units in readers.items():
            self._add_tensor(tensor, makers.get(tensor, _SINK), units)
        return first_side(self._edges, _SOURCE, _SINK)

    def _free_units(self) -> list[_Unit]:
        found = []
        for var, value in self._graph.definitions.items():
            tensors = tensors_of(value) if var not in self._of_layers and not self._widens(var) else []
            if tensors:
                found.append(_Unit(self._new_node(), var, tuple(tensors)))
        return found

    def _widens(self, var: Var) -> bool:
        """Whether it is what half-precision layers read, in float32, of which their kernels know nothing."""
        is_cast = is_call(self._graph.definitions[var], "relax.astype")
        return is_cast and bool(self._graph.users[var]) and self._of_layers.issuperset(self._graph.users[var])

    def _is_read_elsewhere(self, tensor: Expr) -> bool:
        """Whether anything but units reads it."""
        if tensor in self._graph.returned:
            return True
        users = self._graph.users.get(tensor, ())
        return any(user not in self._known and not self._widens(user) for user in users)

    def _add_tensor(self, tensor: Expr, maker: int, readers: Sequence[_Unit]) -> None:
        """Charge its conversions: one for all that read it on the other side than that where it is made."""
        shape, nodes = static_shape(tensor), {unit.node for unit in readers}
        if self._is_read_elsewhere(tensor):
            nodes.add(_SINK)
        if shape is None or len(shape) != 4 or nodes | {maker} == {_SINK}:
            return
        n, c, h, w = shape
        cost = self._cost_of(LayoutChange((n, c, h, w), str(tensor.ty.dtype), "nhwc"))
        wants_nhwc, wants_nchw = self._new_node(), self._new_node()
        self._edges[wants_nhwc, maker] = cost
        for node in nodes - {_SINK}:
            self._edges[node, wants_nhwc] = math.inf
        if maker != _SINK:
            self._edges[maker, wants_nchw] = cost
            for node in nodes:
                self._edges[wants_nchw, node] = math.inf

    def _new_node(self) -> int:
        self._nodes += 1
        return self._nodes - 1


def first_side(edges: Mapping[tuple[int, int], float], source: int, sink: int) -> set[int]:
    """The side of `source` of a minimum cut between it and `sink`.

    `edges` maps (from, to) to what it costs to have `from` on the source's side and `to` on the other; infinity forbids
    it. Costs count with six digits of the largest that is no infinity.
    """
    # SciPy takes 0.1 s to import, and few models need it.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    nodes = {source, sink, *(node for edge in edges for node in edge)}
    index = {node: position for position, node in enumerate(sorted(nodes))}
    costs = np.array([*edges.values()], np.float64)
    finite = costs[np.isfinite(costs)]
    # SciPy counts in 32 bits. Infinity is more than all others together.
    scale = min(1e6 / max(finite.max(initial=0), 1e-9), 1e9 / max(finite.sum(), 1e-9))
    capacities = np.where(np.isfinite(costs), np.rint(np.where(np.isfinite(costs), costs, 0) * scale), 2e9)
    ends = np.array([(index[start], index[end]) for start, end in edges]).T
    graph = coo_array((capacities.astype(np.int32), tuple(ends)), (len(index), len(index))).tocsr()
    flow = maximum_flow(graph, index[source], index[sink]).flow
    left = graph - flow
    left.eliminate_zeros()
    reached = breadth_first_order(left, index[source], return_predecessors=False)
    return {node for node, position in index.items() if position in set(reached.tolist())}
