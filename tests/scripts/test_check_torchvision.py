"""Models of torchvision compile for a CPU and agree with torch; the script checks all of them, these are small ones."""

import importlib.util

import check_torchvision
import pytest
import torch
from zoo import UNOPTIMISED

from benchmarks.models import torch_models

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is None, reason="needs torchvision: pip install 'tvm-sparse[test]'"
)

IMAGE = 64


class Segments(torch.nn.Module):
    """A MobileNetV3 with named outputs, squeeze and excitation: of LR-ASPP, and of its own classifier."""

    def __init__(self):
        super().__init__()
        models = check_torchvision.torchvision_models()
        net = models.mobilenet_v3_small(weights=None, dilated=True)
        self.segments = models.segmentation.lraspp._lraspp_mobilenetv3(net, 21)
        self.classifier = net.classifier

    def forward(self, x):
        found = self.segments.backbone(x)
        segments = torch.nn.functional.interpolate(self.segments.classifier(found), x.shape[-2:], mode="bilinear")
        return {"out": segments, "classes": self.classifier(found["high"].mean((2, 3)))}


def transformer():
    """Of Swin: windows that are shifted and the only one of their map, patches merged once."""
    make = check_torchvision.torchvision_models().SwinTransformer
    return make(patch_size=[4, 4], embed_dim=48, depths=[2, 1], num_heads=[3, 6], window_size=[7, 7])


@pytest.mark.exhaustive
@pytest.mark.parametrize("make", [Segments, transformer])
def test_models_agree(make):
    torch.manual_seed(0)
    agrees, line = check_torchvision.check(check_torchvision.set_up(make(), IMAGE), IMAGE, UNOPTIMISED)
    assert agrees, line
    assert line.startswith("agrees    error ")


def test_an_error_is_found(monkeypatch):
    """A model that the compiler gets wrong is not said to agree."""

    class Wrong:
        def __call__(self, x):
            return torch.zeros(1, 1000).numpy()

        def report(self):
            return []

    monkeypatch.setattr(check_torchvision.tvm_sparse, "compile", lambda *_, **__: Wrong())
    agrees, line = check_torchvision.check(check_torchvision.random_model("squeezenet1_1", 32), 32)
    assert not agrees and line.startswith("differs   error ")


def test_a_narrow_network_has_that_share_of_its_channels():
    """Images keep their colours, classes their number; what filters are pruned away leaves their readers too."""
    check_torchvision.torchvision_models()
    net = torch_models.network("alexnet", 0.3, pattern=torch_models.NARROW)
    shapes = [tuple(each.shape) for name, each in net.named_parameters() if name.endswith("weight")]
    assert shapes[0] == (20, 3, 11, 11) and shapes[1] == (60, 20, 5, 5)
    assert shapes[-3:] == [(1280, 80 * 36), (1280, 1280), (1000, 1280)]
    assert all(each.count_nonzero() == each.numel() for each in net.parameters() if each.ndim > 1)
    with torch.no_grad():
        assert net(torch.randn(1, 3, 224, 224)).shape == (1, 1000)
