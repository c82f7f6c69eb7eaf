"""Rounding and clipping of integers are left out, and what changes values stays."""

import numpy as np
import onnx
import pytest
import zoo

from tvm_sparse.frontend.prepare import prepare


@pytest.mark.parametrize(
    ("pool", "bounds", "clips"),
    [
        ({"pads": [1, 1, 1, 1]}, (0, 255), 1),
        ({"pads": [1, 1, 1, 1]}, (0, 200), 2),
        ({"dilations": [2, 2]}, (0, 255), 2),
    ],
)
def test_what_is_within_the_bounds_is_not_clipped_again(tmp_path, pool, bounds, clips):
    constants = {"least": np.float32(0), "most": np.float32(255)}
    constants |= {f"{name}2": np.float32(each) for name, each in zip(("least", "most"), bounds, strict=True)}
    nodes = [
        ("Round", ["x"], ["r"], {}),
        ("Clip", ["r", "least", "most"], ["c"], {}),
        ("MaxPool", ["c"], ["p"], {"kernel_shape": [3, 3], **pool}),
        ("Round", ["p"], ["q"], {}),
        ("Clip", ["q", "least2", "most2"], ["y"], {}),
    ]
    size = 9 if "pads" in pool else 5
    module = zoo.onnx_model(nodes, constants, {"x": (1, 2, 9, 9)}, {"y": (1, 2, size, size)})
    path = tmp_path / "pool.onnx"
    onnx.save(module, path)
    text = prepare(path).mod["main"].script()
    assert (text.count("R.clip("), text.count("R.round(")) == (clips, 1 if pool.get("pads") else 2)
    x = np.random.default_rng(0).uniform(-20, 300, (1, 2, 9, 9)).astype(np.float32)
    found, expected = zoo.run_relax(prepare(path).mod, x)[0], zoo.run_onnx(module, x)[0]
    assert np.array_equal(found, expected)
