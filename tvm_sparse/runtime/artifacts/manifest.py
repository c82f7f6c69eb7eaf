"""The manifest of an artifact: what it says, and whether it and the libraries that it lists are as they were saved.

`variants` has an object for each model of a `MultiShapeModel`, the largest last, else one without a name: its library,
signature, decisions, index checks and verdict. `source` is the file that the model was compiled from, and empty of a
module. The digest is of everything else in it, the digests of all files among that, so it stands for the artifact.
"""

import hashlib
import json
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from tvm_sparse.errors import ArtifactError, first_line, typed
from tvm_sparse.untrusted.json_text import loads
from tvm_sparse.untrusted.regular_file import read_regular, sha256_of
from tvm_sparse.version import __version__

SCHEMA = 4
# A manifest has half a kilobyte a layer. No library is as large: its code reaches its weights by 32 bits.
MAX_MANIFEST_BYTES, MAX_LIBRARY_BYTES = 1 << 25, 1 << 32
NAME = "manifest.json"
LIBRARY = re.compile(r"model(-[0-9a-f]+)?\.so")
_VARIANT = {"name": str, "library": str, "signature": dict, "decisions": list, "checks": list}
_FIELDS = {
    "schema": int,
    "versions": dict,
    "system": str,
    "target": dict,
    "variants": list,
    "has_batches": bool,
    "libraries": dict,
    "source": dict,
    "files": dict,
    "digest": str,
}


def digest(manifest: dict[str, Any]) -> str:
    """SHA-256 of a manifest's other fields."""
    others = {name: value for name, value in manifest.items() if name != "digest"}
    return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()


def other_digest(manifest: Mapping[str, Any], sha256: str | None) -> str:
    """What is wrong where `sha256` was asked for and the digest is another; empty where it is that, or None was."""
    is_other = sha256 is not None and sha256.lower() != manifest["digest"]
    return f"has another SHA-256 than was asked for, found {manifest['digest']}; allowed: {sha256}" if is_other else ""


def versions() -> dict[str, str]:
    """Versions of what a library is made with."""
    return {
        "tvm_sparse": __version__,
        "tvm": metadata.version("apache-tvm"),
        "tvm_ffi": metadata.version("apache-tvm-ffi"),
    }


def system(architecture: str | None = None) -> str:
    """Operating system and processor family, by default this machine's."""
    return f"{platform.system()}-{architecture or platform.machine()}"


def sha256(path: Path) -> str:
    """SHA-256 of a library."""
    return sha256_of(path, MAX_LIBRARY_BYTES)


def identity(directory: Path) -> tuple[int, int] | None:
    """Changes whenever the artifact is replaced; None where there is none."""
    try:
        found = (directory / NAME).stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


def is_ours(directory: Path) -> bool:
    """Whether the manifest in `directory` is one that a tvm-sparse of any version wrote, be it damaged since."""
    return bool(libraries(directory))


def libraries(directory: Path) -> set[str]:
    """The names that a manifest lists that a tvm-sparse of any version wrote; none where it is another's, or a link."""
    try:
        found = loads(b"" if (directory / NAME).is_symlink() else read_regular(directory / NAME, MAX_MANIFEST_BYTES))
    except (OSError, ValueError):
        return set()
    kinds = {"schema": int, "versions": dict, "files": dict, "digest": str}
    if not isinstance(found, dict) or not all(isinstance(found.get(name), kind) for name, kind in kinds.items()):
        return set()
    names = set(found["files"])
    return names if "tvm_sparse" in found["versions"] and all(map(LIBRARY.fullmatch, names)) else set()


def read(directory: Path) -> dict[str, Any]:
    """The manifest in `directory`, complete and as it was saved; ArtifactError otherwise."""
    try:
        manifest = loads(read_regular(directory / NAME, MAX_MANIFEST_BYTES))
    except OSError as error:
        hint = f"make one with: {typed('compile MODEL -o DIR')}"
        raise ArtifactError(str(directory), f"is no artifact ({error.strerror}: {NAME})", hint=hint) from None
    except ValueError as error:
        raise damaged(directory, f"{NAME} is not JSON: {first_line(error)}") from None
    schema = manifest.get("schema") if isinstance(manifest, dict) else None
    if isinstance(schema, int) and schema != SCHEMA:
        age, hint = ("a newer", "upgrade") if schema > SCHEMA else ("an older", "compile the model again")
        raise ArtifactError(
            str(directory), f"was written by {age} tvm-sparse", f"schema {schema}", f"schema {SCHEMA}", hint
        )
    _require_fields(directory, manifest, _FIELDS)
    for variant in manifest["variants"]:
        _require_fields(directory, variant, _VARIANT)
    if manifest["digest"] != digest(manifest):
        raise damaged(directory, f"{NAME} was changed after it was saved")
    return manifest


def _require_fields(directory: Path, found: Any, fields: Mapping[str, type]) -> None:
    for name, kind in fields.items():
        if not isinstance(found, dict) or not isinstance(found.get(name), kind):
            raise damaged(directory, f"{NAME} has no usable field {name!r}")


def check_versions(directory: Path, content: dict[str, Any]) -> None:
    """Raise ArtifactError where another TVM wrote `content`."""
    # A library calls into TVM by addresses that no other version promises.
    found, here = content["versions"].get("tvm"), versions()["tvm"]
    if found != here:
        raise ArtifactError(str(directory), "was built with another tvm", found, here, "compile again")


def check_system(directory: Path, content: dict[str, Any]) -> None:
    """Raise ArtifactError where the libraries are for another system than this one."""
    if content["system"] != system():
        raise ArtifactError(str(directory), "was built for another system", content["system"], system())


def check_libraries(directory: Path, content: dict[str, Any]) -> None:
    """Raise ArtifactError unless the libraries are those that were saved, and there is one for each variant."""
    files, variants = content["files"], content["variants"]
    names = {variant["name"] for variant in variants}
    if (
        not files
        or (len(variants) > 1 and "" in names)
        or set(files) != {variant["library"] for variant in variants}
        or not all(map(LIBRARY.fullmatch, files))
        or len(names) != len(variants)
    ):
        raise damaged(directory, f"{NAME} must list a library model-*.so for each variant, and nothing else")
    for name, digest_of_file in files.items():
        with _as_damaged(directory, name):
            found = sha256(directory / name)
        _require_same(directory, name, found, digest_of_file)


def library(directory: Path, content: Mapping[str, Any], name: str) -> bytes:
    """The library `name` that `content` lists; ArtifactError where it is not the one that was saved."""
    with _as_damaged(directory, name):
        data = read_regular(directory / name, MAX_LIBRARY_BYTES)
    _require_same(directory, name, hashlib.sha256(data).hexdigest(), content["files"][name])
    return data


@contextmanager
def _as_damaged(directory: Path, name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise damaged(directory, f"{name} is missing ({error.strerror})") from None


def _require_same(directory: Path, name: str, found: str, wanted: str) -> None:
    if found != wanted:
        raise damaged(directory, f"{name} is not the file that was saved, its SHA-256 differs")


def damaged(directory: Path, problem: str) -> ArtifactError:
    """The error for an artifact that is not as it was saved."""
    return ArtifactError(str(directory), f"is damaged ({problem})", hint="save the model again")
