"""Dense linear layers of many rows: computed by kernels of ours, in half precision and TF32 on a GPU by cuDNN.

On a CPU they are most of what transformers and ConvNeXt compute, and TVM's are plain loops: 100 times as long. On a GPU
they are no business of ours but for one thing: beside fast convolutions, the classifiers of VGG16 and AlexNet would
show. TVM's product of 64 images with a 4096x1000 weight takes 90 us on an H100 (`schedule_gemm`), that of `linear_cuda`
49, and that of `linear_tensor_cuda` 17 on an H200, where TVM's of eight images takes 72. In float16 TVM's takes 92.
In TF32 cuDNN's takes 14 where ours, to float32's accuracy, takes 23 with cold data.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm.ir import Expr
from tvm.target import Target

from tvm_sparse.compiler.building.kernel_store import KernelRequest, KernelStore
from tvm_sparse.compiler.building.verify import verify
from tvm_sparse.compiler.plan.choice import Default, Predicted
from tvm_sparse.compiler.plan.decision import Decision
from tvm_sparse.compiler.plan.predict import PRODUCT_IMAGES
from tvm_sparse.compiler.plan.reasons import DENSE_PRODUCT
from tvm_sparse.compiler.rewriting.replace_convolutions import replace_convolutions
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.storage import is_half
from tvm_sparse.errors import TvmSparseError
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer, Group, find_groups
from tvm_sparse.frontend.passes.relax_graph import Graph, linear_weight, matrix_weight, static_shape
from tvm_sparse.schedules import dense_cpu, dense_cudnn, linear_tensor_cuda
from tvm_sparse.schedules.linear_tensor_cuda import LEAST_IMAGES_DENSE
from tvm_sparse.schedules.lookup import family_of
from tvm_sparse.scheduling.family import HALF_VARIANTS, TF32_VARIANT
from tvm_sparse.scheduling.kernel import Kernel
from tvm_sparse.target.gpu import gpu_info

# On tensor cores of compute capability 9.0; elsewhere eight filters share a read of the inputs.
ON_TENSOR_CORES, ELSEWHERE = f"{linear_tensor_cuda.NAME}:dense", "linear_cuda:images-filters8"
# Where less than float32's accuracy will do.
IN_TF32 = f"{dense_cudnn.NAME}:{TF32_VARIANT}"
# Images that each serves: of fewer TVM's product reads a weight as fast, and of more it keeps a GPU busy. Weights: of
# fewer both take as long as a launch.
MOST_IMAGES, LEAST_WEIGHTS = 128, 2**19
IMAGES = {
    ON_TENSOR_CORES: range(LEAST_IMAGES_DENSE, MOST_IMAGES + 1),
    ELSEWHERE: range(32, MOST_IMAGES + 1),
    **{f"{dense_cudnn.NAME}:{each}": PRODUCT_IMAGES for each in (*HALF_VARIANTS.values(), TF32_VARIANT)},
}
# Of a dense layer's weights more are not zero; in half precision the smallest are.
DENSE = 0.999
# How names of the functions that compute them begin.
PREFIX = "tvm_sparse_dense"
# Makes kernels, or says why one cannot be made.
Make = Callable[[Sequence[KernelRequest]], list[Kernel | TvmSparseError]]


@dataclass(frozen=True)
class DenseProducts:
    """The dense linear layers of a module that are worth it, in program order; those in `schedules` get kernels.

    There each one's space is, by the layer's name.
    """

    groups: list[Group]
    schedules: Mapping[str, str]

    @classmethod
    def of(
        cls, module: tvm.IRModule, target: Target, wrong: Collection[str] = (), allow_tf32: bool = False
    ) -> "DenseProducts":
        """Those of `module`. The layers named in `wrong` get no kernel; `allow_tf32` as in `compile`."""
        is_cpu = target.kind.name == dense_cpu.FAMILY.target
        if not is_cpu and not gpu_info(target).has_clusters:
            return cls([], {})
        weight_of = _weight_of_cpu if is_cpu else _weight
        groups = find_groups(Graph.of(module), weight_of)
        layers = [group.layer for group in groups if group.layer.name not in wrong]
        schedules = {each.name: _schedule(each, target, allow_tf32) for each in layers}
        return cls(groups, {name: schedule for name, schedule in schedules.items() if schedule})

    @property
    def layers(self) -> list[ConvLayer]:
        """Those of `groups`."""
        return [group.layer for group in self.groups]

    @property
    def calls_cudnn(self) -> bool:
        """Whether cuDNN computes any of them."""
        return any(family_of(each).is_library for each in self.schedules.values())

    def kernels(self, make: Make) -> dict[str, Kernel]:
        """Kernels, by their layers, where `make` makes one."""
        layers = [each for each in self.layers if each.name in self.schedules]
        made = make([KernelRequest.of(each, self._decision(each, True)) for each in layers]) if layers else []
        pairs = zip(layers, made, strict=True)
        return {layer.name: kernel for layer, kernel in pairs if isinstance(kernel, Kernel)}

    def replace(self, module: tvm.IRModule, kernels: Mapping[str, Kernel]) -> tvm.IRModule:
        """`module` with the layers named in `kernels` computed by them."""
        return replace_convolutions(module, kernels, self.groups, PREFIX) if kernels else module

    def wrong(
        self, kernels: Mapping[str, Kernel], executable: Any, target: Target, store: KernelStore | None
    ) -> dict[str, str]:
        """As `verify`, of the layers named in `kernels`, which the compiled model `executable` has replaced."""
        decisions = [self._decision(each, each.name in kernels) for each in self.layers]
        return verify(self.layers, decisions, kernels, executable, target, store, PREFIX)

    def _decision(self, layer: ConvLayer, is_replaced: bool) -> Decision:
        # What is not replaced stays TVM's, and is not verified.
        choice = Predicted(self.schedules[layer.name], None) if is_replaced else Default(ON_TENSOR_CORES)
        return Decision(layer.name, 1.0, "dense", choice, reason=DENSE_PRODUCT)


def _schedule(layer: ConvLayer, target: Target, allow_tf32: bool) -> str:
    """The space that serves a layer, or ""."""
    dtype = layer.spec.dtype
    if target.kind.name == dense_cpu.FAMILY.target:
        return dense_cpu.NAME if dtype == FLOAT32 else ""
    has_cudnn = not dense_cudnn.why_not_here()
    if is_half(dtype):
        name = f"{dense_cudnn.NAME}:{HALF_VARIANTS[dtype]}" if has_cudnn else ""
    elif allow_tf32 and has_cudnn:
        name = IN_TF32
    elif gpu_info(target).has_sparse_warpgroups:
        name = ON_TENSOR_CORES
    else:
        # It leaves zeros out, whose products with infinity are NaN in a dense layer.
        name = ELSEWHERE if layer.weight.all() else ""
    return name if name and layer.spec.n in IMAGES[name] else ""


def _weight_of_cpu(value: Expr) -> np.ndarray | None:
    """The weight of a dense linear layer of several rows; that of one is read once, by TVM's (`schedule_matmul`)."""
    weight = matrix_weight(value)
    if weight is None or linear_weight(value) is not None:
        return None
    return weight if math.prod((static_shape(value.args[0]) or ())[:-1]) > 1 else None


def _weight(value: Expr) -> np.ndarray | None:
    """The weight of a dense linear layer that is worth it."""
    weight = matrix_weight(value)
    if weight is None or weight.size < LEAST_WEIGHTS:
        return None
    images = math.prod((static_shape(value.args[0]) or ())[:-1])
    if not any(images in each for each in IMAGES.values()):
        return None
    return weight if np.count_nonzero(weight) > DENSE * weight.size else None
