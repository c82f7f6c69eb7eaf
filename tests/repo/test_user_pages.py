"""Pages for users: recipes run, messages are those of the code, badges are true, and all of it is short."""

import re

import numpy as np
import onnx
import pytest
import torch
import zoo
from pages import DOCS, ELSEWHERE, text_of
from test_readme import ROOT, blocks

from tvm_sparse.cli.parser import build_parser

HOW_TO = (DOCS / "how-to.md").read_text()
TROUBLE = (DOCS / "troubleshooting.md").read_text()
GENERATED = {"errors.md", "conformance.md"}


def write_network(path):
    """What the recipes call model.onnx: 90% zeros."""
    random = np.random.default_rng(0)
    weight = random.standard_normal((8, 3, 3, 3)) * (random.random((8, 3, 3, 3)) < 0.1)
    nodes = [("Conv", ["x", "w"], ["y"], {"pads": [1, 1, 1, 1]})]
    shapes = {"x": (1, 3, 32, 32)}, {"y": (1, 8, 32, 32)}
    onnx.save(zoo.onnx_model(nodes, {"w": weight.astype(np.float32)}, *shapes), path)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("unoptimised")
def test_the_recipes_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_network(tmp_path / "model.onnx")
    names = {}
    exec(compile("\n".join(blocks("python", HOW_TO)), "how-to.md", "exec"), names)
    assert (tmp_path / "model.sparse" / "manifest.json").is_file()
    with torch.no_grad():
        torch.testing.assert_close(torch.tensor(names["y"]), names["module"](names["x"]), rtol=1e-4, atol=1e-4)


def test_commands_of_the_recipes_parse():
    commands = re.findall(r"^tvm-sparse (.*)$", "".join(blocks("sh", HOW_TO)), re.MULTILINE)
    assert len(commands) > 6
    for command in commands:
        build_parser().parse_args(command.split())


def test_the_messages_are_those_of_the_code():
    """Of `errors.md`, which is made from the source, or parts of sentences there."""
    shown = re.findall(r"^\| `(.*?)` \|", TROUBLE, re.MULTILINE)
    assert len(shown) == 10
    sources = ["verdict/worth.py", "target/compatibility.py"]
    known = (DOCS / "errors.md").read_text() + "".join((ROOT / "tvm_sparse" / name).read_text() for name in sources)
    known = known.replace("{density:.2f}", "1.00")
    for message in shown:
        pattern = ".*".join(map(re.escape, message.split("...")))
        assert re.search(pattern, known), message


def test_docs_for_users_are_short():
    navigation = (DOCS / "site" / "mkdocs.yml").read_text()
    users = navigation[navigation.index("nav:") : navigation.index("- API reference")]
    pages = set(re.findall(r": (\S+\.md)$", users, re.MULTILINE)) - GENERATED
    assert {"index.md", "tutorial.md", "deployment.md"} < pages
    assert sum(len(text_of(ELSEWHERE.get(page, DOCS / page)).split()) for page in pages) <= 15_000


def test_the_badges_are_true():
    project = (ROOT / "pyproject.toml").read_text()
    badges = {name: (DOCS / "images" / f"{name}.svg").read_text() for name in ("licence", "python", "tvm")}
    for name, found in [
        ("licence", r'^license = "(.*)"$'),
        ("python", r'^requires-python = ">=(.*)"$'),
        ("tvm", r'"apache-tvm==(\d+\.\d+)\.'),
    ]:
        (value,) = re.findall(found, project, re.MULTILINE)
        assert f">{value}" in badges[name]


def test_figures_of_the_readme_are_in_their_files():
    """Each time and ratio of its table is one of the page that the row links to, in ms or us, rounded."""
    readme = (ROOT / "README.md").read_text()
    rows = re.findall(r"^\|(.*)\| \[results\]\((docs/results/\S+)\) \|$", readme, re.MULTILINE)
    assert len(rows) == 6
    for row, page in rows:
        numbers = [float(each) for each in re.findall(r"\d+(?:\.\d+)?", (ROOT / page).read_text())]
        figures = re.findall(r"\d+\.\d+", row.partition("|")[2])
        assert figures
        for figure in figures:
            form = f".{len(figure.partition('.')[2])}f"
            assert any(figure in (format(each, form), format(each / 1000, form)) for each in numbers), figure
