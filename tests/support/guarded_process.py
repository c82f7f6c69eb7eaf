"""Python processes in which every tensor lies between pages that nobody may touch; see `guard_pages.c`."""

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
SIDES = ("end", "start")


@functools.cache
def library():
    """The library to preload."""
    path = Path(tempfile.mkdtemp()) / "guard_pages.so"
    source = FOLDER / "guard_pages.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", path, source, "-ldl"], check=True)
    return path


def run(side, *arguments):
    """Run Python with `arguments`, tensors flush with a guard page at their `side`; the process that has ended."""
    # What was built before would be run as it was.
    own = {"LD_PRELOAD": str(library()), "GUARD_SIDE": side, "TVM_SPARSE_CACHE_MIB": "0"}
    path = os.pathsep.join([str(ROOT), str(FOLDER), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, *map(str, arguments)]
    environment = {**os.environ, **own, "PYTHONPATH": path}
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


def fuzz(side, seed, turns, names=()):
    """What `index_fuzz` says of its models under guard pages: counts, and what was wrong."""
    done = run(side, FOLDER / "index_fuzz.py", "llvm", seed, turns, *names)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"signal {-done.returncode} in {lines[-1:]}\n{done.stderr[-2000:]}"
    return json.loads(lines[-1])
