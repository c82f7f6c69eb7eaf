"""Write docs/errors.md: every message that a user can meet, read from the places that raise them.

    python tests/repo/list_errors.py

A value that is only known at run time stands as `...`. `test_error_docs.py` fails where the page is out of date.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "errors.md"
PARAMETERS = ("where", "problem", "found", "allowed", "hint")
# Classes of `tvm_sparse.errors`, in the order of the page, and the parser's own.
CLASSES = ("UsageError", "ModelError", "LogError", "ArtifactError", "InputError", "BuildError", "VerificationError")
# What stands at the beginning of a message -> how the page calls it.
PLACES = {
    "str(path)": "FILE",
    "str(directory)": "ARTIFACT",
    "str(artifact)": "ARTIFACT",
    "str(self.artifact)": "ARTIFACT",
    "directory": "ARTIFACT",
    "where": "MODEL",
}
# Of rewrites of ONNX nodes.
PLACES["to.where"] = "MODEL, node ..."
# Functions that make an error of what they are given: class, problem, hint.
MAKERS = {"damaged": ("ArtifactError", "is damaged (...)", "save the model again")}
HEAD = """\
# Error messages

Every failure that a user can cause is one sentence, `where: what is wrong, found ...; allowed: ...; next step`, on
standard error, with the exit code of its class; `-v` adds the traceback. In Python it is an exception of
`tvm_sparse.errors`, all of which are a `TvmSparseError`. `...` stands for what is only known then: a layer, a file, a
number. A message that begins with `internal error` is none of these but a bug: please report it with what `-v` shows.

This page is made from the source by `python tests/repo/list_errors.py`.
"""


class Message(NamedTuple):
    """One message, its parts empty where it has none."""

    error: str
    where: str
    problem: str
    allowed: str
    hint: str


def main() -> None:
    """Write the page."""
    PAGE.write_text(page())


def page() -> str:
    """The text of docs/errors.md."""
    return HEAD + "".join(_section(name, [each for each in messages() if each.error == name]) for name in CLASSES)


@cache
def messages() -> list[Message]:
    """Every message in the package's source once, in order."""
    found: set[Message] = set()
    for folder in ("tvm_sparse", "schedules"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.name != "errors.py":
                found.update(_messages(ast.parse(path.read_text())))
    return sorted(found)


def _messages(tree: ast.Module) -> Iterator[Message]:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    calls = {id(each): [node for node in ast.walk(each) if _is_message(node)] for each in [*functions, tree]}
    inner = {id(node) for function in functions for node in calls[id(function)]}
    shared = _assigned(ast.Module([node for node in tree.body if isinstance(node, ast.Assign)], []))
    for scope in [*functions, tree]:
        found = [node for node in calls[id(scope)] if not (scope is tree and id(node) in inner)]
        names = shared | _assigned(scope) if found else {}
        for node in found:
            yield from _message(node, names)


def _is_message(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    return name in ("ArgumentTypeError", *MAKERS, *CLASSES)


def _message(call: ast.Call, names: dict[str, str]) -> Iterator[Message]:
    name = ast.unparse(call.func).split(".")[-1]
    parts = dict(zip(PARAMETERS, call.args, strict=False)) | {k.arg: k.value for k in call.keywords if k.arg}
    if name == "ArgumentTypeError":
        yield Message("UsageError", "an option", _text(call.args[0], names), "", "see --help")
    elif name in MAKERS:
        error, problem, hint = MAKERS[name]
        yield Message(error, _text(call.args[0], names), problem.replace("...", _text(call.args[1], names)), "", hint)
    elif name in CLASSES and "problem" in parts:
        where, problem, allowed, hint = (
            _text(parts[part], names) if part in parts else "" for part in ("where", "problem", "allowed", "hint")
        )
        # A maker itself: its messages are where it is called.
        if problem != "is damaged (...)":
            yield Message(name, where, problem, allowed, hint)


def _assigned(scope: ast.AST) -> dict[str, str]:
    """Texts that variables of a function are assigned, several joined by ``or``."""
    found: dict[str, list[str]] = {}
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = list(zip(target.elts, value.elts, strict=False))
            for name, each in pairs:
                if isinstance(name, ast.Name) and (text := _text(each, {})) != "...":
                    found.setdefault(name.id, []).append(text)
    return {name: " or ".join(dict.fromkeys(texts)) for name, texts in found.items()}


def _text(node: ast.expr, names: dict[str, str]) -> str:
    """An expression as the text it gives, ``...`` for what is not known before."""
    if isinstance(node, ast.Constant):
        return "" if node.value is None else str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_piece, node.values))
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "typed":
        return f"tvm-sparse {_text(node.args[0], names)}"
    if isinstance(node, ast.IfExp):
        return " or ".join(filter(None, (_text(node.body, names), _text(node.orelse, names))))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left, names) + _text(node.right, names)
    known = names.get(node.id) if isinstance(node, ast.Name) else None
    return known or PLACES.get(ast.unparse(node), "...")


def _piece(node: ast.expr) -> str:
    """A part of an f-string."""
    is_command = isinstance(node, ast.FormattedValue) and ast.unparse(node.value).startswith("typed(")
    return _text(node.value if is_command else node, {})


def _section(name: str, found: list[Message]) -> str:
    tree = ast.parse((ROOT / "tvm_sparse" / "errors.py").read_text())
    (definition,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    (code,) = [ast.literal_eval(each.value) for each in definition.body if isinstance(each, ast.Assign)]
    lines = [f"\n## {name}, exit code {code}\n", f"{ast.get_docstring(definition)}\n"]
    return "\n".join([*lines, *map(_line, found)]) + "\n"


def _line(message: Message) -> str:
    allowed = f"allowed: {message.allowed}" if message.allowed else ""
    text = f"- {message.where}: {'; '.join(filter(None, (message.problem, allowed, message.hint)))}"
    return text.replace("\n", " ").replace("<", "&lt;")


if __name__ == "__main__":
    main()
