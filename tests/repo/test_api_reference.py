"""The page of the API has an entry for every public name, and no other."""

import re
from pathlib import Path

import tvm_sparse
import tvm_sparse.ort
import tvm_sparse.prune

PAGE = (Path(__file__).parents[2] / "docs" / "site" / "api.md").read_text()


def test_every_public_name_has_one_entry():
    entries = re.findall(r"^::: (\S+)$|^`(\S+)` is ", PAGE, re.MULTILINE)
    public = [f"tvm_sparse.{name}" for name in dir(tvm_sparse)]
    public += [f"{module.__name__}.{name}" for module in (tvm_sparse.ort, tvm_sparse.prune) for name in module.__all__]
    assert sorted(directive or word for directive, word in entries) == sorted(public)


def test_every_public_name_has_a_docstring():
    for name in set(dir(tvm_sparse)) - {"__version__"}:
        assert getattr(tvm_sparse, name).__doc__, name
