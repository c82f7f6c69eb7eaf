"""Data flows one way: a package imports only packages to its left, and no files import each other in a circle."""

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Packages that share a place do not import each other. `tvm_sparse` itself only names what others define.
FLOW = (
    ("errors", "version"),
    ("untrusted", "files"),
    ("target", "conv", "display"),
    ("cudnn",),
    ("frontend", "scheduling", "runtime"),
    ("schedules", "codegen", "exporter"),
    ("measure",),
    ("logs",),
    ("request",),
    ("compiler", "autotune"),
    ("verdict",),
    ("optimizer", "prune", "ort"),
    ("reports",),
    ("cli", "dynamo"),
    ("__main__", "__init__"),
    # The lab, in scripts/: whatever it imports, the package does without it.
    ("benchmarks",),
)
PLACE = {package: place for place, packages in enumerate(FLOW) for package in packages}
ROOTS = ("tvm_sparse", "benchmarks")
# Beside packages, all that may lie in the package's own folder.
FILES = {"__init__.py", "__main__.py", "errors.py", "version.py", "py.typed"}


def modules():
    """Dotted name -> file, of every module of the package and the lab."""
    found = {}
    for folder, prefix in (
        (ROOT / "tvm_sparse", ("tvm_sparse",)),
        (ROOT / "schedules", ("tvm_sparse", "schedules")),
        (ROOT / "scripts" / "benchmarks", ("benchmarks",)),
    ):
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            if parts[0] in ("schedules", "tuning_logs") and prefix == ("tvm_sparse",):
                continue
            found[".".join((*prefix, *(parts[:-1] if parts[-1] == "__init__" else parts)))] = path
    return found


MODULES = modules()


@cache
def imports(path):
    """Modules of the package and the lab that a file imports, also within functions."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in ROOTS:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [name if name in MODULES else node.module for name in names]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in ROOTS]
    return found


def package_of(name):
    root, *rest = name.split(".")
    return root if root == "benchmarks" else [*rest, "__init__"][0]


def test_the_package_holds_packages_and_little_else():
    files = {path.name for path in (ROOT / "tvm_sparse").iterdir() if path.is_file()}
    packages = {path.parent.name for path in (ROOT / "tvm_sparse").glob("*/*.py")}
    assert files == FILES
    assert packages - {"tuning_logs"} <= set(PLACE), "give a new package a place in FLOW"


def test_a_package_imports_only_packages_to_its_left():
    wrong = [
        f"{name} imports {each}"
        for name, path in MODULES.items()
        if name != "tvm_sparse"
        for each in imports(path)
        if package_of(each) != package_of(name) and PLACE[package_of(each)] >= PLACE[package_of(name)]
    ]
    assert not wrong


def test_no_files_import_each_other_in_a_circle():
    graph = {
        # The face of a package, which its own files are not meant to use.
        name: {each for each in imports(path) if each not in (name, "tvm_sparse")}
        for name, path in MODULES.items()
        if name != "tvm_sparse"
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_no_rooms_import_each_other_in_a_circle():
    """A file beside rooms stands for itself."""
    packages = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    with_rooms = {name.rpartition(".")[0] for name in packages}

    def room(name):
        place = name if name in packages else name.rpartition(".")[0]
        return name if place in with_rooms else place

    graph = {room(name): set() for name in MODULES}
    for name, path in MODULES.items():
        if name != "tvm_sparse":
            graph[room(name)] |= {room(each) for each in imports(path) if each != "tvm_sparse"} - {room(name)}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_each_package_says_what_comes_in_and_what_goes_out():
    others = ("tvm_sparse", "tvm_sparse.cli.commands", "tvm_sparse.frontend.passes")
    faces = {name: path for name, path in MODULES.items() if path.name == "__init__.py" and name not in others}
    said = {name: ast.get_docstring(ast.parse(path.read_text())) or "" for name, path in faces.items()}
    assert not [name for name, text in said.items() if "In: " not in text or "Out: " not in text]


def test_importing_the_package_loads_nothing_heavy_and_makes_no_file(tmp_path):
    code = (
        "import sys, tvm_sparse; print([m for m in ('tvm', 'torch', 'onnx', 'numpy', 'xgboost') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert list(tmp_path.iterdir()) == []
