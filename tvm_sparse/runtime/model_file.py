"""The file that a model was compiled from, so that it can be timed beside it later."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm_sparse.untrusted.regular_file import sha256_of

# ONNX keeps larger models in several files.
MAX_BYTES = 1 << 31


@dataclass(frozen=True)
class ModelFile:
    """A model's file as it was compiled.

    * `path`: where it was; in a manifest from the artifact's folder.
    * `sha256`: of its content then.
    * `dtype`, `allow_tf32`: as `tvm_sparse.compile` was given them.
    * `inputs`: element types of the inputs that it has itself.
    * `is_quantised`: whether it has layers on integers.
    """

    path: Path
    sha256: str
    dtype: str | None
    allow_tf32: bool
    inputs: tuple[str, ...]
    is_quantised: bool = False

    @classmethod
    def of(
        cls,
        source: Any,
        dtype: str | None,
        allow_tf32: bool,
        inputs: Sequence[str],
        is_quantised: bool = False,
    ) -> "ModelFile | None":
        """The file `source`; None where it is a module, or was removed meanwhile."""
        if not isinstance(source, str | Path):
            return None
        path = Path(source).absolute()
        try:
            digest = sha256_of(path, MAX_BYTES)
        except (OSError, ValueError):
            return None
        return cls(path, digest, dtype, allow_tf32, tuple(inputs), is_quantised)

    def obstacle(self) -> str:
        """Why the file cannot stand for the model any more; empty where it can."""
        try:
            same = sha256_of(self.path, MAX_BYTES) == self.sha256
        except (OSError, ValueError):
            return f"{self.path} is not there"
        return "" if same else f"{self.path} was changed since"

    def to_json(self, folder: Path) -> dict[str, Any]:
        """As JSON values; its place as seen from `folder`, which says less about a machine, and may move with it."""
        return {
            "path": os.path.relpath(self.path, folder.absolute()),
            "sha256": self.sha256,
            "dtype": self.dtype,
            "allow_tf32": self.allow_tf32,
            "inputs": list(self.inputs),
            **({"is_quantised": True} if self.is_quantised else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], folder: Path) -> "ModelFile":
        """Rebuild it from `to_json`'s output; KeyError, TypeError or ValueError where it is none."""
        texts = (data["path"], data["sha256"], *data["inputs"], *([data["dtype"]] if data["dtype"] else []))
        if not all(isinstance(each, str) for each in texts):
            raise ValueError("it is no file of a model")
        path = Path(os.path.normpath(folder.absolute() / data["path"]))
        flags = bool(data["allow_tf32"]), bool(data.get("is_quantised", False))
        return cls(path, data["sha256"], data["dtype"], flags[0], tuple(data["inputs"]), flags[1])
