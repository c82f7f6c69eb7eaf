"""Pruned torchvision networks, and the ways in which torch runs them."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tvm_sparse.conv.structure import Structure
from tvm_sparse.conv.structured_mask import structured_mask

# torch's own settings for convolutions and products: exact float32, or the tensor cores' TF32 (the default of
# convolutions).
FP32, TF32 = False, True
WARM_UP_CALLS = 3
# A "pattern" of zeros of `network`: filters that are gone, and with them the channels that they made.
NARROW = "narrow"
# What widths of VGG and ResNet are multiples of, and what narrower ones are made of: TF32 wants four channels.
WIDTH, STEP = 64, 4


def network(name: str, density: float, seed: int = 0, pattern: str = "unstructured") -> Any:
    """A torchvision network in evaluation mode with batch norm folded and its convolutions pruned by magnitude.

    The first convolution and depthwise ones stay dense; of a linear layer other than the last, which makes the classes,
    the same share is pruned. Weights are drawn so that activations stay of order 1 at any depth. `pattern` is that of
    the zeros, as `Structure.named` knows it; UsageError where it does not. ``narrow`` is a dense network with about
    that share of all channels: what is left of a VGG or a ResNet where whole filters are pruned.
    """
    import torchvision
    from torch.fx.experimental.optimization import fuse

    torch.manual_seed(seed)
    extra = {"init_weights": False, "aux_logits": False} if name == "googlenet" else {}
    module = torchvision.models.get_model(name, weights=None, **extra)
    folded = fuse(module.eval())
    if pattern == NARROW:
        _narrow(folded, density)
        density, pattern = 1.0, "unstructured"
    for each in _layers(folded):
        _draw(each, density if _is_pruned(folded, each) else 1.0, Structure.named(pattern))
    return folded


def images(batch: int) -> Any:
    """Random images (batch, 3, 224, 224), the same each time."""
    return torch.randn(batch, 3, 224, 224, generator=torch.Generator().manual_seed(1))


def _layers(module: Any) -> list[Any]:
    """Convolutions and linear layers, in the order of the model."""
    return [each for each in module.modules() if isinstance(each, torch.nn.Conv2d | torch.nn.Linear)]


def _is_pruned(module: Any, layer: Any) -> bool:
    layers = _layers(module)
    ends = (layers[0], layers[-1])
    return all(layer is not end for end in ends) and getattr(layer, "groups", 1) == 1


def _narrow(module: Any, share: float) -> None:
    """`share` of the channels between all layers; images and classes stay."""
    layers, left = _layers(module), STEP * max(1, round(WIDTH * share / STEP))
    for layer in layers:
        outputs, inputs, *taps = layer.weight.shape
        outputs = outputs if layer is layers[-1] else outputs // WIDTH * left
        inputs = inputs if layer is layers[0] else inputs // WIDTH * left
        layer.weight = torch.nn.Parameter(layer.weight.new_empty(outputs, inputs, *taps))
        layer.bias = torch.nn.Parameter(layer.bias[:outputs])


def _draw(layer: Any, density: float, structure: Structure) -> None:
    """Normal values, the largest of them kept, and a scale that keeps the energy of what passes a ReLU (He, 2015)."""
    weight, groups = layer.weight, getattr(layer, "groups", 1)
    with torch.no_grad():
        weight.normal_()
        if density < 1:
            saliency = weight.abs().numpy().reshape(*weight.shape, *[1] * (4 - weight.ndim))
            fitted = structure.fitted(len(weight) // groups)
            mask = structured_mask(saliency, fitted, 1 - density, groups)
            weight *= torch.from_numpy(mask).reshape(weight.shape)
        weight *= (2 * weight.shape[0] / weight.square().sum()).sqrt()


def reference(module: Any, x: Any) -> Any:
    """The output in float64."""
    with torch.no_grad():
        return copy.deepcopy(module).double()(x.double())


def contenders(module: Any, x: Any, with_compile: bool) -> dict[str, Callable[[], Any]]:
    """Name -> call without arguments that returns the output: torch's precisions in both layouts, as CUDA graphs.

    Names end in the layout: ``fp32 nchw``, ``tf32 nhwc``, ``fp16 nhwc``; ``compile tf32 nhwc`` is
    ``torch.compile(mode="max-autotune")``, which makes graphs of its own, and ``eager tf32 nhwc`` makes none.
    """
    made: dict[str, Callable[[], Any]] = {}
    for layout, memory_format in (("nchw", torch.contiguous_format), ("nhwc", torch.channels_last)):
        for name, dtype, allowed in (
            ("fp32", torch.float32, FP32),
            ("tf32", torch.float32, TF32),
            ("fp16", torch.half, TF32),
        ):
            own = copy.deepcopy(module).to(dtype=dtype, memory_format=memory_format)
            inputs = x.to(dtype=dtype, memory_format=memory_format)
            made[f"{name} {layout}"] = _graph(own, inputs, allowed)
            if name == "tf32":
                made[f"eager tf32 {layout}"] = _eager(own, inputs)
                if with_compile and layout == "nhwc":
                    compiled = torch.compile(own, mode="max-autotune")
                    made[f"compile tf32 {layout}"] = _eager(compiled, inputs)
    return made


def _allow(tf32: bool) -> None:
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32


def _eager(module: Any, x: Any) -> Callable[[], Any]:
    def call() -> Any:
        _allow(TF32)
        with torch.no_grad():
            return module(x)

    for _ in range(WARM_UP_CALLS):
        call()
    return call


@dataclass(frozen=True)
class _Replay:
    """Replays a graph; keeps what it reads, which torch would give back to the GPU as the next graph is recorded."""

    graph: Any
    output: Any
    read: tuple[Any, Any]

    def __call__(self) -> Any:
        self.graph.replay()
        return self.output


def _graph(module: Any, x: Any, tf32: bool) -> Callable[[], Any]:
    """Replays of a graph, recorded after cuDNN has chosen its algorithms by timing them."""
    _allow(tf32)
    torch.backends.cudnn.benchmark = True
    with torch.no_grad():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_CALLS):
                module(x)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = module(x)
    return _Replay(graph, output, (module, x))
