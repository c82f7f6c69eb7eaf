"""Dense linear layers of several rows on a CPU, and of many images on a GPU, get kernels of ours; others stay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import tvm_sparse
from tvm_sparse.compiler import build_model, build_plan
from tvm_sparse.compiler.building import dense_products
from tvm_sparse.compiler.building.dense_products import ELSEWHERE, IN_TF32, ON_TENSOR_CORES, PREFIX, DenseProducts, Make
from tvm_sparse.compiler.building.kernel_store import KernelRequest
from tvm_sparse.compiler.plan.kernel_selection import decide
from tvm_sparse.compiler.rewriting.replace_convolutions import function_names
from tvm_sparse.conv.reference import relative_difference
from tvm_sparse.errors import BuildError
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.schedules.lookup import make_kernel
from tvm_sparse.scheduling.kernel import Kernel
from tvm_sparse.target.resolve import resolve_target

CUDA = resolve_target({"kind": "cuda", "arch": "sm_90"})
CPU = resolve_target('{"kind":"llvm","opt-level":0,"num-cores":1}')


def classifier(inputs: int = 1024, outputs: int = 600) -> nn.Sequential:
    """A sparse linear layer and a dense one, each with what follows it."""
    torch.manual_seed(0)
    sparse = nn.Linear(inputs, inputs)
    with torch.no_grad():
        sparse.weight[torch.rand_like(sparse.weight) > 0.1] = 0
    return nn.Sequential(sparse, nn.ReLU(), nn.Linear(inputs, outputs), nn.ReLU()).eval()


def replaced(model: nn.Module, shape: tuple[int, ...], target=CUDA, wrong=()) -> list[str]:
    """Names of the dense layers that get a kernel."""
    return sorted(DenseProducts.of(prepare(model, torch.zeros(shape)).mod, target, wrong).schedules)


def made(requests: list[KernelRequest]) -> list[Kernel]:
    """Kernels that are not compiled."""
    assert [each.schedule for each in requests] == [ON_TENSOR_CORES]
    return [make_kernel(each.schedule, each.spec, each.weight, CUDA, each.decisions) for each in requests]


@pytest.mark.parametrize("shape", [(5, 1024), (128, 1024), (4, 16, 1024)])
def test_dense_layers_of_many_images_are_found(shape: tuple[int, ...]) -> None:
    """The sparse one is not among them: it is a layer of the model's own."""
    model = prepare(classifier(), torch.zeros(shape))
    assert [each.name for each in model.layers] == ["0"]
    assert replaced(classifier(), shape) == ["linear0"]


@pytest.mark.parametrize(
    ("shape", "outputs"), [((4, 1024), 600), ((129, 1024), 600), ((1, 1024), 600), ((64, 1024), 500)]
)
def test_others_stay(shape: tuple[int, ...], outputs: int) -> None:
    """Few images, so many that TVM's product is good, and small weights."""
    assert replaced(classifier(outputs=outputs), shape) == []


def test_a_layer_with_a_few_zeros_is_replaced_where_they_are_multiplied() -> None:
    """Their products with infinity are NaN, as the layer is dense; `linear_cuda` would leave them out."""
    model = classifier()
    with torch.no_grad():
        model[2].weight[3, 5] = 0
    assert replaced(model, (64, 1024)) == ["linear0"]
    assert replaced(model, (64, 1024), resolve_target({"kind": "cuda", "arch": "sm_100"})) == []
    with torch.no_grad():
        model[2].weight[:2] = 0
    assert replaced(model, (64, 1024)) == []


def test_none_is_replaced_on_another_gpu_or_where_it_was_wrong() -> None:
    """Not on one without clusters, whose space is another."""
    assert replaced(classifier(), (64, 1024), resolve_target({"kind": "cuda", "arch": "sm_80"})) == []
    assert replaced(classifier(), (64, 1024), wrong=["linear0"]) == []


def test_on_a_cpu_all_of_several_rows_are_replaced() -> None:
    """Whatever their size; that of one row is read once, as TVM's product does."""
    assert replaced(classifier(), (2, 1024), CPU) == replaced(classifier(64, 10), (3, 5, 64), CPU) == ["linear0"]
    assert replaced(classifier(), (1, 1024), CPU) == replaced(classifier(), (64, 1024), CPU, ["linear0"]) == []
    assert prepare(classifier(), torch.zeros(2, 1024)).layers[0].name == "0"


@pytest.mark.parametrize("shape", [(2, 3, 50, 96), (7, 96)])
def test_a_cpu_model_agrees_with_torch(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """With bias, GELU and what is added; a kernel that is wrong gives way to TVM's."""
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.narrow = nn.Linear(96, 200), nn.Linear(200, 96)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.narrow(nn.functional.gelu(self.wide(x)))

    model, x = Block().eval(), torch.randn(shape)
    expected = model(x).detach().numpy()
    monkeypatch.setattr(build_plan.LibraryCache, "of_user", classmethod(lambda *_: None))
    assert np.allclose(np.asarray(tvm_sparse.compile(model, x, target=CPU)(x)), expected, rtol=1e-4, atol=1e-5)

    def doubled(self: DenseProducts, make: Make, of=DenseProducts.kernels) -> dict[str, Kernel]:
        found = of(self, make)
        return {name: replace(each, constants=tuple(2 * one for one in each.constants)) for name, each in found.items()}

    monkeypatch.setattr(DenseProducts, "kernels", doubled)
    assert np.allclose(np.asarray(tvm_sparse.compile(model, x, target=CPU)(x)), expected, rtol=1e-4, atol=1e-5)


def test_a_kernel_computes_the_layer_with_its_bias_and_relu() -> None:
    """Beside the model's own layers, without a copy, and on tensor cores."""
    prepared = prepare(classifier(), torch.zeros(4, 16, 1024))
    decisions = decide(prepared.layers, CUDA, None)
    module = build_plan.replace_convolutions(prepared.mod, build_plan.kernels_of(prepared.layers, decisions, CUDA))
    products = DenseProducts.of(module, CUDA)
    (layer,) = products.layers
    assert (layer.spec.n, layer.spec.c, layer.spec.k) == (64, 1024, 600) and layer.spec.bias and layer.spec.relu
    kernels = products.kernels(made)
    assert list(kernels) == ["linear0"]
    text = products.replace(module, kernels)["main"].script()
    assert "R.matmul" not in text and "R.nn.relu" not in text
    assert "R.call_tir(tvm_sparse_0_" in text and "R.call_tir(tvm_sparse_dense_0_" in text


def test_kernels_of_other_gpus_are_others() -> None:
    """Those with clusters, whose warpgroups do not multiply."""
    module = prepare(classifier(), torch.zeros(64, 1024)).mod
    for arch, schedule in (("sm_90", ON_TENSOR_CORES), ("sm_100", ELSEWHERE)):
        target = resolve_target({"kind": "cuda", "arch": arch})
        products = DenseProducts.of(module, target)
        assert products.schedules == {"linear0": schedule}

        def make(requests: list[KernelRequest], target=target) -> list[Kernel]:
            return [make_kernel(each.schedule, each.spec, each.weight, target, each.decisions) for each in requests]

        assert list(products.kernels(make)) == ["linear0"]
        # Of few images only tensor cores gain.
        assert replaced(classifier(), (31, 1024), target) == (["linear0"] if schedule == ON_TENSOR_CORES else [])


@pytest.mark.parametrize(("dtype", "variant"), [("float16", "fp16"), ("bfloat16", "bf16")])
def test_in_half_precision_they_are_cudnns_where_it_is_found(dtype: str, variant: str, monkeypatch) -> None:
    """Which the model then needs; elsewhere they stay. Of weights that small a few are zero."""
    model = classifier()
    with torch.no_grad():
        model[2].weight[3, 5] = 0
    module = prepare(model, torch.zeros(64, 1024), dtype=dtype).mod
    for missing, expected in (("", {"linear0": f"dense_cudnn:{variant}"}), ("none here", {})):
        monkeypatch.setattr(dense_products.dense_cudnn, "why_not_here", lambda missing=missing: missing)
        products = DenseProducts.of(module, CUDA)
        assert products.schedules == expected and products.calls_cudnn == bool(expected)


def test_they_are_cudnns_where_tf32_is_allowed_and_it_is_found(monkeypatch) -> None:
    """Elsewhere those of ours, to float32's accuracy."""
    module = prepare(classifier(), torch.zeros(8, 1024)).mod
    monkeypatch.setattr(dense_products.dense_cudnn, "why_not_here", lambda: "")
    assert DenseProducts.of(module, CUDA).schedules == {"linear0": ON_TENSOR_CORES}
    products = DenseProducts.of(module, CUDA, allow_tf32=True)
    assert products.schedules == {"linear0": IN_TF32} and products.calls_cudnn
    monkeypatch.setattr(dense_products.dense_cudnn, "why_not_here", lambda: "none here")
    assert DenseProducts.of(module, CUDA, allow_tf32=True).schedules == {"linear0": ON_TENSOR_CORES}


def test_functions_are_found_again_where_some_layers_stay() -> None:
    """Of two layers the first turned out wrong."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 600)).eval()
    module = prepare(model, torch.zeros(64, 1024)).mod
    products = DenseProducts.of(module, CUDA, ["linear0"])
    kernels = products.kernels(made)
    (name,) = function_names(products.layers, kernels, PREFIX).values()
    replaced_module = products.replace(module, kernels)
    assert name in [each.name_hint for each in replaced_module.get_global_vars()]
    assert replaced_module["main"].script().count("R.matmul") == 1


def test_a_kernel_that_cannot_be_made_leaves_the_layer() -> None:
    """As TVM computes it."""
    module = prepare(classifier(), torch.zeros(64, 1024)).mod
    products = DenseProducts.of(module, CUDA)
    kernels = products.kernels(lambda requests: [BuildError("kernel", "none") for _ in requests])
    assert kernels == {} and products.replace(module, kernels) is module


@pytest.mark.gpu
@pytest.mark.parametrize("allow_tf32", [False, True])
def test_the_model_is_right_on_a_gpu(allow_tf32: bool) -> None:
    """Against float64."""
    model, x = classifier(), np.random.default_rng(0).standard_normal((64, 1024)).astype(np.float32)
    found = build_model.compile(model, torch.from_numpy(x), target=resolve_target("cuda"), allow_tf32=allow_tf32)
    expected = model.double()(torch.from_numpy(x).double()).detach().numpy()
    y = found(torch.from_numpy(x).cuda())
    # Corrected TF32 was off by 1.3e-6 on an H200.
    assert relative_difference(y.cpu().numpy(), expected) < (1e-2 if allow_tf32 else 4e-6)
