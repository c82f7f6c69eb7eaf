"""Run kernels that were chosen by another weight's record against the float64 reference, with this weight."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm.target import Target

from tvm_sparse.compiler.kernel_selection import Decision
from tvm_sparse.compiler.replace_convolutions import function_names
from tvm_sparse.conv import reference
from tvm_sparse.cudnn import packed_function
from tvm_sparse.errors import BuildError
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer
from tvm_sparse.runtime.threads import use_threads
from tvm_sparse.scheduling.kernel import Kernel
from tvm_sparse.scheduling.schedule_names import is_tf32
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
    pairs = zip(layers, decisions, strict=True)
    transferred = [(layer, decision.schedule) for layer, decision in pairs if decision.transferred]
    if not transferred:
        return {}
    obstacle = why_not_here(target)
    if obstacle:
        return {layer.name: f"it cannot be verified with this weight: {obstacle}" for layer, _ in transferred}
    packed_function.register()
    use_threads(thread_count(target))
    library, names = executable.jit(), function_names(layers, kernels)
    wrong: dict[str, str] = {}
    for layer, schedule in transferred:
        function = library.get_function(names[layer.name], query_imports=True)
        try:
            worst = _worst_error(function, layer, kernels[layer.name], device_of(target), is_tf32(schedule))
        except BuildError as error:
            # Of a library, which may not compute this convolution.
            wrong[layer.name] = str(error)
            continue
        if not worst <= 1:
            wrong[layer.name] = f"the transferred kernel is wrong by {worst:.3g} times the error bound"
    return wrong


def _worst_error(function: Any, layer: ConvLayer, kernel: Kernel, device: Any, tf32: bool = False) -> float:
    """Largest error of a kernel as a fraction of its bound."""
    arguments = reference.random_arguments(layer.spec, VERIFICATION_SEED)
    if layer.bias is not None:
        arguments["bias"] = layer.bias
    expected = reference.reference(layer.spec, weight=layer.weight, **arguments)
    expected = expected.in_tf32(layer.weight) if tf32 else expected
    x, *epilogue = arguments.values()
    # An element that the kernel does not write stays NaN, which is infinitely wrong.
    y = tvm.runtime.tensor(np.full(layer.spec.output_shape, np.nan, np.float32), device)
    function(*[tvm.runtime.tensor(array, device) for array in (x, *kernel.constants, *epilogue)], y)
    device.sync()
    return expected.worst(y.numpy())
