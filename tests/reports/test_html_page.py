"""`report` writes one page of HTML that has every layer, and runs nothing that a name says."""

from html.parser import HTMLParser

import numpy as np
import onnx
import pytest
import zoo

import tvm_sparse as ts
from tvm_sparse.cli import main
from tvm_sparse.display import html_page
from tvm_sparse.display.html_page import Chapter, page
from tvm_sparse.errors import UsageError

pytestmark = pytest.mark.usefixtures("unoptimised")

VOID = {"meta", "br"}
EVIL = "<script>alert('x')</script>"


class Page(HTMLParser):
    """What is on a page; every tag must be closed where it belongs."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.layers, self.text = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        assert not {"src", "href", "onload", "onclick"} & {name for name, _ in attributes}
        if tag == "td" and "layer" in (dict(attributes).get("class") or "").split():
            self.layers.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)
        if self.open[-1:] == ["td"] and self.layers and self.layers[-1] == "":
            self.layers[-1] = data


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The path of a model with two convolutions, one of which has a name that is no text in HTML."""
    path = tmp_path_factory.mktemp("model") / "two.onnx"
    random = np.random.default_rng(0)
    weights = {name: random.standard_normal((8, 8, 3, 3)).astype(np.float32) for name in ("first.weight", EVIL)}
    weights[EVIL][np.abs(weights[EVIL]) < 1.5] = 0
    pads = {"pads": [1, 1, 1, 1]}
    nodes = [("Conv", ["x", "first.weight"], ["t"], pads), ("Conv", ["t", EVIL], ["y"], pads)]
    onnx.save(zoo.onnx_model(nodes, weights, {"x": (1, 8, 9, 9)}, {"y": (1, 8, 9, 9)}), path)
    return path


def test_a_file_is_told_without_building(model, monkeypatch):
    monkeypatch.setattr(ts.CompiledModel, "__init__", None)
    inspection = ts.inspect(model).to_json()
    text = ts.report(model)
    found = Page(text)
    assert found.layers == [row["layer"] for row in inspection["layers"]] and len(found.layers) == 2
    assert "svg" in found.tags and "script" not in found.tags and "http" not in text
    assert any(inspection["worth_it"] in each for each in found.text) and ts.__version__ in found.text
    assert sum(row["share"] for row in inspection["layers"]) == pytest.approx(1)


def test_what_was_compiled_is_told(model, tmp_path):
    fast = ts.compile(model, batch=[1, 2])
    folder = fast.save(tmp_path / "two.sparse")
    names = [row["layer"] for row in fast.report()]
    assert Page(ts.report(fast)).layers == names and len(names) == 4
    assert main.main(["report", str(folder), "-o", str(tmp_path / "new.html")]) == 0
    found = Page((tmp_path / "new.html").read_text())
    assert found.layers == names and fast.models["batch 2"].verdict.line() in found.text
    for told in (ts.report, ts.bench):
        with pytest.raises(UsageError, match="takes no options, found threads, predict; give them when"):
            told(folder, threads=2, predict=False, shapes={}, dtype=None)
    assert main.main(["report", str(folder), "--batch", "4", "-o", str(tmp_path / "new.html")]) == 2


def test_a_page_that_cannot_be_written(model, tmp_path, capsys):
    (tmp_path / "taken").mkdir()
    assert main.main(["report", str(model), "-o", str(tmp_path / "taken")]) == 2
    assert "taken: cannot be written (it is no regular file); choose another --output" in capsys.readouterr().err


def row(name, share, **others):
    return {"layer": name, "kernel": "folded", "share": share, "dense_share": 2 * share, **others}


def test_names_and_sentences_are_text():
    others = {"shape": EVIL, "density": EVIL, "time_us": None, "speedup": EVIL, "why": EVIL}
    chapter = Chapter(EVIL, EVIL, [EVIL], [row(EVIL, 1.0, **others)], [EVIL], EVIL)
    found = Page(page(EVIL, [chapter], {EVIL: EVIL}))
    assert "script" not in found.tags and found.layers == [EVIL] and len([x for x in found.text if EVIL in x]) >= 12


def test_the_plot_has_the_heaviest_layers_and_the_sum_of_others(monkeypatch):
    monkeypatch.setattr(html_page, "MOST_BARS", 2)
    layers = [row("a", 0.1), row("b", 0.5), row("c", 0.1), row("d", 0.3), {"layer": "e", "kernel": "dense"}]
    text = "".join(Page(page("m", [Chapter("m", "v", [], layers, [], "measured")], {})).text)
    assert "b: 50.0%" in text and "d: 30.0%" in text and "2 other layers: 20.0%" in text and "a: " not in text
    assert "1 of 5 layers have no time" in text
    text = "".join(Page(page("m", [Chapter("m", "v", [], layers[4:], [], "measured")], {})).text)
    assert "No layer's time is known." in text
