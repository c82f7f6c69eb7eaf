"""Einstein sums that are products of matrices: what their subscripts say, and ONNX's as its other nodes.

TVM computes an Einstein sum as plain loops, half of MaxViT's time; for products of matrices there are schedules.
"""

from dataclasses import dataclass
from typing import Any

from tvm_sparse.frontend.onnx.graph.constants import ONNX_DOMAINS
from tvm_sparse.frontend.onnx.graph.nodes import set_nodes
from tvm_sparse.frontend.onnx.model import attributes_of
from tvm_sparse.frontend.optional_imports import onnx


@dataclass(frozen=True)
class Product:
    """A product of two matrices for each place of so many leading axes, `stack`; `swaps`: of which factors, swapped."""

    stack: int
    swaps: tuple[bool, bool]

    @property
    def swapped_axes(self) -> list[int]:
        """The axes of a factor whose last two are swapped."""
        return [*range(self.stack), self.stack + 1, self.stack]


def product_of(subscripts: str) -> Product | None:
    """What subscripts such as ``bij,bkj->bik`` say, where that is a product of matrices, else None."""
    inputs, _, output = subscripts.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(terms) != 2 or not all(each.isalpha() and len(set(each)) == len(each) >= 2 for each in (*terms, output)):
        return None
    left, right = terms
    stack, row, column = output[:-2], output[-2], output[-1]
    summed = [each for each in left if each in right and each not in output]
    if len(summed) != 1 or not all(each[:-2] == stack for each in terms):
        return None
    ways = {row + summed[0]: False, summed[0] + row: True}, {summed[0] + column: False, column + summed[0]: True}
    swaps = ways[0].get(left[-2:]), ways[1].get(right[-2:])
    return None if swaps[0] is None or swaps[1] is None else Product(len(stack), (swaps[0], swaps[1]))


def make_products_explicit(model: Any) -> None:
    """Replace each Einsum of an `onnx.ModelProto` that is a product of matrices by MatMul, and Transpose before it."""
    found = {index: product for index, node in enumerate(model.graph.node) if (product := _product_of_node(node))}
    if not found:
        return
    nodes: list[Any] = []
    for index, node in enumerate(model.graph.node):
        nodes += _nodes(node, found[index]) if index in found else [node]
    set_nodes(model.graph, nodes)


def _product_of_node(node: Any) -> Product | None:
    if node.op_type != "Einsum" or node.domain not in ONNX_DOMAINS:
        return None
    return product_of(attributes_of(node)["equation"].decode())


def _nodes(node: Any, product: Product) -> list[Any]:
    found, factors = [], list(node.input)
    for index, is_swapped in enumerate(product.swaps):
        if is_swapped:
            factors[index] = f"{node.output[0]}.factor{index}"
            found.append(
                onnx.helper.make_node("Transpose", [node.input[index]], [factors[index]], perm=product.swapped_axes)
            )
    return [*found, onnx.helper.make_node("MatMul", factors, list(node.output), name=node.name)]
