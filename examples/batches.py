"""Serve any number of samples: code for batches of 1 and 4, requests of other sizes are padded or take turns."""

import os

import torch
from torch.nn.utils import prune

import tvm_sparse as ts

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.ReLU()).eval()
prune.l1_unstructured(model[0], "weight", amount=0.9)

fast = ts.compile(model, torch.randn(1, 8, 8, 8), batch=[1, 4], target=os.environ.get("TVM_SPARSE_TARGET", "cpu"))

for samples in (1, 3, 4, 10):
    x = torch.randn(samples, 8, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
    print(f"{samples} samples: right")
