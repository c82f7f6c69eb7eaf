"""docs/pruning.md: its Python is one script that does what the page says, and its bytes are those that are counted."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_readme import blocks

from tvm_sparse.conv.packed_size import packed_bytes
from tvm_sparse.conv.structure import Structure
from tvm_sparse.conv.structured_mask import structured_mask

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "pruning.md").read_text()
CHECKS = """
with torch.no_grad():
    assert (net(x[384:]).argmax(1) == y[384:]).float().mean() > 0.8
fast = ts.compile(net, x[:1])
torch.testing.assert_close(fast(x[:1]), net(x[:1]).detach(), rtol=1e-4, atol=1e-4)
"""


@pytest.mark.exhaustive
def test_the_script_runs(tmp_path):
    first, second = blocks("python", PAGE)
    (tmp_path / "script.py").write_text("\n".join([first, CHECKS, second]))
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"'layer': '2', 'pattern': 'vector8', .*'zeros': 0\.80", done.stdout)
    assert re.search(r"'layer': '4', 'pattern': 'slice16cr', .*'zeros': 0\.80", done.stdout)
    assert re.search(r"^4: \d+% zeros", done.stdout, re.MULTILINE)


ROWS = re.findall(r"^\| `([\w:]+)`[^|]*\| (\d+) \| ([\d.]+)% \|", PAGE, re.MULTILINE)


def test_the_table_of_bytes_has_rows():
    assert len(ROWS) == 9


@pytest.mark.parametrize(("name", "kilobytes", "percent"), ROWS)
def test_bytes_of_the_table(name, kilobytes, percent):
    saliency = np.random.default_rng(0).random((256, 256, 3, 3))
    mask = structured_mask(saliency, Structure.named(name), 0.5 if name == "2:4" else 0.9)
    size = packed_bytes(mask, Structure.of(mask))
    assert round(size / 1e3) == int(kilobytes)
    assert 100 * size / (4 * mask.size) == pytest.approx(float(percent), abs=0.5)


def test_the_drawing_is_right():
    """Of each drawn weight the pattern is the one that is written above it."""
    (drawing,) = blocks("", PAGE)
    lines = [line for line in drawing.splitlines() if re.fullmatch(r"[ #.]+", line)]
    columns = zip(*([each.replace(" ", "") for each in re.split(r" {3,}", line)] for line in lines), strict=True)
    unstructured, vectors, slices, rows = (np.array([list(row) for row in each]) == "#" for each in columns)
    assert unstructured.shape == vectors.shape == slices.shape == (8, 12) and rows.shape == (8, 9)
    assert Structure.of(vectors.reshape(8, 4, 1, 3)).name == "vector4"
    assert not any((unstructured[a : a + 4] == unstructured[a]).all() for a in (0, 4))
    for drawn in (slices, rows):
        by_slice = drawn.reshape(2, 4, -1, 3)
        assert (by_slice == by_slice[:, :1, :, :1]).all() and 0 < by_slice.mean() < 0.5
