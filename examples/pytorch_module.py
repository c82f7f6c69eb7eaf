"""Prune a PyTorch module, compile it, and compare the results of both."""

import os

import torch
from torch.nn.utils import prune

import tvm_sparse as ts

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ReLU(),
    torch.nn.Conv2d(16, 16, 3, padding=1), torch.nn.ReLU(),
).eval()  # fmt: skip

# Fine-tune after this line in earnest; zeros stay zero while the mask is there.
prune.l1_unstructured(model[2], "weight", amount=0.9)

x = torch.randn(1, 3, 16, 16)
fast = ts.compile(model, x, target=os.environ.get("TVM_SPARSE_TARGET", "cpu"))
print(fast.report_text())

with torch.no_grad():
    difference = (fast(x) - model(x)).abs().max().item()
assert difference < 1e-4
print(f"largest difference: {difference:.1e}")
