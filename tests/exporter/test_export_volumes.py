"""Convolutions of volumes, exported for a GPU: maps are read in place by folded kernels and by cuDNN."""

import exported
import numpy as np
import torch
from exported_for_gpu import fakes, made, run
from torch import nn

from tvm_sparse.compiler.building import kernel_parts
from tvm_sparse.compiler.layouts import choose_layouts
from tvm_sparse.compiler.plan import kernel_selection
from tvm_sparse.compiler.plan.predict import Prediction

X = np.random.default_rng(0).standard_normal((2, 4, 5, 6, 8)).astype(np.float32)


class Film(nn.Module):
    """Two layers of some filters, then two of 4."""

    def __init__(self, filters):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv3d(4, filters, 3, padding=1), nn.Conv3d(filters, filters, (3, 3, 1), (2, 1, 1))
        self.third, self.last = nn.Conv3d(filters, 4, (2, 3, 3), padding=1), nn.Conv3d(4, 4, 3, padding=1)

    def forward(self, x):
        y = torch.relu(self.second(torch.relu(self.first(x))))
        z = torch.relu(self.third(y))
        return self.last(z) + z


class Residual(nn.Module):
    """A layer of maps whose result is added to what it reads."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        return torch.relu(self.conv(x) + x)


def computed(module, x, monkeypatch, folder):
    """The exported model's output, its decisions and its code; layers of 8 filters are predicted to be folded.

    The code of more than half of a layer's channels, or taps in depth, is taken to be too much for a GPU's caches.
    """
    guess = Prediction("folded_cuda", 2.0, None, 1.0)
    monkeypatch.setattr(kernel_selection, "remembered", lambda spec, *_: guess if spec.k == 8 else None)
    monkeypatch.setattr(kernel_parts, "PART_BYTES", 5000)
    monkeypatch.setattr(kernel_parts, "PART_PIXELS", 0)
    monkeypatch.setattr(choose_layouts, "layout_change_us", lambda *_, **__: 0.0)
    libraries = fakes(folder / "fakes")
    model, out, kernels = made(monkeypatch, libraries, module.eval(), (x,), folder, allow_tf32=True)
    x.tofile(folder / "x.raw")
    program = exported.build(out, folder / "main")
    code, output, said = run(program, libraries, [out / "model.plan", folder / "x.raw"], kernels)
    assert (code, said) == (0, [])
    with torch.no_grad():
        want = module(torch.from_numpy(x)).numpy()
    found = np.frombuffer(output, np.float32).reshape(want.shape)
    np.testing.assert_allclose(found, want, rtol=1e-2, atol=1e-2 * np.abs(want).max())
    return [
        (row["schedule"].partition(":")[0], len(row.get("kernels", ()))) for row in model.report()
    ], out / "model.so"


def test_films_are_computed_by_a_folded_kernel_for_each_tap(monkeypatch, tmp_path):
    """Volumes get zeros at their ends; what cuDNN computes reads maps as they are, and no map is there three times."""
    decisions, library = computed(Film(8), X, monkeypatch, tmp_path)
    assert decisions == [("folded_cuda", 3)] * 2 + [("dense_cudnn", 0)] * 2
    assert b"with_ends" in library.read_bytes()


def test_films_are_computed_by_cudnn_in_place(monkeypatch, tmp_path):
    decisions, library = computed(Film(4), X, monkeypatch, tmp_path)
    assert decisions == [("dense_cudnn", 0)] * 4
    code = library.read_bytes()
    assert b"with_depths" not in code and b"with_ends" not in code


def test_channels_are_computed_by_several_folded_kernels(monkeypatch, tmp_path):
    x = np.random.default_rng(0).standard_normal((2, 8, 6, 8)).astype(np.float32)
    assert computed(Residual(), x, monkeypatch, tmp_path)[0] == [("folded_cuda", 2)]
