"""Tables of the command line and of reports."""

import io

import pytest
from factories import SPEC
from rich.cells import cell_len
from rich.console import Console

from tvm_sparse.display import tables
from tvm_sparse.display.consoles import PLAIN_WIDTH, plain_text


def lines_of(table, width, is_terminal):
    console = Console(file=io.StringIO(), width=width, force_terminal=is_terminal, color_system=None)
    console.print(table)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_table_keeps_markup_and_long_names():
    rows = [{"name": f"[bold]{SPEC.key}", "value": 1.5}, {"name": "x", "value": None}]
    table = tables.TableView("Title", rows, {"name": "name", "value": "us"})
    assert [line.split() for line in lines_of(table, PLAIN_WIDTH, is_terminal=False)] == [
        ["Title"],
        ["name", "us"],
        [f"[bold]{SPEC.key}", "1.5"],
        ["x", "-"],
    ]


@pytest.mark.parametrize("width", [40, 80, 100, 140])
@pytest.mark.parametrize("name", ["name", None])
def test_each_row_is_one_line_of_a_terminal(width, name):
    rows = [{"name": "a name of words " * 9 + str(number), "us": 123.4} for number in range(3)]
    lines = lines_of(tables.TableView("", rows, {"name": "name", "us": "us"}, name), width, is_terminal=True)
    assert len(lines) == 1 + len(rows) and all(line.endswith("123.4") for line in lines[1:])
    assert max(map(cell_len, lines)) <= min(width, tables.MOST_WIDTH)
    if name is not None:
        # Where names differ.
        assert [line.split()[-2] for line in lines[1:]] == ["0", "1", "2"]


def row(name, **more):
    kernel = {"kernel": "folded", "status": "measured", "schedule": "folded_cpu:rows", "structure": "unstructured"}
    times = {"time_us": 10.0, "dense_time_us": 20.0, "speedup": 2.0, "density": 0.1}
    return {"layer": name, "precision": "float32", "reason": "it is faster", **kernel, **times, **more}


def test_layers_that_look_alike_share_a_line():
    found = tables.layer_rows([row("a"), row("b", density=0.2), row("c"), row("d", variant="batch 8")])
    assert [(each["layer"], each["density"], each["variant"]) for each in found] == [
        ("a x2", "0.10", None),
        ("b", "0.20", None),
        ("d", "0.10", "batch 8"),
    ]
    assert [line.partition(":")[0] for line in tables.detail_lines([row("a"), row("c")])] == ["a", "c"]


@pytest.mark.parametrize(
    ("more", "us", "speedup"),
    [
        ({}, "10", "2x"),
        ({"status": "predicted", "time_us": None}, "-", "~2x"),
        ({"kernel": "dense", "time_us": None, "speedup": 1.0}, "20", "1x"),
        ({"speedup": 123.4}, "10", "123x"),
        ({"speedup": None}, "10", "-"),
    ],
)
def test_a_kernel_has_its_own_time_or_none(more, us, speedup):
    (found,) = tables.layer_rows([row("a", **more)])
    assert (found["us"], found["speedup"]) == (us, speedup)


def test_another_precision_is_said():
    (found,) = tables.layer_rows([row("a", precision="TF32")])
    assert found["status"] == "measured, TF32"


def test_rows_of_older_artifacts():
    old = row("a")
    for key in ("kernel", "status", "speedup"):
        del old[key]
    (found,) = tables.layer_rows([old])
    assert (found["kernel"], found["speedup"], found["status"]) == ("folded_cpu:rows", "-", "")


def test_notebooks_and_print():
    table = tables.layers("<a model>", [row("<a>")])
    assert "&lt;a model&gt;" in table.html() and "<td>&lt;a&gt;</td>" in table.html()
    assert plain_text(table, "[one] line").splitlines()[-2:] == [
        "<a>       0.10  folded  10        2x  measured",
        "[one] line",
    ]
