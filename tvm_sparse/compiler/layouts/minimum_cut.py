"""Divide things between two sides at the least cost."""

from collections.abc import Mapping

import numpy as np


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
