"""Dense linear layers of a quantised network, about which nothing is decided, by instructions for eight bits."""

import math
from collections.abc import Sequence

from tvm import relax
from tvm.ir import Expr, Var

from tvm_sparse.conv.codes import holds_signed_codes
from tvm_sparse.conv.spec import NO_CODES
from tvm_sparse.frontend.passes.find_convolutions import Group, least_code
from tvm_sparse.frontend.passes.relax_graph import Graph, matrix_weight, new_var, static_shape, view
from tvm_sparse.scheduling.cpu.byte_product import constants, product, serves
from tvm_sparse.scheduling.cpu.byte_space import MOST_PRODUCTS
from tvm_sparse.scheduling.cpu.byte_unit import ByteUnit


def byte_products(
    builder: relax.BlockBuilder, graph: Graph, groups: Sequence[Group], unit: ByteUnit
) -> dict[Var, list[tuple[Var, Expr]]]:
    """The bindings that compute those linear layers of integers that are none of `groups`."""
    ours = {var for group in groups for var in (*group.absorbed, group.result)}
    found = {}
    for var, value in graph.definitions.items():
        weight = matrix_weight(value) if var not in ours else None
        if weight is None or not holds_signed_codes(weight):
            continue
        k, c, data = *weight.shape[:2], value.args[0]
        least = least_code(graph, data)
        if least == NO_CODES or not serves(weight[:, :, 0, 0], unit) or c > MOST_PRODUCTS:
            continue
        rows = math.prod(static_shape(data) or ()) // c
        name = f"tvm_sparse_{var.name}"
        func = product(rows, k, c, least, unit).with_attr("global_symbol", name)
        arrays = map(relax.const, constants(weight[:, :, 0, 0], least, unit))
        flat, sums = (new_var(builder.get(), var, f"{var.name}_in{size}", (rows, size)) for size in (c, k))
        call = relax.call_tir(builder.add_func(func, name), [flat, *arrays], sums.ty)
        found[var] = [(flat, view(data, flat.ty.shape)), (sums, call), (var, view(sums, var.ty.shape))]
    return found
