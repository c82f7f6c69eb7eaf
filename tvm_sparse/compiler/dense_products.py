"""Dense linear layers of a GPU model on many images: computed by `linear_cuda`, whose filters share what they read.

They are no business of ours but for one thing: beside fast convolutions, the classifiers of VGG16 and AlexNet would
show. TVM's product of 64 images with a 4096x1000 weight takes 90 us on an H100 (`schedule_gemm`), this one 49.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm.target import Target

from tvm_sparse.compiler.kernel_selection import Decision
from tvm_sparse.compiler.kernel_store import KernelRequest
from tvm_sparse.compiler.replace_convolutions import replace_convolutions
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import TvmSparseError
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer, find_groups
from tvm_sparse.frontend.passes.relax_graph import dense_linear_weight
from tvm_sparse.scheduling.kernel import Kernel
from tvm_sparse.target.gpu import gpu_info

# Eight filters share a read of the inputs, so it takes as many at a time.
SCHEDULE = "linear_cuda:images-filters8"
# Images: of fewer reading the weight is the bound, and of more TVM's product keeps a GPU busy. Weights: of fewer both
# take as long as a launch.
IMAGES, LEAST_WEIGHTS = range(32, 129), 2**19
# Makes kernels, or says why one cannot be made.
Make = Callable[[Sequence[KernelRequest]], list[Kernel | TvmSparseError]]


@dataclass(frozen=True)
class DenseProducts:
    """The dense linear layers of a module, in the order of the program, and a decision for each.

    Those that are to be replaced are `transferred`: they are verified before they are used.
    """

    layers: list[ConvLayer]
    decisions: list[Decision]

    @classmethod
    def of(cls, module: tvm.IRModule, target: Target, wrong: Collection[str] = ()) -> "DenseProducts":
        """Those of `module`; the layers named in `wrong` stay as they are, as all do on a CPU."""
        if target.kind.name != "cuda" or not gpu_info(target).has_clusters:
            return cls([], [])
        layers = [group.layer for group in find_groups(module, dense_linear_weight)]
        return cls(layers, [_decision(layer, layer.name not in wrong) for layer in layers])

    def kernels(self, make: Make) -> dict[str, Kernel]:
        """Kernels, by their layers, of those that get one and for which `make` makes one."""
        replaced = [pair for pair in zip(self.layers, self.decisions, strict=True) if pair[1].transferred]
        made = make([KernelRequest.of(*pair) for pair in replaced]) if replaced else []
        pairs = zip(replaced, made, strict=True)
        return {layer.name: kernel for (layer, _), kernel in pairs if isinstance(kernel, Kernel)}

    def replace(self, module: tvm.IRModule, kernels: Mapping[str, Kernel]) -> tvm.IRModule:
        """`module` with the layers named in `kernels` computed by them."""
        return replace_convolutions(module, kernels, dense_linear_weight) if kernels else module


def _decision(layer: ConvLayer, may_be_replaced: bool) -> Decision:
    return Decision(
        layer=layer.name,
        density=layer.pattern.density,
        structure=layer.pattern.structure,
        schedule=SCHEDULE,
        dense_time_us=None,
        time_us=None,
        reason="a dense linear layer of many images",
        transferred=may_be_replaced and _is_worth_it(layer.spec, layer.weight),
    )


def _is_worth_it(spec: ConvSpec, weight: np.ndarray) -> bool:
    # Products with zeros, which the kernel leaves out, are computed where the layer is dense: they may be no numbers.
    return spec.dtype == FLOAT32 and spec.n in IMAGES and weight.size >= LEAST_WEIGHTS and bool(weight.all())
