"""Write what the compiler has after each of its phases, where the environment variable `FOLDER` names a folder."""

import json
import os
from dataclasses import asdict
from pathlib import Path

import tvm

from tvm_sparse.compiler.plan.decision import Decision
from tvm_sparse.compiler.plan.plan import Plan
from tvm_sparse.errors import UsageError
from tvm_sparse.files import publish

FOLDER = "TVM_SPARSE_DUMP"


def is_dumped() -> bool:
    """Whether phases are written."""
    return bool(os.environ.get(FOLDER))


def dump_module(phase: str, module: tvm.IRModule) -> tvm.IRModule:
    """`module`, written as TVMScript, whose constants are left out."""
    if is_dumped():
        _write(f"{phase}.py", module.script(show_meta=False))
    return module


def dump_plan(phase: str, plan: Plan) -> None:
    """The plan as JSON, an object a layer."""
    if is_dumped():
        _write(f"{phase}.json", json.dumps([_row(each) for each in plan.decisions], indent=1))


def _row(decision: Decision) -> dict[str, object]:
    """The row of the decision table, and what that leaves out."""
    choice = decision.choice
    return decision.to_json() | {
        "choice": type(choice).__name__.lower(),
        "decisions": choice.decisions,
        "expected_us": choice.expected_us,
        "is_verified": choice.is_verified,
        "joins": decision.joins,
        "layouts": asdict(decision.layouts),
    }


def _write(name: str, text: str) -> None:
    """A file behind those that are there, which may be other models'."""
    folder = Path(os.environ[FOLDER])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        publish.write(folder / f"{len(list(folder.iterdir())):03}-{name}", text.encode())
    except OSError as error:
        problem, hint = f"cannot be written to: {error.strerror}", "name a folder that is yours"
        raise UsageError(f"environment variable {FOLDER}", problem, folder, hint=hint) from error
