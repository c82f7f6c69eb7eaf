"""Use a pruned module behind `torch.compile`: graphs with sparse layers are compiled, the rest runs as it did."""

import os

import torch
from torch.nn.utils import prune

import tvm_sparse as ts

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(16, 16, 3, padding=1), torch.nn.ReLU()).eval()
prune.l1_unstructured(model[0], "weight", amount=0.9)
prune.remove(model[0], "weight")

compiled: list[ts.CompiledModel] = []
options = {"on_compiled": compiled.append, "target": os.environ.get("TVM_SPARSE_TARGET", "cpu")}
fast = torch.compile(model, backend="tvm_sparse", options=options)

x = torch.randn(1, 16, 16, 16)
# Calls that want gradients stay with torch.
with torch.no_grad():
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
print(f"compiled {len(compiled)} graph")
print(compiled[0].report_text())
