"""The tutorial's Python is one script that does what the page says, and its commands are those of the command line."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_readme import blocks

from tvm_sparse.cli.parser import build_parser

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
# What the page promises, at the end of its script.
CHECKS = """
assert right_dense > 120 and right_pruned > 120
for conv in convolutions:
    assert int((conv.weight != 0).sum()) == round(0.1 * conv.weight.numel())
chosen = {row["layer"]: row for row in fast.report()}
assert all(abs(chosen[name]["density"] - 0.1) < 0.001 for name in ("2", "4"))
assert all(row["dense_time_us"] for row in chosen.values()), "a layer was not tuned"
torch.testing.assert_close(torch.from_numpy(shipped(x.numpy())), net(x).detach(), rtol=1e-4, atol=1e-4)
"""


@pytest.mark.exhaustive
def test_the_script_runs(tmp_path):
    (tmp_path / "tutorial.py").write_text("\n".join(blocks("python", PAGE)) + CHECKS)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    # The network is too small for two threads, which wait for each other where others use the cores.
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "tutorial.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "predicted" in done.stdout
    assert (tmp_path / "digits.jsonl").is_file() and (tmp_path / "digits.sparse").is_dir()


def test_its_commands_parse():
    commands = re.findall(r"(?:^|`)tvm-sparse (\w+ [^`\n]*)", PAGE, re.MULTILINE)
    assert len(commands) > 6
    for command in commands:
        build_parser().parse_args(command.split())
