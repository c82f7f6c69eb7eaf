"""The README says what is so: its commands are those that are tested, and its example runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tvm_sparse.cli.parser import build_parser

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


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


def test_files_and_folders_exist():
    for name in re.findall(r"^\| `([\w/]+/)`", README, re.MULTILINE):
        assert (ROOT / name).is_dir(), name
    modules = README.partition("| `tvm_sparse/` |")[2].partition("\n")[0]
    for name in re.findall(r"`(\w+)/?`", modules):
        assert (ROOT / "tvm_sparse" / name).is_dir() or (ROOT / "tvm_sparse" / f"{name}.py").is_file(), name


@pytest.mark.slow
def test_the_example_runs(tmp_path):
    (code,) = blocks("python")
    assert "trials=64" in code
    script = tmp_path / "example.py"
    script.write_text(code.replace("trials=64", "trials=4") + "\nassert torch.allclose(y, model(x), atol=1e-4)\n")
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "unstructured" in done.stdout
    assert (tmp_path / "my.ts").is_dir()
