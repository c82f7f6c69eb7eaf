"""No file that is opened as data runs code: nothing in the package could, and planted traps stay shut."""

import ast
import io
import json
import pickle
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import zoo
from malformed import changed_pt2, exported

from tvm_sparse.compiler import build_model
from tvm_sparse.runtime import artifact

ROOT = Path(__file__).parents[2]
FOLDERS = ("tvm_sparse", "schedules", "tuning_logs", "scripts/benchmarks")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
FORBIDDEN_MODULES = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "code", "runpy"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.load", "pickle.load"}
# Keywords with which a call is forbidden, and a call without its keyword.
FORBIDDEN_KEYWORDS = {"allow_pickle": "True", "weights_only": "False", "shell": "True"}
NEEDED_KEYWORDS = {"torch.load": "weights_only"}


def dotted(node):
    """The name of what is called, empty if it has none."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def offences(source):
    """What a module does that could run code from data."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in FORBIDDEN_MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FORBIDDEN_MODULES:
            yield from (f"{node.module}.{a.name}" for a in node.names if a.name not in ("UnpicklingError",))
        elif isinstance(node, ast.Call):
            name = dotted(node.func)
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            is_forbidden = any(
                word in given and ast.unparse(given[word]) == value for word, value in FORBIDDEN_KEYWORDS.items()
            )
            if name in FORBIDDEN_CALLS or is_forbidden or NEEDED_KEYWORDS.get(name, "") not in ("", *given):
                yield f"{name}, line {node.lineno}"


def test_nothing_in_the_package_could():
    assert len(SOURCES) > 500
    assert not [(path, each) for path in SOURCES for each in offences(path.read_text())]


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import pickle as p",
        "from pickle import loads",
        "from cloudpickle import load",
        "eval('1')",
        "exec(text)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "subprocess.run(text, shell=True)",
    ],
)
def test_the_search_finds(source):
    assert list(offences(source))


class Trap:
    """Un-pickling it writes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


def spring(path):
    """Python source that writes the file when it is evaluated."""
    return f"__import__('os').open({path!r}, 65)"


def renamed_input(code):
    """A change of a model.json after which its input is called ``x=<code>``: a default, evaluated with its function."""

    def change(document):
        text = json.dumps(document).replace('"x"', json.dumps(f"x={code}"))
        document.clear()
        document.update(json.loads(text))

    return change


def signature_of(document):
    return document["graph_module"]["module_call_graph"][0]["signature"]


def calling(target, **text):
    """A change after which the second node calls `target` with text."""

    def change(document):
        inputs = [{"name": name, "arg": {"as_string": value}, "kind": 1} for name, value in text.items()]
        document["graph_module"]["graph"]["nodes"][1].update(target=target, inputs=inputs)

    return change


def with_member(data, name, content):
    source, target = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for member in source.namelist():
            archive.writestr(member, content if member.endswith(name) else source.read(member))
    return target.getvalue()


def traps(trap):
    """File name -> content that writes `trap` where it is trusted."""
    pickled, code, good = pickle.dumps(Trap(trap)), spring(trap), exported()
    saved = io.BytesIO()
    torch.save(Trap(trap), saved)
    spec = '[1, {"type": "collections.defaultdict", "context": "{\\"default_factory_module\\": \\"evil\\", '
    spec += '\\"default_factory_name\\": \\"x\\", \\"dict_context\\": []}", "children_spec": []}]'
    found = {
        f"pickle{suffix}": pickled for suffix in (".onnx", ".pt2", ".safetensors", ".npy", ".npz", ".jsonl", ".pth")
    }
    found |= {f"saved{suffix}": saved.getvalue() for suffix in (".onnx", ".pt2", ".safetensors", ".pt")}
    found["member.pt2"] = with_member(good, "sample_inputs/model.pt", saved.getvalue())
    found["weight.pt2"] = with_member(
        with_member(good, "weight_0", saved.getvalue()),
        "weights_config.json",
        b'{"config": {"0.weight": {"path_name": "weight_0", "is_param": true, "use_pickle": true}}}',
    )
    changes = {
        "guards": lambda d: d.update(guards_code=[code]),
        "input": renamed_input(code),
        "arguments": lambda d: signature_of(d).update(forward_arg_names=[f"x={code}"]),
        "expression": lambda d: d.update(range_constraints={code: {"min_val": 0, "max_val": 4}}),
        "spec": lambda d: signature_of(d).update(in_spec=spec),
        "load": calling("torch.load", f=trap),
        "library": calling("torch.ops.load_library", path=trap),
        "save": calling("torch.ops.aten.save.default", item="x", filename=trap),
        "map": calling("torch.ops.aten.from_file.default", filename=trap),
    }
    found |= {f"{name}.pt2": changed_pt2(good, change) for name, change in changes.items()}
    objects = io.BytesIO()
    np.save(objects, np.array([Trap(trap)], dtype=object), allow_pickle=True)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as target:
        target.writestr("x.npy", objects.getvalue())
    return {**found, "objects.npy": objects.getvalue(), "objects.npz": archive.getvalue()}


# Gives every file to every command that might read it. Un-pickling anything is noted, trap or not.
OPEN_ALL = """
import contextlib, io, sys
from pathlib import Path
found = []
sys.addaudithook(lambda event, arguments: found.append(arguments[1:]) if event == "pickle.find_class" else None)
from tvm_sparse.cli import main as cli
from tvm_sparse.errors import TvmSparseError
from tvm_sparse.frontend.model_source import ModelSource
import torch, tvm
found.clear()
trap = Path("trap")
for path in sorted(Path("data").iterdir()):
    for words in (["inspect", path], ["check", path], ["run", "net.sparse", "--input", path], ["logs", "stats", path],
                  ["inspect", "good.onnx", "--tuning-records", path], ["run", path]):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
            code = cli.main([str(word) for word in words])
        assert code in (0, 3), (words, code, errors.getvalue())
        assert not trap.exists(), words
        # Classes of its own that torch's restricted reader may name are no harm; others would be.
        assert not [name for name in found if name[0].split(".")[0] not in ("torch", "collections")], (words, found)
    with contextlib.suppress(TvmSparseError):
        ModelSource(path).weights()
    assert not trap.exists(), path
print("opened", len(list(Path("data").iterdir())))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a good model, its artifact, and the traps in ``data``."""
    place = tmp_path_factory.mktemp("traps")
    onnx.save(zoo.ONNX["pads"], place / "good.onnx")
    artifact.save(build_model.compile(place / "good.onnx"), place / "net.sparse")
    (place / "data").mkdir()
    for name, content in traps(str(place / "trap")).items():
        (place / "data" / name).write_bytes(content)
    return place


def test_planted_traps_stay_shut(folder):
    done = subprocess.run(
        [sys.executable, "-c", OPEN_ALL], cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["opened", str(len(traps("x")))]
    assert not (folder / "trap").exists()


# Readers that un-pickle, and torch's own: each springs the trap in the file of its name.
SPRINGS = {
    "pickle.onnx": lambda path: pickle.loads(path.read_bytes()),
    "saved.pt": lambda path: torch.load(path, weights_only=False),
    "objects.npy": lambda path: np.load(path, allow_pickle=True),
    "guards.pt2": lambda path: torch.export.load(path).run_decompositions(),
    "input.pt2": torch.export.load,
}


@pytest.mark.parametrize("name", SPRINGS)
def test_the_traps_work(folder, name):
    trap = folder / "trap"
    with suppress(Exception):
        SPRINGS[name](folder / "data" / name)
    assert trap.exists(), f"{name} is no trap"
    trap.unlink()


def test_a_foreign_library_is_refused_before_it_is_loaded(folder, tmp_path):
    """A library runs code when it is loaded; one that the manifest does not vouch for never is."""
    source = tmp_path / "trap.c"
    source.write_text(
        "#include <stdio.h>\n"
        f'__attribute__((constructor)) static void spring(void) {{ fclose(fopen("{tmp_path}/trap", "w")); }}\n'
    )
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", tmp_path / "trap.so"], check=True)
    place = tmp_path / "net.sparse"
    place.mkdir()
    for path in (folder / "net.sparse").iterdir():
        (place / path.name).write_bytes((tmp_path / "trap.so" if path.suffix == ".so" else path).read_bytes())
    command = [sys.executable, "-m", "tvm_sparse", "run", place]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 3 and "its SHA-256 differs" in done.stderr
    assert not (tmp_path / "trap").exists()
    subprocess.run([sys.executable, "-c", f"import ctypes; ctypes.CDLL('{tmp_path}/trap.so')"], check=True)
    assert (tmp_path / "trap").exists(), "the trap works"
