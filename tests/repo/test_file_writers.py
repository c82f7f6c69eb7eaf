"""Files that stay are written by `tvm_sparse.files`, whole at every moment; others lie in its folders."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "tvm_sparse"
WRITERS = {"write_text", "write_bytes", "savez", "save", "mkstemp", "mkdtemp", "NamedTemporaryFile", "copytree"}
MODES = ("w", "x", "a")
# What they write lies in a temporary folder, or is given to them as open.
IN_FOLDERS_THAT_GO = {
    "autotune/fleet/local_devices.py",
    "cli/commands/run.py",
    "cli/demo_data.py",
    "codegen/cuda/nvcc.py",
    "compiler/comparison/onnx_process.py",
    "compiler/comparison/onnx_worker.py",
    "compiler/building/emulator.py",
    "compiler/building/library_cache.py",
    "exporter/export.py",
    "exporter/models.py",
    "frontend/onnx/quantised/quantise.py",
    "logs/publishing.py",
    "measure/measurer.py",
    "measure/worker_main.py",
    "ort/context_model.py",
    "ort/session.py",
    "runtime/saving.py",
    "verdict/worker.py",
}
# One tells the system something, two only lock what they open, one only appends.
OTHERS = {"measure/serve.py", "measure/device_lock.py", "autotune/task_lock.py", "logs/log_file.py"}


def writers():
    """Files of the package that open others to write."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        if not name.startswith("files/") and any(map(_writes, calls)):
            yield name


def _writes(call):
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    words = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    is_opened = name == "open" and any(word.startswith(MODES) for word in words)
    is_numpy = getattr(getattr(call.func, "value", None), "id", "") == "np"
    return is_opened or (name in WRITERS and (is_numpy or not name.startswith("save")))


def test_nobody_else_writes_files_that_stay():
    assert set(writers()) == IN_FOLDERS_THAT_GO | OTHERS
