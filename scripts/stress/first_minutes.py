"""From nothing to a verdict: how long somebody new waits for it, here.

    python scripts/stress/first_minutes.py

Clones this checkout, makes a virtual environment, installs the package and optimises a ResNet-18 of an .onnx file for a
minute, as README says it; ends with 1 unless a measured verdict is there three minutes after the clone began. Nothing
else should run meanwhile. What is committed counts, and pip takes what it has kept of former downloads.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import onnx

from benchmarks.networks import MODELS, Options

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 180.0


def steps(folder: Path, minutes: float) -> dict[str, list[str]]:
    """What is typed, in its order."""
    clone, scripts = folder / "tvm-sparse", folder / "venv" / "bin"
    words = ["optimize", "model.onnx", "-o", "model.sparse", "--minutes", f"{minutes:g}", "--json"]
    return {
        "clone": ["git", "clone", "--quiet", str(ROOT), str(clone)],
        "venv": [sys.executable, "-m", "venv", str(folder / "venv")],
        "install": [str(scripts / "pip"), "install", "--quiet", f"{clone}[onnx]"],
        "optimize": [str(scripts / "tvm-sparse"), *words],
    }


def main() -> int:
    """Print the seconds of each step and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="of optimize (default: %(default)g)")
    minutes = parser.parse_args().minutes
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        onnx.save(MODELS["resnet18"](Options(density=0.1)), folder / "model.onnx")
        # Nothing of this checkout's, and no log or kernel of this user's.
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        environment["TVM_SPARSE_HOME"] = str(folder / "home")
        begin_s, printed = time.monotonic(), ""
        for step, words in steps(folder, minutes).items():
            start_s = time.monotonic()
            options = {"cwd": folder, "env": environment, "stdout": subprocess.PIPE, "text": True}
            printed = subprocess.run(words, check=True, **options).stdout
            print(f"{step}: {time.monotonic() - start_s:.0f} s", flush=True)
        taken_s, verdict = time.monotonic() - begin_s, json.loads(printed)["verdicts"][0]
    print(f"{taken_s:.0f} s in all, of {LIMIT_S:.0f} s at most; {verdict['line']}")
    return 0 if taken_s <= LIMIT_S and verdict["kind"] == "measured" else 1


if __name__ == "__main__":
    sys.exit(main())
