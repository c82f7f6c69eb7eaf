"""The models of an artifact as pairs of files: plan and kernels."""

import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tvm.target import Target

from tvm_sparse.conv.index_check import IndexCheck
from tvm_sparse.errors import ArtifactError
from tvm_sparse.exporter import bytecode, constants, plan_file
from tvm_sparse.exporter.bytecode import UnknownBytecode, calls_tvm
from tvm_sparse.exporter.dynamic_section import Needs
from tvm_sparse.exporter.gpu import gpu_part
from tvm_sparse.exporter.library import Library
from tvm_sparse.exporter.plan import Base, plan_of
from tvm_sparse.runtime.artifacts import manifest
from tvm_sparse.runtime.libraries import CUDNN
from tvm_sparse.runtime.signature import Signature
from tvm_sparse.target.compatibility import required_flags
from tvm_sparse.target.resolve import architecture_of, thread_count


class Exportable:
    """An artifact that a C program can run; its files are read, and nothing of it is run.

    ArtifactError where there is no artifact, or it is damaged or of another version.

    * `artifact`: a folder that `save` wrote.
    * `variants`: what the manifest says of each batch and size, ascending.
    * `signatures`: of these.
    """

    def __init__(self, artifact: Path):
        self.artifact, self._content = artifact, manifest.read(artifact)
        manifest.check_versions(artifact, self._content)
        manifest.check_libraries(artifact, self._content)
        self._target = _target(artifact, self._content)
        self._arch = str(self._target.attrs["arch"]) if self._target.kind.name == "cuda" else ""
        if others := sorted(set(self._content["libraries"]) - {CUDNN}):
            raise ArtifactError(str(artifact), "calls a library that this tvm-sparse does not know", others[0], CUDNN)
        self.variants, self.has_batches = self._content["variants"], self._content["has_batches"]
        try:
            self.signatures = [Signature.from_json(each["signature"]) for each in self.variants]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise manifest.damaged(artifact, f"signature is not usable: {error}") from error
        shapes = [tuple(spec.shape for spec in each.inputs) for each in self.signatures]
        if len(set(shapes)) < len(shapes):
            raise manifest.damaged(artifact, "two of its variants take inputs of the same shapes")

    def write(self, folder: Path, stem: str) -> list[str]:
        """Write ``stem.plan`` and ``stem.so`` to `folder`; of several variants ``stem-batch8.plan`` and so on.

        ArtifactError where code calls what is not in its library.

        Returns
        -------
        The plans' names, as `variants` are.
        """
        stems = [f"{stem}{_suffix(each['name'])}" for each in self.variants]
        if len(set(stems)) < len(stems):
            raise manifest.damaged(self.artifact, "two of its variants have one name")
        for name, variant, signature in zip(stems, self.variants, self.signatures, strict=True):
            try:
                plan, kernels = self._encoded(variant, signature, f"{name}.so")
            except UnknownBytecode as error:
                raise ArtifactError(str(self.artifact), f"cannot run without TVM: {error}", hint=error.hint) from error
            except (AttributeError, KeyError, TypeError, ValueError, struct.error) as error:
                raise manifest.damaged(self.artifact, f"checks or library are not usable: {error}") from error
            (folder / f"{name}.so").write_bytes(kernels)
            (folder / f"{name}.plan").write_bytes(plan)
        return [f"{name}.plan" for name in stems]

    def _encoded(self, variant: Mapping[str, Any], signature: Signature, name: str) -> tuple[bytes, bytes]:
        """The plan of a variant, whose kernels are in the file `name`, and these."""
        checks = [IndexCheck.from_json(each) for each in variant["checks"]]
        content = manifest.library(self.artifact, self._content, variant["library"])
        if problem := Needs.of(content).problem:
            problem = f"cannot be exported, its library {problem}"
            raise ArtifactError(str(self.artifact), problem, hint="compile the model again")
        library, arch = Library.of(content), self._arch
        if unknown := library.unknown(bool(arch)):
            raise calls_tvm(f"its code calls functions of TVM ({', '.join(unknown)})")
        program = bytecode.read(library.data)
        gpu = gpu_part(program, arch, content) if arch else None
        # The driver copies constants of a GPU from wherever they are.
        kernels, places = (content, gpu.places) if gpu else constants.in_place(program, library)
        plan = plan_of(program, signature, library.kernels, bool(gpu)).with_places(Base.CONSTANTS, places)
        host = self._target.host if gpu else self._target
        machine = architecture_of(host), str(host.attrs.get("mcpu", "")), required_flags(host)
        threads = 1 if gpu else thread_count(host)
        return plan_file.encoded(plan, signature, checks, (name, kernels), machine, threads, gpu), kernels


def _suffix(variant: str) -> str:
    """What tells the files of a variant: of "batch 8, 3x320x640" it is ``-batch8-3x320x640``."""
    # A manifest may name one as it likes, a path too.
    name = re.sub(r"[^\w.-]", "", re.sub(", | and ", "-", variant))
    return f"-{name}" if name else ""


def _target(artifact: Path, content: Mapping[str, Any]) -> Target:
    try:
        target = Target(content["target"])
    except (RuntimeError, ValueError, TypeError) as error:
        raise manifest.damaged(artifact, f"target is not usable: {error}") from None
    if target.kind.name not in ("llvm", "cuda") or (target.kind.name == "cuda" and target.host is None):
        allowed = "a model for a CPU or an NVIDIA GPU"
        raise ArtifactError(str(artifact), "cannot be exported", target.kind.name, allowed, "compile the model again")
    return target
