"""Predictions that were made before, in the user's cache: a GPU's spaces take a second a layer to rank."""

import json
from dataclasses import asdict

from tvm.target import Target

from tvm_sparse.codegen.kernel_cache import KernelCache, code_digest, content_key
from tvm_sparse.compiler.plan.predict import Prediction, predicted
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.target.gpu import gpu_info
from tvm_sparse.target.resolve import target_json

# Packages whose code decides what is predicted, beside those that decide what a kernel becomes.
_DECIDING = ("compiler",)


def remembered(spec: ConvSpec, pattern: SparsityPattern, target: Target, allow_tf32: bool) -> Prediction | None:
    """As `predicted`, which is asked once for a layer, a number of zeros and a card."""
    cache = KernelCache.of_user() if target.kind.name == "cuda" else None
    if cache is None:
        return predicted(spec, pattern, target, allow_tf32)
    layer = {"spec": asdict(spec), "pattern": asdict(pattern), "allow_tf32": allow_tf32}
    machine = {"target": target_json(target), "gpu": asdict(gpu_info(target))}
    key = content_key({"prediction": layer, **machine, "code": code_digest(_DECIDING)})
    known = cache.read(key)
    if known is not None:
        found = json.loads(known)
        return Prediction(**found) if found is not None else None
    made = predicted(spec, pattern, target, allow_tf32)
    cache.write(key, json.dumps(asdict(made) if made is not None else None).encode())
    return made
