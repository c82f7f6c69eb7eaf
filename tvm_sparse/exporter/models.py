"""The models of an artifact as pairs of files: plan and kernels."""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tvm.target import Target

from tvm_sparse.errors import ArtifactError
from tvm_sparse.exporter import bytecode, constants, plan_file
from tvm_sparse.exporter.bytecode import UnknownBytecode
from tvm_sparse.exporter.library import Library
from tvm_sparse.exporter.plan import Base, plan_of
from tvm_sparse.runtime import index_checks
from tvm_sparse.runtime.artifacts import manifest
from tvm_sparse.runtime.signature import Signature
from tvm_sparse.target.compatibility import required_flags
from tvm_sparse.target.resolve import architecture_of, thread_count


class Exportable:
    """An artifact that a C program can run; its files are read, and nothing of it is run.

    ArtifactError where there is no artifact, it is damaged or of another version, or is for a GPU.

    * `artifact`: a folder that `save` wrote.
    * `signature`: of the model, or that for the largest of several batches.
    * `batches`: batch size -> library, ascending; 0 -> the only one, of a model that has no batches.
    """

    def __init__(self, artifact: Path):
        self.artifact, self._content = artifact, manifest.read(artifact)
        manifest.check_versions(artifact, self._content)
        manifest.check_libraries(artifact, self._content)
        self._target = _target(artifact, self._content)
        batches = self._content["batches"] or {"0": next(iter(self._content["files"]))}
        self.batches = {batch: batches[str(batch)] for batch in sorted(map(int, batches))}
        try:
            self.signature = Signature.from_json(self._content["signature"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise manifest.damaged(artifact, f"signature is not usable: {error}") from error

    def write(self, folder: Path, stem: str) -> list[str]:
        """Write ``stem.plan`` and ``stem.so``, or ``stem-batch8.plan`` and so on, to `folder`.

        ArtifactError where code calls what is not in its library.

        Returns
        -------
        The plans' names, by ascending batches.
        """
        stems = {batch: f"{stem}-batch{batch}" if batch else stem for batch in self.batches}
        for batch, name in stems.items():
            try:
                plan, kernels = self._encoded(batch, f"{name}.so")
            except UnknownBytecode as error:
                hint = "run it with tvm_sparse.load, or leave operators that sort, as TopK does, out of the model"
                raise ArtifactError(str(self.artifact), f"cannot run without TVM: {error}", hint=hint) from error
            except (AttributeError, KeyError, TypeError, ValueError, struct.error) as error:
                raise manifest.damaged(self.artifact, f"checks or library are not usable: {error}") from error
            (folder / f"{name}.so").write_bytes(kernels)
            (folder / f"{name}.plan").write_bytes(plan)
        return [f"{name}.plan" for name in stems.values()]

    def _encoded(self, batch: int, name: str) -> tuple[bytes, bytes]:
        """The plan for a batch, whose kernels are in the file `name`, and these."""
        signature = self.signature.at_batch(batch) if batch else self.signature
        checks = index_checks.from_json(self._content.get("checks", {}), batch)
        library = Library.of((self.artifact / self.batches[batch]).read_bytes())
        if library.unknown:
            raise UnknownBytecode(f"its code calls functions of TVM ({', '.join(library.unknown)})")
        program = bytecode.read(library.data)
        kernels, places = constants.in_place(program, library)
        plan = plan_of(program, signature, library.kernels).with_places(Base.CONSTANTS, places)
        mcpu = str(self._target.attrs.get("mcpu", ""))
        machine = architecture_of(self._target), mcpu, required_flags(self._target)
        return plan_file.encoded(plan, signature, checks, (name, kernels), machine, thread_count(self._target)), kernels


def _target(artifact: Path, content: Mapping[str, Any]) -> Target:
    try:
        target = Target(content["target"])
    except (RuntimeError, ValueError, TypeError) as error:
        raise manifest.damaged(artifact, f"target is not usable: {error}") from None
    if target.kind.name != "llvm":
        hint = "compile the model for a CPU"
        raise ArtifactError(str(artifact), "cannot be exported", target.kind.name, "a model for a CPU", hint)
    return target
