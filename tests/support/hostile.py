"""Run the command line on `hostile_cases`, each in a process of its own, with little time and memory.

Run as a script in a folder, it prints what became of all named cases, or of some, and of as many random ones, one line
of JSON each; here every fourth of them, from the first on. `tests` is the folder of the tests::

    PYTHONPATH=$checkout:$tests/support python $tests/support/hostile.py all 1000 0 4
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_zoo
from factories import make_record
from hostile_cases import TARGET, Case, named_cases, random_case

from tvm_sparse.cli import main
from tvm_sparse.cli.commands import bench, check, compile, inspect, logs, run, show, tune  # noqa: F401
from tvm_sparse.compiler import build_model  # noqa: F401
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.frontend.optional_imports import with_torch
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.runtime import artifact
from tvm_sparse.schedules.lookup import spaces_of
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.resolve import resolve_target, target_json

# Seconds, and bytes beyond those that a process begins with, that a case may take.
LIMIT_S, LIMIT_BYTES = 60, 3 << 30


def good_files(folder: Path) -> None:
    """A model, its artifact, a log of it and an input, as they should be."""
    onnx.save(onnx_zoo.ONNX["block"], folder / "m.onnx")
    assert outcome(["compile", str(folder / "m.onnx"), "--target", TARGET, "-o", str(folder / "a.sparse")])["code"] == 0
    (folder / "log.jsonl").write_text("".join(f"{line}\n" for line in log_lines(folder / "m.onnx")))
    spec = artifact.load(folder / "a.sparse").signature.inputs[0]
    np.save(folder / "x.npy", np.zeros(spec.shape, spec.dtype))


def log_lines(model: Path) -> list[str]:
    """A record of each schedule for each layer of a model, on this machine."""
    target, found = resolve_target(TARGET), []
    for layer in prepare(model).layers:
        pattern = SparsityPattern.of(layer.weight)
        for space in spaces_of(layer.spec, pattern, target)[0]:
            if space.starts():
                common = {"target": target_json(target), "fingerprint": fingerprint_of(target), "spec": layer.spec}
                record = make_record(
                    **common, pattern=pattern, schedule=space.name, decisions=space.starts()[0], times_us=(2.0,)
                )
                found.append(record.to_line())
    return found


def outcome(words: list[str]) -> dict[str, Any]:
    """Exit code and messages of the command line in this process."""
    # As strict as a terminal's.
    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), with_torch():
        try:
            code = main.main(words)
        except SystemExit as end:
            code = end.code
    return {"code": code, "err": err.getvalue()[-2000:]}


def in_child(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """`work` in a forked process of its own group, whose time and memory are limited; a signal is a negative code."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setpgid(0, 0)
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + LIMIT_BYTES,) * 2)
            signal.alarm(LIMIT_S)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            os.write(send, json.dumps(work()).encode())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return json.loads(text) if code == 0 else {"code": code, "err": "the process ended"}


def run_case(case: Case, folder: Path) -> dict[str, Any]:
    """What became of a case, in how many seconds."""
    folder.mkdir()
    words = [word.replace("{folder}", str(folder)) for word in case.words]

    def work() -> dict[str, Any]:
        os.environ.update(case.settings)
        return outcome(words)

    case.make(folder)
    start_s = time.monotonic()
    return {"name": case.name, **in_child(work), "seconds": round(time.monotonic() - start_s, 1)}


def problem(found: dict[str, Any]) -> str:
    """What is wrong with an outcome, or nothing."""
    if found["code"] not in (0, 2, 3, 4, 5):
        return f"exit code {found['code']}"
    if "Traceback" in found["err"] or "internal error" in found["err"]:
        return "no sentence of ours"
    # Of kernels that are not verified a table says more.
    is_sentence = found["code"] in (0, 5) or "tvm-sparse" in (found["err"].splitlines() or [""])[-1]
    return "" if is_sentence else "no sentence at the end"


if __name__ == "__main__":
    kind, (count, part, parts) = sys.argv[1], map(int, sys.argv[2:])
    assert in_child(lambda: good_files(Path.cwd()) or {"code": 0})["code"] == 0
    named = list(named_cases())
    chosen = named if kind == "all" else random.Random(0).sample(named, count)
    cases = list(enumerate([*chosen, *map(random_case, range(count))]))
    for number, case in cases[part::parts]:
        found = run_case(case, Path.cwd() / f"case {number}")
        print(json.dumps(found | {"problem": problem(found)}), flush=True)
