"""Run kernels that were chosen by another weight's record against the float64 reference, with this weight."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm.target import Target

from tvm_sparse.compiler.kernel_selection import Decision
from tvm_sparse.compiler.plan_scratch import scratch_of
from tvm_sparse.compiler.replace_convolutions import function_names
from tvm_sparse.conv import reference
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer
from tvm_sparse.runtime.threads import use_threads
from tvm_sparse.scheduling.kernel import Kernel
from tvm_sparse.target.compatibility import device_of, why_not_here
from tvm_sparse.target.resolve import thread_count

# Arguments that transferred kernels are verified with are drawn from this seed.
VERIFICATION_SEED = 2020


def verify(
    layers: Sequence[ConvLayer],
    decisions: Sequence[Decision],
    kernels: Mapping[str, Kernel],
    executable: Any,
    target: Target,
) -> dict[str, str]:
    """Run each transferred kernel of the compiled model once; layer name -> what is wrong with it.

    What is run is the very function that the model calls.
    """
    transferred = [layer for layer, decision in zip(layers, decisions, strict=True) if decision.transferred]
    if not transferred:
        return {}
    obstacle = why_not_here(target)
    if obstacle:
        return {layer.name: f"it cannot be verified with this weight: {obstacle}" for layer in transferred}
    use_threads(thread_count(target))
    library, names = executable.jit(), function_names(layers, kernels)
    wrong: dict[str, str] = {}
    for layer in transferred:
        function = library.get_function(names[layer.name], query_imports=True)
        worst = _worst_error(function, layer, kernels[layer.name], device_of(target))
        if not worst <= 1:
            wrong[layer.name] = f"the transferred kernel is wrong by {worst:.3g} times the error bound"
    return wrong


def _worst_error(function: Any, layer: ConvLayer, kernel: Kernel, device: Any) -> float:
    """Largest error of a kernel as a fraction of its bound."""
    arguments = reference.random_arguments(layer.spec, VERIFICATION_SEED)
    if layer.bias is not None:
        arguments["bias"] = layer.bias
    expected = reference.reference(layer.spec, weight=layer.weight, **arguments)
    x, *epilogue = arguments.values()
    # An element that the kernel does not write stays NaN, which is infinitely wrong.
    y = tvm.runtime.tensor(np.full(layer.spec.output_shape, np.nan, np.float32), device)
    arrays = scratch_of(kernel.func) if device.type == "cuda" else []
    scratch = [tvm.runtime.empty(map(int, array.ty.shape), str(array.ty.dtype), device) for array in arrays]
    function(*[tvm.runtime.tensor(array, device) for array in (x, *kernel.constants, *epilogue)], y, *scratch)
    device.sync()
    return expected.worst(y.numpy())
