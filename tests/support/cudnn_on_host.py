"""Lets families that call cuDNN serve the host, for a cuDNN that computes there."""

from dataclasses import replace
from types import SimpleNamespace

from tvm_sparse.schedules import dense_cudnn, lookup


def changes():
    """(module, name, value) of each change that lets `dense_cudnn` serve the host."""
    return *of(dense_cudnn), (dense_cudnn, "gpu_info", lambda _: SimpleNamespace(compute_capability=90))


def of(module):
    """(module, name, value) of each change for the family in `module`, which is the first to be tried, as on a GPU."""
    family = replace(module.FAMILY, target="llvm")
    others = (each for each in lookup.FAMILIES if each is not module.FAMILY)
    return (
        (module, "FAMILY", family),
        (lookup, "FAMILIES", (family, *others)),
        (lookup, "_BY_NAME", {**lookup._BY_NAME, family.name: family}),
    )
