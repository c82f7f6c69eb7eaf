"""Tensors of quantised networks that are bytes between layers: found, scaled in kernels, right."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
import quantised
import torch
import torch.ao.quantization.fx._decomposed  # defines the operators
import zoo
from torch import nn
from tvm.target.codegen import llvm_get_cpu_features

from tvm_sparse.compiler.build_plan import build_plan
from tvm_sparse.compiler.layouts.blocked_layers import with_blocks
from tvm_sparse.compiler.layouts.byte_bindings import steps_between
from tvm_sparse.compiler.layouts.byte_tensors import byte_layers
from tvm_sparse.compiler.pipeline import Options, planned
from tvm_sparse.compiler.plan.choice import Predicted
from tvm_sparse.errors import InputError
from tvm_sparse.frontend.onnx.quantised.quantise import quantise
from tvm_sparse.frontend.passes.folding.fold_rounding import is_whole_pool
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.schedules import byte_cpu
from tvm_sparse.target.resolve import resolve_target

VNNI = resolve_target({"kind": "llvm", "mcpu": "cascadelake", "num-cores": 1, "opt-level": 0})
FEATURES = llvm_get_cpu_features(resolve_target("llvm"))
needs_tables = pytest.mark.skipif("avx512vbmi" not in FEATURES, reason="no VBMI")
needs_vnni = pytest.mark.skipif("avx512vnni" not in FEATURES, reason="no VNNI")


def plan_of(source, target=VNNI, inputs=None):
    """Its layers by kernels of bytes, where these can serve them."""
    plan = planned(prepare(source, inputs), target, None, Options(predict=False))

    def changed(layer, decision):
        is_served = not byte_cpu.FAMILY.can_serve(layer.spec, layer.pattern, target)
        return replace(decision, choice=Predicted(byte_cpu.NAME, None, 1.0)) if is_served else decision

    return with_blocks(plan.with_decisions(changed(*each) for each in plan.pairs))


@needs_vnni
@pytest.mark.parametrize(
    "form",
    [("qdq", True, "u8s8"), pytest.param(("qoperator", False, "s8s8"), marks=pytest.mark.conformance)],
    ids=str,
)
def test_a_network_of_bytes_agrees_with_onnx_runtime(form, tmp_path):
    path = quantised.quantised_file(tmp_path, "residual", *form)
    plan = plan_of(path)
    layers = byte_layers(plan.prepared, plan.decisions)
    stem, first, second = layers.values()
    assert [len(each.form.stages) for each in (stem, first, second)] == [1, 1, 2]
    # A max pool of what the stem writes.
    graph = plan.prepared.graph
    assert is_whole_pool(graph.definitions[first.group.data])
    assert graph.definitions[first.group.data].args[0].same_as(stem.group.result)
    # The one reads what the other writes, and what is added is what that reads.
    assert second.group.data.same_as(first.group.result) and second.group.residual.same_as(first.group.data)
    model, x = build_plan(plan), quantised.sample(9)
    assert [row["schedule"] for row in model.decisions].count(byte_cpu.NAME) == 3
    (expected,) = zoo.run_onnx(onnx.load(path), x)
    step = np.diff(np.unique(expected)).min()
    assert np.abs(np.asarray(model(x)) - expected).max() <= 1.001 * step


@needs_vnni
@pytest.mark.parametrize(
    "mcpu",
    [
        pytest.param("cascadelake", marks=pytest.mark.conformance),
        pytest.param("icelake-server", marks=needs_tables),
    ],
)
def test_functions_of_a_code_are_tables(mcpu, tmp_path):
    """A SiLU, which is quantised within, and a leaky ReLU."""
    rng = np.random.default_rng(0)
    constants = {"a": rng.standard_normal((8, 4, 1, 1)).astype(np.float32)}
    constants |= {"b": rng.standard_normal((8, 8, 1, 1)).astype(np.float32)}
    nodes = [
        ("Conv", ["x", "a"], ["p"], {}),
        ("Sigmoid", ["p"], ["s"], {}),
        ("Mul", ["p", "s"], ["m"], {}),
        ("Conv", ["m", "b"], ["q"], {}),
        ("LeakyRelu", ["q"], ["l"], {"alpha": 0.1}),
        ("Conv", ["l", "b"], ["y"], {}),
    ]
    path, samples = tmp_path / "silu.onnx", rng.standard_normal((4, 4, 7, 5)).astype(np.float32)
    onnx.save(zoo.onnx_model(nodes, constants, {"x": (1, 4, 7, 5)}, {"y": (1, 8, 7, 5)}), path)
    path.write_bytes(quantise("silu", onnx.load(path), ({"x": each[None]} for each in samples)))
    target = resolve_target({"kind": "llvm", "mcpu": mcpu, "num-cores": 1, "opt-level": 0})
    plan = plan_of(path, target)
    layers = byte_layers(plan.prepared, plan.decisions)
    steps = steps_between(plan.prepared.graph, layers, target)
    # The sigmoid's too, which nothing reads.
    assert [len(each.constants) for each in steps.values()] == [1, 1, 1]
    (expected,) = zoo.run_onnx(onnx.load(path), samples[:1])
    found = np.asarray(build_plan(plan)(samples[:1]))
    assert np.abs(found - expected).max() <= 1.001 * np.diff(np.unique(expected)).min()


@needs_vnni
def test_parts_sums_and_maps_of_another_size_stay_bytes(tmp_path):
    """A split, an addition, a concatenation, a mean, a squeeze and excitation, an enlarged map, a head's rows."""
    rng = np.random.default_rng(0)
    sizes = {"a": (16, 8), "c": (16, 16), "d": (16, 16), "e": (8, 16)}
    constants = {name: rng.standard_normal((*size, 1, 1)).astype(np.float32) for name, size in sizes.items()}
    constants |= {
        "sizes": np.array([8, 8]),
        "rows": np.array([1, 8, -1]),
        "none": np.float32([]),
        "twice": np.float32([1, 1, 2, 2]),
    }
    nodes = [
        ("Conv", ["x", "a"], ["p"], {}),
        ("Split", ["p", "sizes"], ["q", "r"], {"axis": 1}),
        ("Sigmoid", ["r"], ["i"], {}),
        ("Add", ["q", "i"], ["t"], {}),
        ("Concat", ["q", "t"], ["u"], {"axis": 1}),
        ("Conv", ["u", "c"], ["v"], {}),
        ("GlobalAveragePool", ["v"], ["g"], {}),
        ("Conv", ["g", "d"], ["h"], {}),
        ("Sigmoid", ["h"], ["j"], {}),
        ("Mul", ["v", "j"], ["k"], {}),
        (
            "Resize",
            ["k", "none", "twice"],
            ["l"],
            {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
        ),
        *(("Conv", [each, "e"], [f"{each}_e"], {}) for each in "lk"),
        *(("Reshape", [f"{each}_e", "rows"], [f"{each}_rows"], {}) for each in "lk"),
        ("Concat", ["l_rows", "k_rows"], ["z"], {"axis": 2}),
        ("Sigmoid", ["z"], ["y"], {}),
    ]
    path, samples = tmp_path / "parts.onnx", rng.standard_normal((4, 8, 6, 9)).astype(np.float32)
    onnx.save(zoo.onnx_model(nodes, constants, {"x": (1, 8, 6, 9)}, {"y": (1, 8, 270)}), path)
    path.write_bytes(quantise("parts", onnx.load(path), ({"x": each[None]} for each in samples)))
    plan = plan_of(path)
    layers = byte_layers(plan.prepared, plan.decisions)
    steps = steps_between(plan.prepared.graph, layers, VNNI)
    graph = plan.prepared.graph
    (rounded,) = (graph.definitions[each].args[0] for each in graph.returned)
    assert rounded in steps and len(steps[rounded].sources) == 1
    # All but the input.
    written = {each.group.result for each in layers.values()} | steps.keys()
    assert sum(each.group.data not in written for each in layers.values()) == 1
    (expected,) = zoo.run_onnx(onnx.load(path), samples[:1])
    found = np.asarray(build_plan(plan)(samples[:1]))
    assert np.abs(found - expected).max() <= 2.001 * np.diff(np.unique(expected)).min()


@needs_vnni
@pytest.mark.parametrize("form", ["sparseml", pytest.param("qlinear", marks=pytest.mark.conformance)])
def test_residuals_that_are_added_in_floats_are_added_in_kernels(form, tmp_path):
    model, x = quantised.residual_model(form), zoo._random(1, 8, 7, 7)
    onnx.save(model, tmp_path / "residual.onnx")
    plan = plan_of(tmp_path / "residual.onnx")
    first, second = byte_layers(plan.prepared, plan.decisions).values()
    assert len(first.form.stages) == 1 and second.form.residual_least == -110
    (expected,) = zoo.run_onnx(model, x)
    model = build_plan(plan)
    assert {row["schedule"] for row in model.decisions} == {byte_cpu.NAME}
    assert np.abs(np.asarray(model(x)) - expected).max() <= 1.001 * 0.05


@needs_vnni
@pytest.mark.conformance
def test_a_network_of_sparsemls_form_is_of_bytes_throughout(tmp_path):
    model, layers = quantised.sparseml_network()
    onnx.save(model, tmp_path / "network.onnx")
    plan = plan_of(tmp_path / "network.onnx")
    found = byte_layers(plan.prepared, plan.decisions).values()
    assert (layers, len(found)) == (53, 53)
    # In each block the last layer adds the other end, whose rounding it does too.
    assert sum(each.form.residual_least is not None for each in found) == 16
    assert all(each.form.stages for each in found)
    x = zoo._random(1, 3, 64, 64)
    (expected,) = zoo.run_onnx(model, x)
    assert np.unique(expected).size > 50
    np.testing.assert_allclose(np.asarray(build_plan(plan)(x)), expected, atol=0.02)


class Layers(nn.Module):
    """Two layers of a torch program, whose biases are no multiples of the sums' scales."""

    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.arange(-32, 32).reshape(8, 8, 1, 1).to(torch.int8))
        self.bias = nn.Parameter(torch.linspace(-0.3, 0.5, 8))

    def forward(self, x):
        operators, form = torch.ops.quantized_decomposed, (0.05, 100, 0, 255, torch.uint8)
        for _ in range(2):
            x = operators.dequantize_per_tensor(operators.quantize_per_tensor(x, *form), *form)
            weight = operators.dequantize_per_tensor(self.codes, 0.01, 0, -128, 127, torch.int8)
            x = torch.relu(nn.functional.conv2d(x, weight, self.bias))
        return operators.dequantize_per_tensor(operators.quantize_per_tensor(x, *form), *form)


@needs_vnni
def test_biases_of_torch_programs_are_added_in_kernels():
    network, x = Layers().eval(), torch.from_numpy(zoo._random(1, 8, 5, 5))
    plan = plan_of(network, inputs=x)
    layers = byte_layers(plan.prepared, plan.decisions).values()
    assert [each.form.stages[0].shift is not None for each in layers] == [True, True]
    model = build_plan(plan)
    assert {row["schedule"] for row in model.decisions} == {byte_cpu.NAME}
    assert np.abs(np.asarray(model(x.numpy())) - network(x).detach().numpy()).max() <= 1.001 * 0.05


@needs_vnni
def test_assertions_of_the_model_stay():
    class Checked(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = Layers()

        def forward(self, x):
            torch._assert_async((x < 100).all(), "inputs must be below 100")
            return self.layers(x)

    x = zoo._random(1, 8, 5, 5)
    model = build_plan(plan_of(Checked().eval(), inputs=torch.from_numpy(x)))
    assert np.asarray(model(x)).any()
    with pytest.raises(InputError, match="inputs must be below 100"):
        model(x + 100)
