"""A file does one thing, and a function one step of it: how long they may be."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_OF_A_FILE, MOST_OF_A_FUNCTION = 300, 60


def lengths(scope):
    """Of each function in a module, class or function, without its decorators."""
    for node in getattr(scope, "body", ()):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.end_lineno - node.lineno + 1
        yield from lengths(node)


def test_no_file_and_no_function_is_too_long():
    paths = [path for folder in ("tvm_sparse", "schedules") for path in (ROOT / folder).rglob("*.py")]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}
    assert not [name for name, text in texts.items() if text.count("\n") > MOST_OF_A_FILE]
    functions = [each for text in texts.values() for each in lengths(ast.parse(text))]
    assert len(functions) > 3000
    assert not [each for each in functions if each[1] > MOST_OF_A_FUNCTION]


def test_long_functions_are_found():
    body = "    x = 1\n" * MOST_OF_A_FUNCTION
    assert list(lengths(ast.parse(f"class A:\n  @a\n  def f():\n{body}"))) == [("f", MOST_OF_A_FUNCTION + 1)]
