"""Whole models that were compiled for a CPU before, as shared libraries in the user's cache.

What a library is kept under is all that decides it: the prepared model with its weights, the kernel of each layer, the
target, the code of tvm-sparse and the versions of TVM. Only what was verified is kept, with what it gave for one input:
a library that gives something else is not used.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.target import Target

from tvm_sparse.codegen.ir_digest import ir_digest
from tvm_sparse.codegen.kernel_cache import KernelCache, code_digest, content_key
from tvm_sparse.compiler.checking.random_inputs import random_inputs
from tvm_sparse.compiler.plan.decision import Decision
from tvm_sparse.errors import BuildError, TvmSparseError
from tvm_sparse.frontend.prepare import PreparedModel
from tvm_sparse.runtime.cpu.cpu_runner import CpuRunner
from tvm_sparse.runtime.library_file import LibraryFile
from tvm_sparse.runtime.signature import Signature
from tvm_sparse.target.compatibility import why_not_here
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.resolve import target_json

# Packages whose code decides what a prepared model becomes, beside those that decide what a kernel becomes.
_DECIDING = ("frontend", "compiler")
# The input is drawn from this seed.
ANSWER_SEED = 2021
ANSWER_BYTES = hashlib.sha256().digest_size


class LibraryCache:
    """The libraries of one user, for `target`."""

    def __init__(self, cache: KernelCache, target: Target):
        self._cache, self._target = cache, target
        # The processor too: what was verified on one may be wrong on another.
        self._common = {"target": target_json(target), "on": fingerprint_of(target), "code": code_digest(_DECIDING)}

    @classmethod
    def of_user(cls, target: Target) -> LibraryCache | None:
        """None for a GPU, whose kernels are kept one by one, for another machine, and where nothing is to be kept."""
        is_here = target.kind.name == "llvm" and not why_not_here(target)
        cache = KernelCache.of_user() if is_here else None
        return cls(cache, target) if cache is not None else None

    def key(self, prepared: PreparedModel, decisions: Sequence[Decision], allow_tf32: bool = False) -> str:
        """Of the library of `prepared`, whose layers are computed as `decisions` say."""
        layers = [
            [each.layer, each.schedule, each.chosen, each.joins, asdict(each.layouts), layer.pattern.value_digest]
            for each, layer in zip(decisions, prepared.layers, strict=True)
        ]
        model = {"model": ir_digest(prepared.mod), "layers": layers, "allow_tf32": allow_tf32}
        model |= {"turns": prepared.turns}
        return content_key({**self._common, **model})

    def find(self, key: str, signature: Signature) -> LibraryFile | None:
        """The library under `key`, which gives what it gave when it was built; None where there is none."""
        content = self._cache.read(key)
        if content is None:
            return None
        answer, code = content[:ANSWER_BYTES], content[ANSWER_BYTES:]
        found = loadable(lambda path: path.write_bytes(code))
        if found is None or answer_of(found.module, self._target, signature) == answer:
            return found
        self._cache.remove(key)
        text = "a model in the cache gives another result than when it was compiled, so it is compiled anew"
        warnings.warn(text, stacklevel=2)
        return None

    def keep(self, key: str, library: LibraryFile, signature: Signature) -> None:
        """For the next time, in the place of what is there."""
        self._cache.write(key, answer_of(library.module, self._target, signature) + library.content())


def loadable(write: Callable[[Path], object]) -> LibraryFile | None:
    """The library that `write` writes to the path it is given; None where nothing here can write, link or load it.

    TVM then compiles into memory, and `artifact.save` says what is missing.
    """
    try:
        return LibraryFile.of(write)
    except (BuildError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        warnings.warn(f"the library of a model cannot be written, it is compiled into memory: {reason}", stacklevel=2)
    except RuntimeError:
        pass
    return None


def answer_of(module: Any, target: Target, signature: Signature) -> bytes:
    """SHA-256 of the outputs of `module`, a CPU's; or of what it says, where it refuses its input."""
    found = hashlib.sha256()
    try:
        inputs = random_inputs(signature.inputs, ANSWER_SEED)
        outputs = CpuRunner(module, target)([tvm.runtime.tensor(array) for array in inputs])
    except (TvmSparseError, RuntimeError, ValueError, TypeError, IndexError) as error:
        found.update(str(error).encode())
        outputs = []
    for output in outputs:
        array = np.ascontiguousarray(output.numpy())
        found.update(f"{array.shape}{array.dtype}".encode())
        found.update(array.reshape(-1).view(np.uint8).data)
    return found.digest()
