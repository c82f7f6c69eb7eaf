"""Whatever files, arguments and settings the command line is given: one sentence, in seconds, in bounded memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import hostile
import pytest
import without_torch

# Named cases, and random ones, that the normal run takes, and random ones of the long one.
FEW, MANY = 3, 1500


def outcomes(folder: Path, kind: str, count: int, cores: int) -> list[dict[str, Any]]:
    """What became of so many cases, of which each of `cores` runs a part."""
    running = []
    for part in range(cores):
        own = folder / str(part)
        own.mkdir()
        words = [hostile.__file__, kind, *map(str, (count, part, cores))]
        # Of all cases many read programs of torch's.
        command = without_torch.command(*words) if kind == "some" else [sys.executable, *words]
        with (own / "outcomes").open("w") as results, (own / "errors").open("w") as errors:
            running.append((own, subprocess.Popen(command, cwd=own, stdout=results, stderr=errors)))
    found = []
    for own, process in running:
        assert process.wait() == 0, (own / "errors").read_text()[-2000:]
        found += [json.loads(line) for line in (own / "outcomes").read_text().splitlines()]
    return found


def test_some_cases(tmp_path: Path) -> None:
    found = outcomes(tmp_path, "some", FEW, cores=1)
    assert len(found) == 2 * FEW
    assert not [each for each in found if each["problem"]]


@pytest.mark.conformance
def test_all_cases(tmp_path: Path) -> None:
    found = outcomes(tmp_path, "all", MANY, len(os.sched_getaffinity(0)))
    assert len(found) > MANY + 300
    assert not [each for each in found if each["problem"]]


def test_the_experiment_notices_what_is_wrong() -> None:
    def work(code: int, message: str) -> dict[str, Any]:
        return {"code": code, "err": message}

    assert not hostile.problem(work(3, "tvm-sparse: m.onnx: no such file"))
    for wrong in (work(-11, ""), work(1, ""), work(4, "tvm-sparse: internal error: MemoryError"), work(3, "what?")):
        assert hostile.problem(wrong)
    assert hostile.problem(hostile.in_child(lambda: work(0, str(bytearray(1 << 40)))))
