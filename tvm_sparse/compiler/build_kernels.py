"""The CUDA kernels of a model, each built by itself, and none that was built before."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm.target import Target

from tvm_sparse.codegen.cuda.kernel_source import BuiltKernel, device_module
from tvm_sparse.codegen.cuda.nvcc import cuda_compiler
from tvm_sparse.codegen.kernel_cache import KernelCache
from tvm_sparse.compiler.build_pool import BuildPool, Result
from tvm_sparse.compiler.kernel_store import Facts, KernelRequest, KernelStore
from tvm_sparse.errors import TvmSparseError
from tvm_sparse.schedules import find_space
from tvm_sparse.scheduling.kernel import Kernel, apply_decisions

# The share of the work from which on it is said how long the rest will take.
KNOWN_SHARE = 0.02


@dataclass(frozen=True)
class BuildProgress:
    """How far the kernels of a model are: `done` of `total` are there, `found` of these without being built.

    `eta_s` is about how many seconds the rest will take; None as long as nobody knows.
    """

    done: int
    total: int
    found: int
    eta_s: float | None


# Is told how far the kernels are, in the thread that compiles.
OnProgress = Callable[[BuildProgress], None]


class KernelBuilder:
    """Builds kernels for `target`; what it has made once it gives again, and `cache` beyond its life."""

    def __init__(self, target: Target, cache: KernelCache | None, on_progress: OnProgress | None = None):
        self._target, self._cache, self._on_progress = target, cache, on_progress
        self._results: dict[str, Result] = {}
        self._kernels: dict[str, Kernel] = {}
        self._modules: dict[tuple[str, ...], tvm.runtime.Module] = {}

    def build(self, requests: Sequence[KernelRequest]) -> list[Kernel | TvmSparseError]:
        """The kernel of each request, the same object for equal ones, or why it cannot be built."""
        with cuda_compiler(self._target):
            store = KernelStore(self._cache, self._target)
            keys = [store.key(request) for request in requests]
            keyed = dict(zip(keys, requests, strict=True))
            for key in keyed.keys() - self._results.keys():
                found = store.find(key)
                if found is not None:
                    self._results[key] = found
            missing = {key: request for key, request in keyed.items() if key not in self._results}
            if missing:
                self._run(missing, len(keyed), store)
        return [self._kernel(key, keyed[key]) for key in keys]

    def _run(self, requests: dict[str, KernelRequest], total: int, store: KernelStore) -> None:
        start_s, found = time.monotonic(), total - len(requests)
        with BuildPool(requests, self._target, store) as pool:

            def look(results: dict[str, Result]) -> None:
                share, taken_s = pool.share, time.monotonic() - start_s
                eta_s = taken_s * (1 - share) / share if share >= KNOWN_SHARE else None
                if self._on_progress is not None:
                    self._on_progress(BuildProgress(found + len(results), total, found, eta_s))

            self._results.update(pool.run(look))

    def _kernel(self, key: str, request: KernelRequest) -> Kernel | TvmSparseError:
        result = self._results[key]
        if isinstance(result, TvmSparseError):
            return result
        if key not in self._kernels:
            self._kernels[key] = self._made(request, *result)
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
