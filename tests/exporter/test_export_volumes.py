"""Convolutions of volumes, exported for a GPU: maps are read in place by folded kernels and by cuDNN."""

import exported
import numpy as np
import pytest
import torch
from exported_for_gpu import fakes, made, run
from torch import nn

from tvm_sparse.compiler.layouts import choose_layouts
from tvm_sparse.compiler.plan import kernel_selection
from tvm_sparse.compiler.plan.predict import Prediction

X = np.random.default_rng(0).standard_normal((2, 4, 5, 6, 8)).astype(np.float32)


class Film(nn.Module):
    """Two layers of 8 filters, which get folded kernels, then two of 4."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv3d(4, 8, 3, padding=1), nn.Conv3d(8, 8, (3, 3, 1), (2, 1, 1), 0)
        self.third, self.last = nn.Conv3d(8, 4, (2, 3, 3), padding=1), nn.Conv3d(4, 4, 3, padding=1)

    def forward(self, x):
        y = torch.relu(self.second(torch.relu(self.first(x))))
        z = torch.relu(self.third(y))
        return self.last(z) + z


@pytest.mark.parametrize("folded", [True, False])
def test_films_are_computed_in_c(folded, monkeypatch, tmp_path):
    """By folded kernels, whose volumes get zeros at their ends; or all by cuDNN in NHWC, which does that itself."""
    guess = Prediction("folded_cuda", 2.0, None, 1.0)
    monkeypatch.setattr(kernel_selection, "remembered", lambda spec, *_: guess if folded and spec.k == 8 else None)
    monkeypatch.setattr(choose_layouts, "layout_change_us", lambda *_, **__: 0.0)
    libraries = fakes(tmp_path / "fakes")
    model, out, kernels = made(monkeypatch, libraries, Film().eval(), (X,), tmp_path, allow_tf32=True)
    schedules = [row["schedule"].partition(":")[0] for row in model.report()]
    assert schedules == ["folded_cuda" if folded else "dense_cudnn"] * 2 + ["dense_cudnn"] * 2
    code = (out / "model.so").read_bytes()
    assert b"with_depths" not in code and (b"with_ends" in code) == folded
    X.tofile(tmp_path / "x.raw")
    program = exported.build(out, tmp_path / "main")
    code, output, said = run(program, libraries, [out / "model.plan", tmp_path / "x.raw"], kernels)
    assert (code, said) == (0, [])
    with torch.no_grad():
        want = Film().eval()(torch.from_numpy(X)).numpy()
    found = np.frombuffer(output, np.float32).reshape(want.shape)
    np.testing.assert_allclose(found, want, rtol=1e-2, atol=1e-2 * np.abs(want).max())
