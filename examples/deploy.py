"""Save a compiled model, load it as a machine without torch would, and export it as C."""

import os

import numpy as np
import torch
from torch.nn.utils import prune

import tvm_sparse as ts

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.ReLU()).eval()
prune.l1_unstructured(model[0], "weight", amount=0.9)
x = torch.randn(1, 8, 8, 8)

ts.compile(model, x, target=os.environ.get("TVM_SPARSE_TARGET", "cpu")).save("network.sparse")

# From here on neither torch nor the model is needed. An artifact is code: load only what you trust.
shipped = ts.load("network.sparse")
with torch.no_grad():
    np.testing.assert_allclose(np.from_dlpack(shipped(x.numpy())), model(x).numpy(), rtol=1e-4, atol=1e-4)
print("loaded: right")

# A folder with a C library, the kernels and a program; build it with CMake.
folder = ts.export("network.sparse", "network_c")
print("C:", ", ".join(sorted(each.name for each in folder.iterdir())))
