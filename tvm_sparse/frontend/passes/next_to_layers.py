"""What stands before and behind a layer in ``main`` that a kernel of it may compute too."""

from collections.abc import Callable
from typing import Any

from tvm.ir import Expr, Var

from tvm_sparse.conv.reference import WINDOW
from tvm_sparse.frontend.passes.ranks.moves import interleaved, with_depths
from tvm_sparse.frontend.passes.relax_graph import Graph, is_call


def pool_behind(graph: Graph, result: Var) -> Var | None:
    """The result of a max pool of 2x2 windows side by side, which alone reads `result`; None where there is none."""
    user = graph.only_user(result)
    if user is None or not is_call(user[1], "relax.nn.max_pool2d"):
        return None
    attrs, window = user[1].attrs, [WINDOW, WINDOW]
    numbers = [list(map(int, each)) for each in (attrs.pool_size, attrs.strides, attrs.padding, attrs.dilation)]
    is_nchw = (attrs.layout, attrs.out_layout) == ("NCHW", "NCHW")
    return user[0] if is_nchw and numbers == [window, window, [0, 0, 0, 0], [1, 1]] else None


def interleaved_behind(graph: Graph, result: Var) -> Var | None:
    """What interleaves the outputs `result`, which alone reads them; None where nothing does."""
    users = graph.users[result]
    if len(users) != 1 or result in graph.returned:
        return None
    return users[0] if _moves(graph.definitions[users[0]], interleaved) else None


def maps_before(graph: Graph, data: Expr) -> Expr | None:
    """What `data` is made of, where a layer reads neighbours in depth and nothing else reads them so."""
    call = graph.definitions.get(data)
    if call is None or not _moves(call, with_depths) or graph.only_user(data) is None:
        return None
    return call.args[1][0]


def _moves(value: Expr, function: Callable[..., Any]) -> bool:
    return is_call(value, "relax.call_tir") and value.args[0].name_hint.startswith(function.__name__)
