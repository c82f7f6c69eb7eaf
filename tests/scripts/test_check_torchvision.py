"""Models of torchvision compile for a CPU and agree with torch; the script checks all of them, these are quick ones."""

import importlib.util

import check_torchvision
import pytest
import torch

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is None, reason="needs torchvision: pip install 'tvm-sparse[test]'"
)


# A network whose outputs are named, one with squeeze and excitation, and a transformer.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["lraspp_mobilenet_v3_large", "mobilenet_v3_small", "swin_t"])
def test_models_agree(name):
    agrees, line = check_torchvision.check(name, check_torchvision.IMAGES[name])
    assert agrees, line
    assert line.startswith("agrees    error ")


def test_an_error_is_found(monkeypatch):
    """A model that the compiler gets wrong is not said to agree."""

    class Wrong:
        def __call__(self, x):
            return torch.zeros(1, 1000).numpy()

        def report(self):
            return []

    monkeypatch.setattr(check_torchvision.tvm_sparse, "compile", lambda *_: Wrong())
    agrees, line = check_torchvision.check("squeezenet1_1", 32)
    assert not agrees and line.startswith("differs   error ")
