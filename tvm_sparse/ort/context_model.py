"""A compiled model as an .onnx file: one node EPContext, which the execution provider computes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvm_sparse.compiler import build_model
from tvm_sparse.errors import ArtifactError, UsageError
from tvm_sparse.exporter.models import Exportable
from tvm_sparse.files import publish
from tvm_sparse.files.staging import Staging, sweep
from tvm_sparse.frontend.optional_imports import require
from tvm_sparse.ort import provider
from tvm_sparse.ort.session import NAME
from tvm_sparse.request.options import refuse_for_compiled
from tvm_sparse.runtime import artifact
from tvm_sparse.runtime.signature import TensorSpec
from tvm_sparse.version import __version__

# Of the domain com.microsoft, and the oldest format that every ONNX Runtime with providers of this kind reads.
_OPERATOR, _DOMAIN, _OPSETS, _IR_VERSION = "EPContext", "com.microsoft", {"": 17, "com.microsoft": 1}, 8
_BEGIN_BYTES = 1 << 16
# The first line of plans whose first dimensions count samples, as in `node.h`.
_BATCHES = ("batches",)
_ELEMENT_TYPES = {"float16": "FLOAT16", "float32": "FLOAT", "float64": "DOUBLE", "bfloat16": "BFLOAT16", "bool": "BOOL"}


def export(source: str | Path, path: str | Path, **options: Any) -> Path:
    """Write `source` as an .onnx file that ONNX Runtime runs with our kernels; returns its path.

    Beside ``fast.onnx`` come its plan and kernels, ``fast.plan`` and ``fast.so``, for a model of several batches or
    sizes a pair ``fast-batch8.plan`` and ``fast-batch8.so``, or ``fast-1x3x320x640.plan`` and so on, for each, and the
    provider, ``libtvm_sparse_ort.so``. Together they run where only ONNX Runtime is installed. Names and types of
    inputs and outputs stay. With ``batch`` the first dimension is open, and takes any number of samples; with several
    sizes those dimensions are that differ, and take the sizes that there are.

    Parameters
    ----------
    source
        An .onnx file, or an artifact for a CPU.
    path
        The file to write, in the place of one that this function wrote.
    options
        Of `CompileOptions`, for an .onnx file.

    Raises
    ------
    UsageError
        The package onnx is missing, `path` is no other .onnx file, is there and was not written by this function, or
        there are options for an artifact.
    ArtifactError
        The artifact cannot run without TVM (see `tvm_sparse.export`), or a file cannot be written.
    BuildError
        The provider cannot be built; what `tvm_sparse.compile` raises.
    """
    onnx, source, path = require("onnx", "ort"), Path(source), Path(path)
    if path.suffix != ".onnx" or path.resolve() == source.resolve():
        raise UsageError(str(path), "cannot be written", allowed="another file than the model, ending in .onnx")
    if path.is_file() and not _is_written_by_us(path):
        hint = "give another name, or remove it"
        raise UsageError(str(path), "exists and is no model that tvm-sparse export wrote", hint=hint)
    if source.is_dir():
        refuse_for_compiled(str(source), options)
    library = provider.library()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent)
        with Staging(path.parent) as stage:
            saved = source
            if not source.is_dir():
                saved = artifact.save(build_model.compile(source, **options), stage / "model.sparse")
            exportable = Exportable(saved)
            files = stage / "files"
            files.mkdir()
            plans = exportable.write(files, path.stem)
            (files / provider.FILE).write_bytes(library)
            (files / path.name).write_bytes(_model(onnx, exportable, plans).SerializeToString())
            # The model last: it names the others.
            for each in sorted(files.iterdir(), key=lambda file: file.name == path.name):
                publish.write(path.parent / each.name, each.read_bytes())
    except OSError as error:
        hint = "check the place, its rights and its free space"
        raise ArtifactError(str(path), f"cannot be written ({error.strerror})", hint=hint) from error
    return path


def _is_written_by_us(path: Path) -> bool:
    """Whether a file begins as `_model` writes it: a graph of our node."""
    with path.open("rb") as file:
        begin = file.read(_BEGIN_BYTES)
    return all(each.encode() in begin for each in (_OPERATOR, NAME))


def _model(onnx: Any, exportable: Exportable, plans: Sequence[str]) -> Any:
    helper, signatures = onnx.helper, exportable.signatures

    def value(specs: Sequence[TensorSpec]) -> Any:
        """An input or output, as all variants have it."""
        first = specs[0]
        element_type = getattr(onnx.TensorProto, _ELEMENT_TYPES.get(first.dtype, first.dtype.upper()))
        shape: list[int | str] = []
        for axis, sizes in enumerate(zip(*(spec.shape for spec in specs), strict=True)):
            is_batch = exportable.has_batches and not axis
            shape.append("batch" if is_batch else sizes[0] if len(set(sizes)) == 1 else f"{first.name}_{axis}")
        return helper.make_tensor_value_info(first.name, element_type, shape)

    try:
        inputs = [value(specs) for specs in zip(*(each.inputs for each in signatures), strict=True)]
        outputs = [value(specs) for specs in zip(*(each.outputs for each in signatures), strict=True)]
    except ValueError:
        found = ", ".join(each["name"] for each in exportable.variants)
        hint = "export each to a file of its own"
        raise ArtifactError(
            str(exportable.artifact), "its inputs or outputs differ in their dimensions", found, hint=hint
        ) from None
    node = helper.make_node(
        _OPERATOR,
        [each.name for each in inputs],
        [each.name for each in outputs],
        name=NAME,
        domain=_DOMAIN,
        source=NAME,
        main_context=1,
        embed_mode=0,
        ep_sdk_version=__version__,
        ep_cache_context="\n".join((*_BATCHES[: exportable.has_batches], *plans)),
    )
    opsets = [helper.make_opsetid(domain, version) for domain, version in _OPSETS.items()]
    return helper.make_model(
        helper.make_graph([node], NAME, inputs, outputs), opset_imports=opsets, ir_version=_IR_VERSION
    )
