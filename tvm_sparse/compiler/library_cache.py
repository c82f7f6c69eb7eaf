"""Whole models that were compiled for a CPU before, as shared libraries in the user's cache.

What a library is kept under is all that decides it: the prepared model with its weights, the kernel of each layer, the
target, the code of tvm-sparse and the versions of TVM. Only what was verified is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tvm_ffi
from tvm.target import Target

from tvm_sparse.codegen.kernel_cache import KernelCache, code_digest, content_key
from tvm_sparse.compiler.decision import Decision
from tvm_sparse.frontend.prepare import PreparedModel
from tvm_sparse.runtime.library_file import LibraryFile
from tvm_sparse.target.compatibility import why_not_here
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.resolve import target_json

# Packages whose code decides what a prepared model becomes, beside those that decide what a kernel becomes.
_DECIDING = ("frontend", "compiler")


class LibraryCache:
    """The libraries of one user, for `target`."""

    def __init__(self, cache: KernelCache, target: Target):
        self._cache = cache
        # The processor too: what was verified on one may be wrong on another.
        self._common = {"target": target_json(target), "on": fingerprint_of(target), "code": code_digest(_DECIDING)}

    @classmethod
    def of_user(cls, target: Target) -> LibraryCache | None:
        """None for a GPU, whose kernels are kept one by one, for another machine, and where nothing is to be kept."""
        is_here = target.kind.name == "llvm" and not why_not_here(target)
        cache = KernelCache.of_user() if is_here else None
        return cls(cache, target) if cache is not None else None

    def key(self, prepared: PreparedModel, decisions: Sequence[Decision]) -> str:
        """Of the library of `prepared`, whose layers are computed as `decisions` say."""
        layers = [
            [each.layer, each.schedule, each.chosen, each.joins, layer.pattern.value_digest]
            for each, layer in zip(decisions, prepared.layers, strict=True)
        ]
        return content_key({**self._common, "model": tvm_ffi.structural_hash(prepared.mod), "layers": layers})

    def find(self, key: str) -> LibraryFile | None:
        """The library under `key`; None where there is none."""
        content = self._cache.read(key)
        if content is None:
            return None
        return LibraryFile.of(lambda path: Path(path).write_bytes(content))

    def keep(self, key: str, library: LibraryFile) -> None:
        """For the next time."""
        self._cache.write(key, library.content())


def exported(executable: Any) -> LibraryFile | None:
    """The library of what TVM compiled; None where nothing here can link it."""
    try:
        return LibraryFile.of(executable.export_library)
    except RuntimeError:
        # TVM then compiles into memory, and `artifact.save` says what is missing.
        return None
