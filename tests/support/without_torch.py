"""Runs a script as a process that is wholly ours: TVM would import torch, which takes longer than TVM itself.

python tests/support/without_torch.py SCRIPT ARGUMENTS
"""

import importlib
import runpy
import sys

from tvm_sparse.frontend.optional_imports import of_all_life, without_torch


def command(script, *arguments):
    """What runs a script so."""
    return [sys.executable, __file__, *map(str, (script, *arguments))]


if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    with without_torch():
        with of_all_life():
            importlib.import_module("tvm")
        runpy.run_path(sys.argv[0], run_name="__main__")
