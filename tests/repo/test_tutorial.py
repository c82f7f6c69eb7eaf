"""The tutorial is a notebook that runs and shows what it printed, and its commands are those of the command line."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pages import text_of

from tvm_sparse.cli.parser import build_parser

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"
CODE = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
# What the page says, at the end of its cells.
CHECKS = """
assert right_pruned > 120
for conv in convolutions:
    assert int((conv.weight != 0).sum()) == round(0.1 * conv.weight.numel())
assert all(row["kernel"] == "sparse data" for row in fast.report() if row["layer"] != "0"), fast.report_text()
torch.testing.assert_close(torch.tensor(shipped(x.numpy())), net(x).detach(), rtol=1e-4, atol=1e-4)
"""


def source_of(cells):
    return "\n".join("".join(cell["source"]) for cell in cells)


@pytest.mark.usefixtures("unoptimised")
def test_its_cells_run_but_for_those_that_time(tmp_path, monkeypatch):
    """In this process, and with little training: most of the time is that of importing torch and TVM."""
    monkeypatch.chdir(tmp_path)
    code = source_of(cell for cell in CODE if "slow" not in cell["metadata"].get("tags", []))
    assert "EPOCHS = 10" in code
    threads = torch.get_num_threads()
    try:
        exec(compile(code.replace("EPOCHS = 10", "EPOCHS = 1"), str(NOTEBOOK), "exec"), {})
    finally:
        torch.set_num_threads(threads)
    assert (tmp_path / "digits.sparse" / "manifest.json").is_file()


@pytest.mark.exhaustive
def test_all_of_it_runs(tmp_path):
    (tmp_path / "tutorial.py").write_text(source_of(CODE) + CHECKS)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "tutorial.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "onnxruntime" in done.stdout and (tmp_path / "digits.sparse").is_dir()


def test_it_shows_what_it_printed():
    outputs = [each for cell in CODE for each in cell["outputs"]]
    assert {each.get("name") for each in outputs} == {"stdout"}
    page = text_of(NOTEBOOK)
    assert page.count("```text") == sum("print(" in "".join(cell["source"]) for cell in CODE)
    assert "onnxruntime" in page and "/work" not in page


def test_its_commands_parse():
    commands = re.findall(r"(?:^|`)tvm-sparse (\w+ [^`\n]*)", text_of(NOTEBOOK), re.MULTILINE)
    assert len(commands) > 5
    for command in commands:
        build_parser().parse_args(command.split())
