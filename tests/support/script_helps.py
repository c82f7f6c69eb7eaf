"""Ask scripts for their help, each in a fork of a process that has imported what most of them do.

python tests/support/script_helps.py SCRIPT ...
"""

import os
import runpy
import sys
from pathlib import Path

import torch

from tvm_sparse.autotune import session
from tvm_sparse.compiler import build_model

# Imported once, for all.
assert torch and session and build_model


def end(code: int) -> None:
    """Taking the interpreter down with all of torch in it takes a second."""
    sys.stdout.flush()
    os._exit(code)


def ask(script: str) -> int:
    """The exit code of ``python SCRIPT --help``, run in this process."""
    sys.argv = [script, "--help"]
    # In place of this script's folder.
    sys.path[0] = str(Path(script).parent)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        return int(ended.code or 0)
    return 1


for script in sys.argv[1:]:
    child = os.fork()
    if not child:
        end(ask(script))
    _, status = os.waitpid(child, 0)
    if status:
        sys.exit(f"{script} --help ended with {os.waitstatus_to_exitcode(status)}")
end(0)
