"""Data flows one way: a module imports only modules of its own or an earlier layer."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = {
    0: [
        *("errors", "optional", "plain", "environment", "timing", "cuda_graph"),
        *("memory", "device_lock", "workspace", "channel"),
    ],
    1: ["conv", "pattern", "reference", "onnx_file", "pt2", "weights", "demo_data"],
    2: ["lattice", "compute", "runs", "strips", "split", "spread", "affine", "selection"],
    3: [
        *("gpu_kernel", "pieces", "registers", "cuda_build", "chains", "copy_code", "copies", "switch", "statements"),
        *("overlap", "cluster", "chunk", "ring", "fold", "lowering", "schedules", "trace", "space", "records"),
    ],
    4: [
        *("worker", "measure", "search", "random_search", "trials", "phase", "vetting", "sample", "tuner"),
        "metaschedule_db",
    ],
    5: ["log_file", "log", "claims", "exchange"],
    6: ["importer", "onnx_trace", "passes", "decide", "tensors", "runtime", "validate", "model", "session"],
    7: ["advice", "artifact", "check", "manifest", "self_check", "peers"],
    8: ["display", "commands", "cli_parser", "cli", "__main__"],
}
LAYER = {name: layer for layer, names in LAYERS.items() for name in names}


def modules():
    """Name inside the package -> file, of every module but the package's own."""
    found = {}
    for folder, prefix in ((ROOT / "tvm_sparse", ""), (ROOT / "schedules", "schedules.")):
        for path in sorted(folder.rglob("*.py")):
            name = prefix + ".".join(path.relative_to(folder).with_suffix("").parts)
            if name not in ("__init__", "tuning_logs.__init__"):
                found[name] = path
    return found


def imports(path):
    """Names inside the package that a file imports, also within functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "tvm_sparse":
            rest = node.module.split(".")[1:]
            yield from [rest[0]] if rest else [alias.name for alias in node.names if alias.name in LAYER]
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("tvm_sparse."))


@pytest.mark.parametrize("name", modules())
def test_imports_go_to_the_same_or_an_earlier_layer(name):
    top = name.split(".")[0]
    assert top in LAYER, f"give {name} a layer in this test"
    later = {each for each in imports(modules()[name]) if LAYER[each] > LAYER[top]}
    assert not later, f"{name} (layer {LAYER[top]}) imports {sorted(later)}"


def test_importing_the_package_loads_nothing_heavy_and_makes_no_file(tmp_path):
    code = (
        "import sys, tvm_sparse; print([m for m in ('tvm', 'torch', 'onnx', 'numpy', 'xgboost') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert list(tmp_path.iterdir()) == []
