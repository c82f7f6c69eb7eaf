"""An artifact that is compiled again without cuDNN, from the file that it was compiled from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvm_sparse.compiler import build_model
from tvm_sparse.cudnn.library import left_out
from tvm_sparse.errors import ArtifactError
from tvm_sparse.runtime import artifact as artifacts
from tvm_sparse.runtime.artifacts import manifest
from tvm_sparse.runtime.libraries import CUDNN
from tvm_sparse.runtime.model_file import ModelFile
from tvm_sparse.runtime.signature import Signature


def without_cudnn(artifact: Path, folder: Path) -> Path:
    """`artifact`, or where it calls cuDNN one in `folder` that does not, with TVM's dense kernels in its place.

    ArtifactError where there is no artifact, or its file is not there or was changed; what `compile` raises.
    """
    content = manifest.read(artifact)
    if CUDNN not in content["libraries"]:
        return artifact
    try:
        file = ModelFile.from_json(content["source"], artifact) if content["source"] else None
        signatures = [Signature.from_json(each["signature"]) for each in content["variants"]]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise manifest.damaged(artifact, f"source or signature is not usable: {error}") from None
    obstacle = "it was compiled from no file" if file is None else file.obstacle()
    if file is None or obstacle:
        hint = "compile the model again with TVM_SPARSE_CUDNN=0 in the environment, and export that"
        raise ArtifactError(str(artifact), f"cannot be compiled without cuDNN: {obstacle}", hint=hint)
    options = {"dtype": file.dtype, "allow_tf32": file.allow_tf32, **_shapes(signatures, content["has_batches"])}
    with left_out():
        model = build_model.compile(file.path, target=content["target"], **options)
    return artifacts.save(model, folder / artifact.name)


def _shapes(signatures: Sequence[Signature], has_batches: bool) -> dict[str, Any]:
    """The options that ask for models of these signatures."""
    batches = sorted({each.inputs[0].shape[0] for each in signatures}) if has_batches else None
    sizes = [each for each in signatures if batches is None or each.inputs[0].shape[0] == batches[0]]
    columns = zip(*(each.inputs for each in sizes), strict=True)
    return {"batch": batches, "shapes": {specs[0].name: [each.shape for each in specs] for specs in columns}}
