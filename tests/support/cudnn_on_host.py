"""Lets the family that calls cuDNN serve the host, for a cuDNN that computes there."""

from dataclasses import replace
from types import SimpleNamespace

from tvm_sparse.schedules import dense_cudnn, lookup


def changes():
    """(module, name, value) of each change; `dense_cudnn` is then the first to be tried, as on a GPU."""
    family = replace(dense_cudnn.FAMILY, target="llvm")
    others = (each for each in lookup.FAMILIES if each is not dense_cudnn.FAMILY)
    return (
        (dense_cudnn, "FAMILY", family),
        (dense_cudnn, "gpu_info", lambda _: SimpleNamespace(compute_capability=90)),
        (lookup, "FAMILIES", (family, *others)),
        (lookup, "_BY_NAME", {**lookup._BY_NAME, family.name: family}),
    )
