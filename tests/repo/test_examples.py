"""The scripts of examples/ run, each in an empty folder, and its page lists them all."""

import json
import re
import runpy
from pathlib import Path

import pytest
from zoo import UNOPTIMISED

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# Code without optimisation calls functions that the C library does not have.
OPTIMISED = "deploy.py"


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.name)
def test_an_example_runs(script, tmp_path, monkeypatch, capsys):
    """In this process: to import torch and TVM again takes longer than what the script does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [script.name])
    if script.name != OPTIMISED:
        monkeypatch.setenv("TVM_SPARSE_TARGET", json.dumps(UNOPTIMISED))
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_the_page_lists_every_example():
    listed = re.findall(r"^\| `(\w+\.py)`", (ROOT / "examples" / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == [each.name for each in EXAMPLES]
