"""What a CUDA kernel is built from, and what building it made before.

Two kinds of things are kept (`codegen.kernel_cache`): under what a kernel is made from, its `Facts`; under its source,
target and compiler, the machine code, which several kernels may have in common. What is kept begins with its key, so
that a file that got another's name counts as none.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm.target import Target

from tvm_sparse.codegen.cuda.compile_hooks import instead
from tvm_sparse.codegen.cuda.launches import Launches
from tvm_sparse.codegen.cuda.nvcc import compiled, cuda_compiler, is_compiled_here, toolchain
from tvm_sparse.codegen.kernel_cache import KernelCache, content_key
from tvm_sparse.compiler.plan.decision import Decision
from tvm_sparse.conv.interleaving import Interleaving
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer
from tvm_sparse.schedules.lookup import family_of
from tvm_sparse.scheduling.space import Decisions
from tvm_sparse.target.resolve import target_json

# Seconds of one core that a kernel takes to build: at least, for each non-zero in its code, and for each group, as the
# code of a group has its inputs staged and its outputs written for itself (docs/lab/search.md).
KERNEL_S, NON_ZERO_S, GROUP_S = 1.0, 0.4e-3, 0.03


@dataclass(frozen=True, eq=False)
class KernelRequest:
    """What a kernel is made from: a space, its decisions (None: its defaults), a convolution, its weight.

    `interleaving`: how its outputs shall interleave, where its kernels can do that.
    """

    schedule: str
    decisions: Decisions | None
    spec: ConvSpec
    weight: np.ndarray
    pattern: SparsityPattern
    interleaving: Interleaving | None = None

    @classmethod
    def of(cls, layer: ConvLayer, decision: Decision) -> KernelRequest:
        """The kernel that `decision` chose for `layer`."""
        spec, chosen = layer.spec, decision.chosen
        if layer.volumes is not None:
            spec = family_of(decision.schedule).reads_volumes(replace(spec, volumes=layer.volumes), chosen or {})
        return cls(decision.schedule, chosen, spec, layer.weight, layer.pattern, layer.interleaving)

    @property
    def build_s(self) -> float:
        """About how many seconds of one core it takes to build; folded schedules say so in their names."""
        in_code_s = NON_ZERO_S * self.pattern.nnz + GROUP_S * (self.spec.groups - 1)
        return KERNEL_S + in_code_s * family_of(self.schedule).is_folded


@dataclass(frozen=True)
class Facts:
    """What is known of a kernel beside its code.

    `launches` is None where its host code does more than launch; it is not built apart then. `constants` says what it
    takes in the place of its weight: ``none``, the ``weight``, or what its space has ``made`` from that. `code` is the
    key of its machine code.
    """

    launches: Launches | None
    constants: str = "none"
    code: str = ""

    def to_bytes(self) -> bytes:
        """As it is kept."""
        launches = self.launches.to_json() if self.launches is not None else None
        return json.dumps({"launches": launches, "constants": self.constants, "code": self.code}).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Facts:
        """What `to_bytes` gave; KeyError, TypeError or ValueError where it is something else."""
        data = json.loads(content)
        launches = data["launches"]
        return cls(Launches.from_json(launches) if launches is not None else None, data["constants"], data["code"])


class KernelStore:
    """CUDA kernels for `target` in `cache`, as the compiler makes them that is set when this is made.

    Without a cache nothing is found and nothing kept. BuildError where TVM can use a GPU here, but there is no CUDA
    compiler.
    """

    def __init__(self, cache: KernelCache | None, target: Target):
        with cuda_compiler(target):
            self._common: dict[str, Any] = {"target": target_json(target), "toolchain": toolchain()}
        self._cache = cache

    def key(self, request: KernelRequest) -> str:
        """Of a kernel's facts."""
        weight = {"weight": request.pattern.value_digest}
        made_from = {"schedule": request.schedule, "decisions": request.decisions, "spec": request.spec.to_json()}
        return content_key({**self._common, **made_from, **weight})

    def code_key(self, source: str) -> str:
        """Of the machine code of a CUDA source."""
        return content_key({**self._common, "source": hashlib.sha256(source.encode()).hexdigest()})

    def find(self, key: str) -> tuple[Facts, bytes] | None:
        """Facts and code; None where one of them is missing, or is something else."""
        content = self._kept(key)
        try:
            facts = Facts.from_bytes(content) if content is not None else None
        except (KeyError, TypeError, ValueError):
            facts = None
        if facts is None:
            return None
        code = b"" if facts.launches is None else self.code(facts.code)
        return None if code is None else (facts, code)

    def code(self, key: str) -> bytes | None:
        """Machine code, or source where that stands for it; None where there is none."""
        found = self._kept(key)
        # Source is text, ten times as long as what it becomes.
        return found if found is None or is_compiled_here() else zlib.decompress(found)

    def code_of(self, source: str, compile_: Callable[[], bytes]) -> bytes:
        """The code under the key of `source`; what `compile_` makes where there is none, which is kept."""
        key = self.code_key(source)
        code = self.code(key)
        if code is None:
            code = compile_()
            self._keep(key, code if is_compiled_here() else zlib.compress(code, 1))
        return code

    def keep_facts(self, key: str, facts: Facts) -> None:
        """For the next time."""
        self._keep(key, facts.to_bytes())

    def is_proven(self, proof: dict[str, Any]) -> bool:
        """Whether a kernel was verified before; `proof` holds JSON values: its key, what with and where."""
        return self._kept(content_key(proof)) is not None

    def keep_proof(self, proof: dict[str, Any]) -> None:
        """For the next time."""
        self._keep(content_key(proof), b"")

    @contextmanager
    def remembered(self) -> Iterator[None]:
        """Have the CUDA source that TVM compiles in this thread taken from here where it was compiled before."""

        def compile_(source: str, whole: Callable[[str], Any]) -> bytes:
            return self.code_of(source, lambda: bytes(compiled(source, whole)))

        with instead(compile_=compile_):
            yield

    def _keep(self, key: str, content: bytes) -> None:
        if self._cache is not None:
            self._cache.write(key, key.encode() + content)

    def _kept(self, key: str) -> bytes | None:
        """What `_keep` was given; None where there is nothing, or the file of another key."""
        found = self._cache.read(key) if self._cache is not None else None
        return None if found is None or not found.startswith(key.encode()) else found[len(key) :]
