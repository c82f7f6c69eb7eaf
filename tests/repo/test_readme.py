"""The pages say what is so: commands are those that are tested, code runs, and files, folders and headings exist."""

import json
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from factories import make_record
from pages import text_of

from tvm_sparse.cli.parser import build_parser
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.logs.record_codec import CHECKSUM, hints_of
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.schedules.lookup import find_space
from tvm_sparse.target.resolve import resolve_target

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
LOGS = (ROOT / "tuning_logs" / "README.md").read_text()
LINKED = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
LINKED += [ROOT / folder / "README.md" for folder in ("examples", "tuning_logs")]
LINKED += [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "docs" / "tutorial.ipynb"]
# A page of results that its data makes names the files of its time.
PAGES = [page for page in LINKED if not page.with_suffix(".json.xz").exists()]
LAB = ROOT / "docs" / "lab"
FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def blocks(language, text=README):
    return [code for name, code in FENCED.findall(text) if name == language]


def test_ci_runs_the_test_command_of_the_readme():
    (_, tests) = (block.strip() for block in blocks("sh"))
    assert "-m pytest" in tests
    assert tests in [line.strip() for line in (ROOT / ".ci" / "run").read_text().splitlines()]


def test_the_first_command_runs_the_demo():
    demo, _ = (block.strip() for block in blocks("sh"))
    assert demo.startswith("python3 -m venv .venv && ")
    assert build_parser().parse_args(demo.partition(".venv/bin/tvm-sparse ")[2].split()).command == "demo"


def test_the_table_of_commands_is_complete():
    names = re.findall(r"^\| `tvm-sparse (\w+)", README, re.MULTILINE)
    (commands,) = (action.choices for action in build_parser()._actions if action.dest == "command")
    assert sorted(names) == sorted(commands)


def test_every_command_of_the_table_parses():
    for line in re.findall(r"^\| `tvm-sparse (.*?)`", README, re.MULTILINE):
        build_parser().parse_args(line.split())


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 200


def test_packages_of_the_layout_exist():
    (row,) = re.findall(r"^\| `tvm_sparse/` \|(.*)\|$", CONTRIBUTING, re.MULTILINE)
    found = set(re.findall(r"`(\w+)`", row))
    packages = {path.parent.name for path in (ROOT / "tvm_sparse").glob("*/__init__.py")}
    assert found == packages - {"schedules", "tuning_logs"}


def paths_of(text):
    """What stands in backticks and begins with a file or folder of the repository, without placeholders."""
    words = (word for quoted in re.findall(r"`([^`]+)`", FENCED.sub("", text)) for word in quoted.split())
    tops = {path.name for path in ROOT.iterdir()}
    return {word for word in words if "/" in word and word.split("/")[0] in tops and "<" not in word}


def titles_of(page):
    return re.findall(r"^#+ (.*)$", FENCED.sub("", text_of(page)), re.MULTILINE)


def anchors_of(page):
    """The anchors of a page in its order, as GitHub makes them."""
    return [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles_of(page)]


def links_of(page):
    """The files and anchors that a page links to, but for other sites'."""
    links = re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", FENCED.sub("", text_of(page)))
    return [(page.parent / target if target else page, anchor) for target, anchor in links if "://" not in target]


def dead_links_of(page):
    return [
        f"{linked}#{anchor}"
        for linked, anchor in links_of(page)
        if not linked.exists() or (anchor and anchor not in anchors_of(linked))
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_exists(page):
    assert not [path for path in paths_of(text_of(page)) if not (ROOT / path).exists()]


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page):
    assert not dead_links_of(page)


def test_dead_links_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Here it is\n[a](#here-it-is) [b](page.md#gone) [c](gone.md) [d](#nor-this) [e](https://x.y/z)")
    assert [link.removeprefix(f"{tmp_path}/") for link in dead_links_of(page)] == [
        "page.md#gone",
        "gone.md#",
        "page.md#nor-this",
    ]


def test_the_index_of_the_lab_lists_every_question():
    listed = {(page.name, anchor) for page, anchor in links_of(LAB / "README.md")}
    pages = set(LAB.glob("*.md")) - {LAB / "README.md"}
    assert pages
    assert not {(page.name, anchor) for page in pages for anchor in ["", *anchors_of(page)[1:]]} - listed


@pytest.mark.parametrize("page", sorted(LAB.glob("*.md")), ids=lambda page: page.name)
def test_modules_that_the_lab_names_exist(page):
    """It names them without their folder, so that a question stays as it is when a module moves."""
    modules = {path.name for folder in ("tvm_sparse", "tests") for path in (ROOT / folder).rglob("*.py")}
    assert not set(re.findall(r"`(\w+\.py)`", page.read_text())) - modules


def test_the_entrance_of_docs_lists_every_page():
    listed = {page.resolve() for page, _ in links_of(ROOT / "docs" / "README.md")}
    assert set((ROOT / "docs").glob("*.md")) - listed == {ROOT / "docs" / "README.md"}


def test_pages_that_code_names_have_the_heading_that_it_quotes():
    named = 0
    for path in (each for top in ("schedules", "scripts", "tvm_sparse") for each in (ROOT / top).rglob("*.*")):
        if path.suffix in {".cu", ".cuh", ".py"}:
            text = re.sub(r"\s*\n\s*(?:#|//)?\s*", " ", path.read_text())
            for name, quoted in re.findall(r"(docs/[\w/-]+\.md)(?:, \"([^\"]+)\")?", text):
                named += 1
                assert (ROOT / name).exists(), f"{path}: {name}"
                assert not quoted or quoted in titles_of(ROOT / name), f"{path}: {name}, {quoted}"
    assert named > 20


def test_missing_paths_are_found():
    text = "`scripts/gone.py --fast`, `tests/<package>/x.py`, `a/b`\n```sh\ncat docs/gone.md\n```\n`docs/gone`"
    assert paths_of(text) == {"scripts/gone.py", "docs/gone"}


def run_here(code, folder, monkeypatch):
    """Python of a page, in this process, which has what it imports, and in `folder`."""
    script = folder / "page.py"
    script.write_text(code)
    monkeypatch.chdir(folder)
    runpy.run_path(str(script), run_name="__main__")


def test_the_kernel_of_the_pages_is_what_is_generated(tmp_path, monkeypatch, capsys):
    """Every line in the order of the source; ``...`` stands for anything."""
    text = (ROOT / "docs" / "how-a-kernel-works.md").read_text()
    (code,) = blocks("python", text)
    run_here(code, tmp_path, monkeypatch)
    source = [line.strip() for line in capsys.readouterr().out.splitlines()]
    for block in (*blocks("c", text), *blocks("c")):
        lines = iter(source)
        for shown in block.splitlines():
            wanted = re.escape(shown.partition("  //")[0].strip()).replace(re.escape("..."), ".*")
            assert wanted == ".*" or any(re.fullmatch(wanted, line) for line in lines), shown


def test_the_fields_of_a_record_are_those_of_the_page():
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", LOGS, re.MULTILINE)
    assert sorted(re.findall(r"\w+", " ".join(rows))) == sorted([*hints_of(TuningRecord), CHECKSUM])


def test_the_decisions_of_the_page_are_those_of_a_kernel():
    spec = ConvSpec(64, 64, 56, 56, 64, 3, 3, padding=(1, 1, 1, 1))
    weight = np.where(np.random.default_rng(0).random(spec.weight_shape) < 0.1, 1, 0).astype(np.float32)
    (decisions,) = map(json.loads, blocks("json", LOGS))
    target = resolve_target({"kind": "cuda", "arch": "sm_90"})
    space = find_space("folded_cuda:multistage-56x28-pixels1", spec, SparsityPattern.of(weight), target)
    assert list(decisions) == list(space.choices)
    assert space.decisions_of(space.scheduled(decisions)) == decisions


def test_a_record_is_written_by_hand_as_the_page_says(tmp_path, monkeypatch):
    TuningLog(tmp_path / "my.jsonl").append(make_record())
    (code,) = blocks("python", LOGS)
    run_here(code, tmp_path, monkeypatch)
    measured, written = TuningLog("my.jsonl").records
    assert written.decisions == {**measured.decisions, "pipeline_stages": 4}
    assert (written.times_us, written.error) == ((41.9, 42.0, 42.1), None)


@pytest.mark.slow
def test_the_example_runs(tmp_path, monkeypatch, capsys):
    (code,) = blocks("python")
    assert "trials=64" in code
    code = code.replace("trials=64", "trials=2") + "\nassert torch.allclose(y, model(x), atol=1e-4)\n"
    run_here(code, tmp_path, monkeypatch)
    said = capsys.readouterr().out
    assert "sparse data" in said and "model: about" in said
    assert (tmp_path / "my.sparse").is_dir()
