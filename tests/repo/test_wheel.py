"""The package as a wheel, installed without a checkout: it is whole, and its commands work in an empty folder."""

import json
import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks import operators
from benchmarks.onnx_graph import GraphBuilder

ROOT = Path(__file__).parents[2]
NO_CACHES = shutil.ignore_patterns("__pycache__", "*.egg-info")
pytestmark = pytest.mark.slow


def pip(*words, cwd):
    subprocess.run([sys.executable, "-m", "pip", *map(str, words)], cwd=cwd, check=True, capture_output=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy of what the wheel is made of, because building leaves files beside the sources."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("tvm_sparse", "schedules", "tuning_logs"):
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=NO_CACHES)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    pip("wheel", "--no-deps", "-w", "wheels", ".", cwd=tree)
    (path,) = (tree / "wheels").iterdir()
    return path


@pytest.fixture(scope="module")
def home(wheel, tmp_path_factory):
    """A virtual environment with the wheel; what it depends on is that of this process."""
    home = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    (packages,) = home.glob("lib/python*/site-packages")
    # A path in a .pth file is searched last, and .pth files there, such as an editable tvm_sparse's, are not read.
    (packages / "others.pth").write_text("\n".join({sysconfig.get_path("purelib"), *site.getsitepackages()}))
    pip(
        "--python", home / "bin" / "python", "install", "--no-deps", "--no-index", "--ignore-installed", wheel, cwd=home
    )
    return home


@pytest.fixture
def call(home, tmp_path, monkeypatch):
    """Runs a program of the environment in an empty folder, and gives its output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["TVM_SPARSE_HOME"] = str(tmp_path / "home")
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def call(program, *words):
        command = [home / "bin" / program, *map(str, words)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


def test_it_holds_schedules_logs_and_data(wheel):
    with zipfile.ZipFile(wheel) as archive:
        found = set(archive.namelist())
    assert {f"tvm_sparse/schedules/{path.name}" for path in (ROOT / "schedules").glob("*.py")} <= found
    logs = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tuning_logs").rglob("*.jsonl*")}
    assert logs and {f"tvm_sparse/{name}" for name in logs} <= found
    for folder, suffix in (
        ("cli/data", "*"),
        ("codegen/cuda", "**/*.cu*"),
        ("exporter/sources", "**/*"),
        ("ort", "*.[ch]"),
        (".", "py.typed"),
    ):
        files = [path for path in (ROOT / "tvm_sparse" / folder).glob(suffix) if path.is_file()]
        assert files and {path.relative_to(ROOT).as_posix() for path in files} <= found
    assert {Path(name).parts[0] for name in found} == {"tvm_sparse", Path(wheel).name.rsplit("-", 3)[0] + ".dist-info"}
    assert not [name for name in found if "benchmarks" in name or re.search(r"tuning_logs/.*\.md", name)]


def test_every_script_of_the_checkout_runs_beside_it(call):
    """Each finds what it shares with others, and the package where it is installed."""
    texts = {path: path.read_text() for path in sorted((ROOT / "scripts").rglob("*.py"))}
    scripts = [path for path, text in texts.items() if "__main__" in text and "ArgumentParser" in text]
    assert len(scripts) > 20
    said = call("python", ROOT / "tests" / "support" / "script_helps.py", *scripts)
    assert re.findall(r"^usage: (\S+)", said, re.MULTILINE) == [path.name for path in scripts]


@pytest.mark.exhaustive
def test_nothing_is_missing_there(call):
    assert json.loads(call("tvm-sparse", "doctor", "--json"))


def test_it_works_from_an_empty_folder(call, home):
    """A convolution of Table 2, for which there are shipped logs, is compiled and run without naming one."""
    code = "import json, tvm_sparse; from tvm_sparse.frontend.optional_imports import without_torch; "
    code += "without_torch().__enter__(); from tvm_sparse.logs.known_logs import known_log; "
    code += "from tvm_sparse.target.resolve import resolve_target as r; "
    code += "print(json.dumps([tvm_sparse.__file__, len(known_log(r('llvm')).records)]))"
    place, records = json.loads(call("python", "-c", code))
    assert Path(place).is_relative_to(home)
    assert records > 100

    spec, weight = operators.spec(4, 1), operators.weight(4, 0.1)
    graph = GraphBuilder("tiny", spec.input_shape)
    graph.conv("conv", "x", weight, stride=1, padding=spec.padding[0])
    onnx.save(graph.model("conv", spec.output_shape, "y"), "tiny.onnx")
    (layer,) = json.loads(call("tvm-sparse", "compile", "tiny.onnx", "-o", "tiny.sparse", "--json"))["layers"]
    assert "shipped log" in layer["reason"] or layer["reason"].startswith("predicted: "), layer

    np.save("x.npy", np.ones(spec.input_shape, np.float32))
    call("tvm-sparse", "run", "tiny.sparse", "--input", "x.npy", "-o", "y.npz")
    # In the middle no padding is reached: the sum of each filter.
    sums = weight.sum((1, 2, 3), dtype=np.float64)
    with np.load("y.npz") as archive:
        (y,) = archive.values()
    np.testing.assert_allclose(y[0, :, 8, 8], sums, rtol=1e-4, atol=1e-4)
