"""Real networks under `torch.compile`: whole, without a graph left to eager, and as eager computes them."""

import pytest
import torch
from parameters import sampled
from vision import pruned
from zoo import UNOPTIMISED

from tvm_sparse.dynamo.backend import backend

IMAGE = 64
MODELS = (
    "alexnet",
    "efficientnet_b0",
    "mobilenet_v2",
    "resnet18",
    "squeezenet1_1",
    "vgg11",
)
# With a residual, and with what is concatenated.
FEW = ("squeezenet1_1",)
# On a GPU, where a compilation takes less long, others too.
LARGE_MODELS = (
    "resnet50",
    "vgg16",
    "densenet121",
    "googlenet",
    "inception_v3",
    "mnasnet0_5",
    "regnet_y_400mf",
    "shufflenet_v2_x0_5",
)


def check(name, device, image=IMAGE, **options):
    """What is compiled agrees with eager, on inputs that eager can tell apart."""
    model, compiled = pruned(name, image).to(device), []
    fast = torch.compile(model, backend=backend, options={"on_compiled": compiled.append, **options})
    x, z = torch.randn(2, 1, 3, image, image, device=device, generator=torch.Generator(device).manual_seed(1))
    with torch.no_grad():
        found, want, other = fast(x), model(x), model(z)
    assert (found - want).abs().max() < 1e-3 * (want - other).abs().max()
    (only,) = compiled
    convolutions = sum(isinstance(module, torch.nn.Conv2d) for module in model.modules())
    # Auxiliary classifiers have convolutions that are for training only.
    assert 0 < len(only.report()) <= convolutions
    assert not [row for row in only.report() if not row["layer"]]


@pytest.mark.parametrize("name", sampled(MODELS, FEW))
@pytest.mark.filterwarnings("ignore:torch.compile. no log knows a kernel", "ignore:input .* is not contiguous")
def test_on_the_cpu(name):
    check(name, "cpu", target=UNOPTIMISED)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", [*MODELS, *LARGE_MODELS])
@pytest.mark.filterwarnings("ignore:torch.compile. no log knows a kernel", "ignore:input .* is not contiguous")
def test_on_a_gpu(name, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    check(name, "cuda", 96 if name == "inception_v3" else IMAGE)
