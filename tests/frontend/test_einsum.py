"""Einstein sums that are products of matrices are imported as such, from torch and ONNX, and are what they were."""

import numpy as np
import onnx
import pytest
import torch
import zoo
from onnx import TensorProto, helper
from torch import nn
from tvm import relax

from tvm_sparse.frontend.model_source import ModelSource
from tvm_sparse.frontend.onnx.rewriting.einsum import Product, product_of
from tvm_sparse.frontend.passes.folding.einsum_as_matmul import einsum_as_matmul
from tvm_sparse.frontend.passes.relax_graph import Graph, is_call

SHAPES = {"b": 2, "h": 3, "i": 4, "j": 5, "k": 6}
PRODUCTS = ["ij,jk->ik", "bij,bkj->bik", "b h j i, b h j k -> b h i k", "bji,bkj->bik"]
# An outer product, a sum of two axes, a result in another order, a stack of one factor alone, a trace, and any axes.
OTHERS = ["bi,bj->bij", "ijk,ijk->i", "ij,jk->ki", "bij,jk->bik", "ii->i", "...ij,...jk->...ik", "bij,bij->bij"]


class Einsum(nn.Module):
    def __init__(self, subscripts):
        super().__init__()
        self.subscripts = subscripts

    def forward(self, x, y):
        return torch.einsum(self.subscripts, x, y) + 1


def factors(subscripts):
    terms = subscripts.replace(" ", "").partition("->")[0].split(",")
    rng = np.random.default_rng(0)
    return [rng.standard_normal([SHAPES[axis] for axis in term]).astype(np.float32) for term in terms]


def onnx_model(subscripts, x, y):
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Einsum", ["r", "y"], ["sum"], equation=subscripts),
        helper.make_node("Neg", ["sum"], ["out"]),
    ]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in (("x", x), ("y", y))]
    shape = [SHAPES[axis] for axis in subscripts.replace(" ", "").partition("->")[2]]
    output = helper.make_tensor_value_info("out", TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "g", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def has_matmul(module):
    return any(is_call(value, "relax.matmul") for value in Graph.of(module).definitions.values())


def test_subscripts_are_read():
    assert product_of("bij,bkj->bik") == Product(1, (False, True))
    assert product_of("i j, j k -> i k") == Product(0, (False, False))
    assert product_of("bhji,bhjk->bhik") == Product(2, (True, False))
    assert not any(map(product_of, OTHERS))


@pytest.mark.parametrize("subscripts", PRODUCTS)
def test_products_of_torch_are_matmul(subscripts):
    x, y = factors(subscripts)
    module = ModelSource(Einsum(subscripts).eval()).relax_module(tuple(map(torch.from_numpy, (x, y))))
    module = einsum_as_matmul(module)
    relax.analysis.check_well_formed(module)
    assert has_matmul(module)
    np.testing.assert_allclose(zoo.run_relax(module, x, y)[0], np.einsum(subscripts, x, y) + 1, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("subscripts", [*PRODUCTS, "bi,bj->bij"])
def test_products_of_onnx_are_matmul(subscripts, tmp_path):
    """An outer product stays."""
    x, y = factors(subscripts)
    onnx.save(onnx_model(subscripts, x, y), tmp_path / "model.onnx")
    module = ModelSource(tmp_path / "model.onnx").relax_module()
    assert has_matmul(module) == (subscripts in PRODUCTS)
    expected = -np.einsum(subscripts, np.maximum(x, 0), y)
    np.testing.assert_allclose(zoo.run_relax(module, x, y)[0], expected, rtol=1e-4, atol=1e-5)
