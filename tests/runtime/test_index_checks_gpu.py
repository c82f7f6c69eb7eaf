"""Hostile indices on a GPU: each is an InputError or right, and NVIDIA's compute-sanitizer sees no wrong address.

python -m pytest -m gpu tests/runtime/test_index_checks_gpu.py
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tvm_sparse
from tvm_sparse.errors import InputError

pytestmark = pytest.mark.gpu
SUPPORT = Path(__file__).parents[1] / "support"
# One of each kind of operator; the float coordinates of the last three are hostile.
NAMES = ["Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "torch embedding", "torch index pair"]
NAMES += ["torch long then index", "RoiAlign", "GridSample"]
SANITIZER = shutil.which("compute-sanitizer")


def fuzz(*prefix):
    command = [*prefix, sys.executable, SUPPORT / "index_fuzz.py", "cuda", "0", "8", *NAMES]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))


def test_hostile_inputs():
    found = fuzz()
    assert not found["wrong"]
    assert found["counts"]["refused"] > len(NAMES)


@pytest.mark.slow
@pytest.mark.skipif(SANITIZER is None, reason="compute-sanitizer, of the CUDA toolkit, is not here")
def test_no_address_is_wrong():
    assert not fuzz(SANITIZER, "--tool", "memcheck", "--error-exitcode", "9")["wrong"]


class Lookup(nn.Module):
    def forward(self, x, i):
        return x[:, i] * 2


def test_graphs_streams_and_captures():
    x, i = torch.randn(4, 64, device="cuda"), torch.arange(8, device="cuda")
    model = tvm_sparse.compile(Lookup().eval(), (x.cpu(), i.cpu()), target="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        for turn in range(4):
            np.testing.assert_array_equal(model(x, i + turn).cpu(), (x[:, i + turn] * 2).cpu())
            with pytest.raises(InputError, match="found 64; allowed: -64 to 63"):
                model(x, i + 57)
    graph, static = torch.cuda.CUDAGraph(), i.clone()
    with torch.cuda.graph(graph):
        found = model(x, static)
    static.copy_(i + 57)
    graph.replay()
    torch.cuda.synchronize()
    np.testing.assert_array_equal(found[:, :7].cpu(), (x[:, 57:] * 2).cpu())
    np.testing.assert_array_equal(found[:, 7].cpu(), (x[:, 63] * 2).cpu())
