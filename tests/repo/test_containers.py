"""Dockerfiles are named in docs/deployment.md, install what the lab lists, and `bare_root` takes their steps."""

import re
from pathlib import Path

import bare_root
import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILES = sorted((ROOT / "containers").glob("*/Dockerfile"))


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_the_page_names_it_and_its_steps_are_known(path):
    assert f"| `{path.parent.name}` |" in (ROOT / "docs" / "deployment.md").read_text()
    found = list(bare_root.instructions(path.read_text()))
    assert found[0][0] == "FROM" and {name for name, _ in found} <= set(bare_root.STEPS)
    commands = "\n".join(words for name, words in found if name == "RUN")
    lists = re.findall(r"(?:apt-get|pip) install (.*?)(?: &&|$)", commands, re.MULTILINE)
    words = re.sub(r"--target \S+", "", " ".join(lists)).split()
    (default,) = [words.partition("=")[2] for name, words in found if name == "ARG"] or [""]
    installed = {each.replace('"/source[$EXTRAS]"', f"tvm-sparse[{default}]") for each in words if each[0] != "-"}
    (row,) = re.findall(rf"(?m)^\| `{path.parent.name}` \|.*$", (ROOT / "docs" / "lab" / "deployed.md").read_text())
    assert set(re.findall(r"`(\S+)`", re.split(r"[;|]", row)[3])) == installed


def test_what_is_tuned_with_is_there():
    """Folders of the checkout, and extras of the package."""
    found = list(bare_root.instructions((ROOT / "containers" / "tune" / "Dockerfile").read_text()))
    for name, words in found:
        if name == "COPY":
            assert all((ROOT / each).exists() for each in words.split()[:-1])
    (extras,) = (words.partition("=")[2].split(",") for name, words in found if name == "ARG")
    known = re.findall(r"(?m)^(\w+) = \[", (ROOT / "pyproject.toml").read_text())
    assert set(extras) <= set(known)


def test_steps(tmp_path):
    """Those that need neither root nor a network: an image of a file and a folder of another stage."""
    context = tmp_path / "context"
    (context / "folder").mkdir(parents=True)
    (context / "folder" / "a").write_text("a")
    (context / "b").write_text("b")
    build = bare_root.Build(context, tmp_path / "bases", [], {}, {"GIVEN": "1"})
    text = """
        # A comment.
        FROM scratch AS first
        ARG GIVEN=2 OTHER=3
        COPY folder \\
            /deep/folder
        FROM scratch
        COPY --from=first /deep /
        COPY b /
    """
    for name, words in bare_root.instructions(text.replace("        ", "")):
        bare_root.STEPS[name](build, words)
    assert {str(path.relative_to(build.root)) for path in build.root.rglob("*")} == {"folder", "folder/a", "b"}
    assert build.environment == {"GIVEN": "1", "OTHER": "3"}
    with pytest.raises(SystemExit, match="only debian:SUITE-slim and scratch"):
        bare_root.begin(build, "ubuntu:24.04")
