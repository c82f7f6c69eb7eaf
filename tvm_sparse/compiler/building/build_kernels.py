"""The CUDA kernels of a model, each built by itself, and none that was built before."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import tvm
from tvm.target import Target

from tvm_sparse.codegen.cuda.nvcc import cuda_compiler
from tvm_sparse.codegen.kernel_source import BuiltKernel, device_module
from tvm_sparse.compiler.building.build_pool import BuildPool, Result
from tvm_sparse.compiler.building.kernel_store import Facts, KernelRequest, KernelStore
from tvm_sparse.errors import TvmSparseError
from tvm_sparse.schedules.lookup import family_of, find_space
from tvm_sparse.scheduling.kernel import Kernel, apply_decisions

# What was estimated beforehand counts like this share of the work, done in the time that was estimated for it.
PRIOR_SHARE = 0.05


@dataclass(frozen=True)
class BuildProgress:
    """How far the kernels of a model are: `done` of `total` are there, `found` of these without being built.

    `eta_s` is about how many seconds the rest will take.
    """

    done: int
    total: int
    found: int
    eta_s: float


# Is told how far the kernels are, in the thread that compiles.
OnProgress = Callable[[BuildProgress], None]


class KernelBuilder:
    """Builds kernels for `target`; what it has made once it gives again, and `store` beyond its life."""

    def __init__(self, target: Target, store: KernelStore, on_progress: OnProgress | None = None):
        self._target, self._store, self._on_progress = target, store, on_progress
        self._results: dict[str, Result] = {}
        self._kernels: dict[str, Kernel] = {}
        self._modules: dict[tuple[str, ...], tvm.runtime.Module] = {}

    def build(self, requests: Sequence[KernelRequest]) -> list[Kernel | TvmSparseError]:
        """The kernel of each request, the same object for equal ones, or why it cannot be built."""
        keys = [self._store.key(request) for request in requests]
        keyed = dict(zip(keys, requests, strict=True))
        own = {key: request for key, request in keyed.items() if family_of(request.schedule).is_compiled}
        for key in keyed.keys() - self._results.keys():
            found = self._store.find(key) if key in own else (Facts(None), b"")
            if found is not None:
                self._results[key] = found
        missing = {key: request for key, request in own.items() if key not in self._results}
        if missing:
            self._run(missing, len(own))
        elif self._on_progress is not None and own:
            self._on_progress(BuildProgress(len(own), len(own), len(own), 0.0))
        return [self._kernel(key, keyed[key]) for key in keys]

    def _run(self, requests: dict[str, KernelRequest], total: int) -> None:
        start_s, found = time.monotonic(), total - len(requests)
        with cuda_compiler(self._target), BuildPool(requests, self._target, self._store) as pool:

            def look(results: dict[str, Result]) -> None:
                if self._on_progress is not None:
                    taken_s = time.monotonic() - start_s + PRIOR_SHARE * pool.estimate_s
                    eta_s = taken_s * (1 - pool.share) / (pool.share + PRIOR_SHARE)
                    self._on_progress(BuildProgress(found + len(results), total, found, eta_s))

            self._results.update(pool.run(look))

    def _kernel(self, key: str, request: KernelRequest) -> Kernel | TvmSparseError:
        result = self._results[key]
        if isinstance(result, TvmSparseError):
            return result
        if key not in self._kernels:
            try:
                self._kernels[key] = replace(self._made(request, *result), volumes=request.spec.volumes)
            except TvmSparseError as error:
                self._results[key] = error
                return error
        return self._kernels[key]

    def _made(self, request: KernelRequest, facts: Facts, code: bytes) -> Kernel:
        """The kernel of `facts`; one that is not built apart as it is scheduled."""
        made_from = (request.spec, request.pattern, self._target)
        if facts.launches is None:
            space = find_space(request.schedule, *made_from)
            return apply_decisions(space, request.weight, request.decisions)
        constants: tuple[np.ndarray, ...] = ()
        if facts.constants == "weight":
            constants = (request.weight,)
        elif facts.constants == "made":
            constants = find_space(request.schedule, *made_from).constants(request.weight)
        names = facts.launches.names
        if names not in self._modules:
            self._modules[names] = device_module(facts.launches, code, self._target)
        return BuiltKernel.of(facts.launches, self._modules[names], constants)
