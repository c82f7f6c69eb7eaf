"""Run kernels that compute three layers against the float64 reference, with these weights."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from tvm.target import Target

from tvm_sparse.codegen.cuda import kernel_library
from tvm_sparse.compiler.building.kernel_store import KernelStore
from tvm_sparse.compiler.building.verify import VERIFICATION_SEED
from tvm_sparse.compiler.layouts.fuse_bottlenecks import packed_of
from tvm_sparse.compiler.plan.bottlenecks import Joined
from tvm_sparse.conv.chain_reference import chain_reference
from tvm_sparse.conv.reference import Reference, random_arguments, repetition
from tvm_sparse.conv.sparsity import digest
from tvm_sparse.scheduling.cuda.bottleneck.kernels import LIBRARIES
from tvm_sparse.target.compatibility import device_of, why_not_here
from tvm_sparse.target.fingerprint import fingerprint_of


def wrong_bottlenecks(
    names: Mapping[str, Joined], executable: Any, target: Target, store: KernelStore | None = None
) -> dict[str, str]:
    """Run each function of these `names` once; name of the last layer -> what is wrong with it.

    Not again where `store` knows that it was right.
    """
    if names and (obstacle := why_not_here(target)):
        return {each.third.name: f"a kernel of three layers cannot be verified: {obstacle}" for each in names.values()}
    module = executable.jit() if hasattr(executable, "jit") else executable
    wrong = {}
    for name, joined in names.items():
        if (function := module.get_function(name, query_imports=True)) is None:
            wrong[joined.third.name] = "its tensors are not in NHWC"
            continue
        proof = _proof(joined, target, store) if store is not None else {}
        if store is not None and store.is_proven(proof):
            continue
        worst = _worst_error(joined, function, device_of(target))
        if not worst <= 1:
            wrong[joined.third.name] = f"the kernel of three layers is wrong by {worst:.3g} times the error bound"
        elif store is not None:
            store.keep_proof(proof)
    return wrong


def expected(joined: Joined, x: np.ndarray) -> Reference:
    """The three layers' result for x (N, C, H, W), and its bound."""
    specs, weights, biases = zip(*((each.spec, each.weight, each.bias) for each in joined), strict=True)
    return chain_reference(specs, weights, biases, x)


def _proof(joined: Joined, target: Target, store: KernelStore) -> dict[str, Any]:
    """What a kernel is verified with, and where, as JSON values."""
    return {
        "verified": store.code_key(kernel_library.source(LIBRARIES[joined.first.spec.dtype])),
        "of": [joined.first.spec.to_json(), digest(packed_of(joined))],
        "on": fingerprint_of(target),
        "seed": VERIFICATION_SEED,
    }


def _worst_error(joined: Joined, function: Any, device: Any) -> float:
    spec = joined.first.spec
    images = repetition(spec.n, VERIFICATION_SEED)
    x = random_arguments(replace(spec, n=int(images.max()) + 1), VERIFICATION_SEED)["x"]
    in_nhwc = np.ascontiguousarray(x[images].transpose(0, 2, 3, 1))
    # An element that the kernel does not write stays NaN, which is infinitely wrong.
    y = tvm.runtime.tensor(np.full(in_nhwc.shape, np.nan, in_nhwc.dtype), device)
    function(*(tvm.runtime.tensor(each, device) for each in (in_nhwc, packed_of(joined))), y)
    device.sync()
    return expected(joined, x).worst(y.numpy().transpose(0, 3, 1, 2), images)
