"""Opens a .pt2 file (torch.export) without running anything that the file holds.

`torch.export.load` un-pickles: weights marked ``use_pickle``, custom objects, sample inputs of unknown types. It loads
compiled libraries, gives shape expressions to sympy, which evaluates them, and executes Python made of the file's
guards and of the names of its inputs. So the archive is read once into memory, everything in it is held against a list
of what is allowed, and only then does torch see it: `_check_item` knows each place where text is not just a name.
"""

import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from pickle import UnpicklingError  # the error only: nothing is un-pickled
from typing import Any

from tvm_sparse.errors import ModelError, first_line
from tvm_sparse.frontend.optional_imports import require

# What torch.export.save writes for a model made of ordinary tensors; anything else may be code.
_ALLOWED_FILES = re.compile(
    r"models/\w+\.json|data/weights/(weight_\d+|\w+_config\.json)|data/constants/(tensor_\d+|\w+_config\.json)"
    r"|data/sample_inputs/\w+\.pt|archive_format|archive_version|byteorder|\.data/\w+|extra/.*"
)
# Operators of ATen and PT2E only: an attribute path such as torch.load or torch.ops.load_library is a function call.
_ALLOWED_TARGETS = re.compile(
    r"torch\.ops\.aten\.(?!__)\w+\.(?!__)\w+|_operator\.getitem"
    r"|torch\.ops\.quantized_decomposed\.(de)?quantize_per_(tensor|channel)\.default"
    r"|torch\.ops\.higher_order\.(cond|wrap_with_set_grad_enabled|wrap_with_autocast)"
)
# Names become parts of Python source that torch executes; a name cannot call anything.
_NAME = re.compile(r"[\w.+-]*")
# Arguments of operators, which torch quotes, and notes on where an operator came from, which nothing reads.
_FREE_TEXT = {"as_string", "as_strings", "stack_trace", "nn_module_stack", "torch_fn", "from_node", "custom"}
_SPEC_TYPES = (None, "builtins.tuple", "builtins.list", "builtins.dict")
_UNSAFE_HINT = "export it again with torch.export.save and ordinary dense tensors"
_DAMAGE_HINT = "write it again with torch.export.save"
_STATIC_HINT = "export it without dynamic_shapes, once for each batch size"


def load_exported_program(path: Path) -> Any:
    """The `torch.export.ExportedProgram` in `path`.

    ModelError where the file is damaged, was written by a torch too old, has dynamic shapes, or holds anything that
    could run code. UsageError where the package torch is not installed.
    """
    torch = require("torch", "torch")
    try:
        from torch.export.pt2_archive._package import PT2ArchiveReader, load_pt2
    except ImportError:
        raise ModelError(
            str(path), "this torch cannot read .pt2 archives", torch.__version__, "2.8 or newer", "upgrade torch"
        ) from None

    data = path.read_bytes()
    try:
        _check_archive(path, "the archive", data)
        with PT2ArchiveReader(io.BytesIO(data)) as archive:
            for name in archive.get_file_names():
                _check_file(path, name, archive.read_bytes(name) if name.endswith((".json", ".pt")) else b"")
        programs = load_pt2(io.BytesIO(data)).exported_programs
    except ModelError:
        raise
    # Of a damaged archive torch may trip over anything.
    except Exception as error:
        problem = f"the .pt2 file cannot be read ({_first_sentence(error)})"
        raise ModelError(str(path), problem, hint=_DAMAGE_HINT) from error
    if len(programs) != 1:
        raise ModelError(str(path), "the file must hold one model", f"{len(programs)}", "1")
    return next(iter(programs.values()))


def _first_sentence(error: Exception) -> str:
    return first_line(error).split(". ")[0]


def _check_archive(path: Path, what: str, data: bytes) -> None:
    """Raise ModelError for an archive that is compressed or damaged.

    torch compresses none, and a small one may unpack to terabytes. torch does not look at checksums either.
    """
    if not zipfile.is_zipfile(io.BytesIO(data)):
        return
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED or member.file_size > len(data):
                found = f"{member.filename}, {member.file_size} bytes unpacked"
                raise ModelError(str(path), f"{what} is compressed", found, "files stored as they are", _UNSAFE_HINT)
        damaged = archive.testzip()
    if damaged is not None:
        raise ModelError(str(path), f"{what} is damaged, {damaged} does not have its checksum", hint=_DAMAGE_HINT)


def _check_file(path: Path, name: str, content: bytes) -> None:
    """Raise ModelError unless the archive's member `name` can be read without running code."""
    import torch

    if not _ALLOWED_FILES.fullmatch(name):
        raise ModelError(str(path), "the archive holds a file that may run code", name, hint=_UNSAFE_HINT)
    if name.endswith(".json"):
        for key, value in _items("", json.loads(content)):
            _check_item(path, name, key, value)
    elif name.endswith(".pt"):
        _check_archive(path, name, content)
        try:
            # Only tensors and plain containers pass, so torch's own fallback to pickle is never taken for these bytes.
            torch.load(io.BytesIO(content), weights_only=True)
        except (UnpicklingError, RuntimeError, EOFError) as error:
            problem = f"{name} is not plain tensors ({_first_sentence(error)})"
            raise ModelError(str(path), problem, hint=_UNSAFE_HINT) from None


def _items(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Every (key, value) in nested JSON; elements of a list have the list's key."""
    yield key, value
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _items(name, inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _items(key, inner)


def _check_item(path: Path, name: str, key: str, value: Any) -> None:
    """Raise ModelError where an entry of a JSON file is code, or text that torch would make code of."""
    if key in ("expr_str", "range_constraints") and value:
        raise ModelError(str(path), "the model has dynamic shapes", hint=_STATIC_HINT)
    if key in ("guards_code", "treespec_namedtuple_fields") and value:
        raise ModelError(str(path), f"{name} has {key}, which torch would run as code", hint=_UNSAFE_HINT)
    if key == "use_pickle" and value:
        raise ModelError(str(path), f"{name} has a pickled tensor, and pickles can run code", hint=_UNSAFE_HINT)
    if not _NAME.fullmatch(key):
        raise ModelError(str(path), f"{name} has a name that could be code", key, "letters, digits, _ . + -")
    if not isinstance(value, str):
        return
    if key == "path_name" and not re.fullmatch(r"(weight|tensor)_\d+", value):
        raise ModelError(str(path), f"{name} refers to an object that may run code", value, hint=_UNSAFE_HINT)
    if key == "target" and not _is_operator(value):
        raise ModelError(str(path), f"{name} calls a function that is no operator of ATen", value, hint=_UNSAFE_HINT)
    if key in ("in_spec", "out_spec"):
        is_allowed = _is_plain_spec(json.loads(value))
    elif key == "source_fn_stack":
        is_allowed = bool(re.fullmatch(r"[\w.,;]*", value))
    else:
        is_allowed = key in _FREE_TEXT or bool(_NAME.fullmatch(value))
    if not is_allowed:
        raise ModelError(str(path), f"{name} has text in {key} that could be code", value[:100], hint=_UNSAFE_HINT)


def _is_operator(target: str) -> bool:
    """Whether a node may call `target`; the few operators of ATen that open files may not be called."""
    import torch

    if not _ALLOWED_TARGETS.fullmatch(target):
        return False
    if target.startswith("torch.ops.quantized_decomposed.") and not hasattr(
        torch.ops.quantized_decomposed, "quantize_per_channel"
    ):
        # Defines them, which torchao does too.
        require("torch.ao.quantization.fx._decomposed", "torch")
    if not target.startswith("torch.ops.aten."):
        return True
    name, overload = target.split(".")[3:]
    found = getattr(getattr(torch.ops.aten, name, None), overload, None)
    return found is not None and all(argument.name != "filename" for argument in found._schema.arguments)


def _is_plain_spec(spec: Any) -> bool:
    """Whether inputs or outputs are nested in tuples, lists and dicts only: torch imports modules to make others."""
    if isinstance(spec, list):
        return len(spec) == 2 and _is_plain_spec(spec[1])
    context = spec.get("context")
    keys = json.loads(context) if isinstance(context, str) else context
    plain_keys = keys is None or all(isinstance(key, str) and _NAME.fullmatch(key) for key in keys)
    return spec.get("type") in _SPEC_TYPES and plain_keys and all(map(_is_plain_spec, spec.get("children_spec", [])))
