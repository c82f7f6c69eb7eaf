"""Whatever files, arguments and settings the command line is given: one sentence, in seconds, in bounded memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import hostile
import pytest

# Named cases, and random ones, that the normal run takes, and random ones of the long one.
FEW, MANY = 14, 1500


def outcomes(folder: Path, kind: str, count: int) -> list[dict[str, Any]]:
    """What became of so many cases."""
    command = [sys.executable, hostile.__file__, kind, str(count)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_some_cases(tmp_path: Path) -> None:
    found = outcomes(tmp_path, "some", FEW)
    assert len(found) == 2 * FEW
    assert not [each for each in found if each["problem"]]


@pytest.mark.conformance
def test_all_cases(tmp_path: Path) -> None:
    found = outcomes(tmp_path, "all", MANY)
    assert len(found) > MANY + 300
    assert not [each for each in found if each["problem"]]


def test_the_experiment_notices_what_is_wrong() -> None:
    def work(code: int, message: str) -> dict[str, Any]:
        return {"code": code, "err": message}

    assert not hostile.problem(work(3, "tvm-sparse: m.onnx: no such file"))
    for wrong in (work(-11, ""), work(1, ""), work(4, "tvm-sparse: internal error: MemoryError"), work(3, "what?")):
        assert hostile.problem(wrong)
    assert hostile.problem(hostile.in_child(lambda: work(0, str(bytearray(1 << 40)))))
