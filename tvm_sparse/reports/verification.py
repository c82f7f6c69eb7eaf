"""`verify`: whether an artifact is what was saved, and what its libraries call; nothing of it is run."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.text import Text

from tvm_sparse.errors import ArtifactError, VerificationError
from tvm_sparse.exporter.dynamic_section import Needs
from tvm_sparse.reports.report import Part, Report
from tvm_sparse.runtime.artifacts import manifest
from tvm_sparse.runtime.signature import Signature

# What compiled code calls: TVM's runtime, what a C compiler and its start-up code do, and functions of numbers.
_ALLOWED = re.compile(
    r"TVM(FFI|Backend)\w+|__TVM\w+|mem(cpy|move|set)|_ITM_(de)?registerTMCloneTable|__cxa_finalize|__gmon_start__|"
    r"(a?(sin|cos|tan)h?|atan2|exp(2|10|m1)?|log(2|10|1p)?|pow|sqrt|rsqrt|cbrt|erf|fma|fmod|fm(in|ax)|floor|ceil|round"
    r"|nearbyint|rint|trunc|ldexp|copysign|fabs|hypot)f?"
)


class Verification(Report):
    """What `verify` found: a line for each thing that was looked at."""

    @property
    def failure(self) -> VerificationError | None:
        """The first thing that is wrong; None where all is well."""
        wrong = next((each for each in self._document["lines"] if each["problem"]), None)
        if wrong is None:
            return None
        hint = "get the artifact again from where it is from, or compile the model again"
        return VerificationError(f"{self._document['artifact']}, {wrong['name']}", wrong["problem"], hint=hint)

    def _parts(self, document: dict[str, Any]) -> Iterator[Part]:
        for each in document["lines"]:
            text = f"wrong: {each['problem']}" if each["problem"] else each["text"]
            yield Text(f"{each['name']}: {text}")


def verify(artifact: str | Path, *, sha256: str | None = None) -> Verification:
    """Say whether an artifact is whole and has nothing else in it, without running anything of it.

    Every file must be the one that was saved, and no other file may lie there. Libraries may load those of the system
    alone, without paths of their own, and may call only TVM's runtime and functions of memory and numbers. That finds
    damage and, with `sha256` from a source that you trust, another artifact in its place. It does not prove that the
    code of an artifact does no harm.

    Parameters
    ----------
    artifact
        A folder that `save` wrote, also on another machine.
    sha256
        Of the artifact, as `compile` prints it; None: whatever it has.

    Returns
    -------
    A report; its `failure` is None, or says what is wrong first.

    Raises
    ------
    ArtifactError
        There is no artifact, another version wrote it, or its manifest is damaged.
    """
    directory = Path(artifact)
    content = manifest.read(directory)
    lines = [_line("sha256", content["digest"], manifest.other_digest(content, sha256))]
    try:
        manifest.check_libraries(directory, content)
        lines += [_line(name, f"SHA-256 {digest}") for name, digest in content["files"].items()]
        for name in content["files"]:
            lines += _needs(name, manifest.library(directory, content, name))
    except ArtifactError as error:
        lines.append(_line("files", "", error.problem))
    strays = sorted({path.name for path in directory.iterdir()} - {manifest.NAME, *content["files"]})
    lines.append(_line("other files", "none", f"are no part of the artifact: {', '.join(strays)}" if strays else ""))
    lines += [line for variant in content["variants"] for line in _signature(variant)]
    return Verification({"artifact": str(directory), "sha256": content["digest"], "lines": lines})


def _line(name: str, text: str, problem: str = "") -> dict[str, str]:
    return {"name": name, "text": text, "problem": problem}


def _needs(name: str, library: bytes) -> Iterator[dict[str, str]]:
    """What is loaded with a library, and what it calls that is not in it."""
    try:
        needs = Needs.of(library)
    except (KeyError, ValueError, IndexError, struct.error) as error:
        yield _line(f"{name}, calls", "", f"is no library that can be read ({error})")
        return
    yield _line(f"{name}, loads", ", ".join(needs.libraries) or "nothing", needs.problem)
    wrong = [each for each in needs.functions if not _ALLOWED.fullmatch(each)]
    calls = ", ".join(needs.functions) or "nothing"
    yield _line(f"{name}, calls", calls, f"calls {', '.join(wrong)}" if wrong else "")


def _signature(variant: dict[str, Any]) -> Iterator[dict[str, str]]:
    prefix = f"{variant['name']}, " if variant["name"] else ""
    try:
        found = Signature.from_json(variant["signature"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        yield _line(f"{prefix}inputs and outputs", "", f"are not usable ({error})")
        return
    yield _line(f"{prefix}inputs", ", ".join(map(str, found.inputs)))
    yield _line(f"{prefix}outputs", ", ".join(map(str, found.outputs)))
