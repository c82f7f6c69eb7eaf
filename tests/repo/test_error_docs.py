"""docs/errors.md lists every message, and every message about what a user gave says what to do."""

import ast

import list_errors
import pytest

from tvm_sparse import errors


def test_the_page_is_up_to_date():
    assert list_errors.PAGE.read_text() == list_errors.page(), "run: python tests/repo/list_errors.py"


def test_every_class_is_on_the_page():
    classes = {
        name
        for name, each in vars(errors).items()
        if isinstance(each, type) and issubclass(each, errors.TvmSparseError)
    }
    assert classes - {"TvmSparseError"} == set(list_errors.CLASSES)


def test_messages_say_what_is_allowed_or_what_to_do():
    """But for lines of a log, refused one by one and counted: what to do is said where they are shown."""
    messages = [each for each in list_errors.messages() if each.error not in ("LogError", "BuildError")]
    assert len(messages) > 100
    assert not [each for each in messages if not each.problem]
    assert not [m for m in messages if not (m.allowed or m.hint or m.where.startswith("logs "))]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("raise ModelError(str(path), 'bad', 3, 'good', 'go')", ("ModelError", "FILE", "bad", "good", "go")),
        ("raise errors.ModelError(f'layer {x}', f'{y} is bad')", ("ModelError", "layer ...", "... is bad", "", "")),
        (
            "def f():\n    hint = 'a' if x else 'b'\n    raise UsageError('w', 'p', hint=hint)",
            ("UsageError", "w", "p", "", "a or b"),
        ),
        (
            "raise damaged(directory, 'broken')",
            ("ArtifactError", "ARTIFACT", "is damaged (broken)", "", "save the model again"),
        ),
    ],
)
def test_messages_are_read_from_source(source, expected):
    assert list(list_errors._messages(ast.parse(source))) == [expected]


def test_a_message_is_one_printable_line():
    error = errors.ModelError("layer a\nb", "is\tbad", "\x1b[31m\udcff", "good", "go")
    assert str(error) == r"layer a\nb: is\tbad, found \x1b[31m\udcff; allowed: good; go"
