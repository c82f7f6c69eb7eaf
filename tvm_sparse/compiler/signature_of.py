"""What a compiled model will take and give."""

from typing import Any

from tvm import relax

from tvm_sparse.frontend.prepare import PreparedModel
from tvm_sparse.runtime.signature import Signature, TensorSpec


def signature_of(prepared: PreparedModel) -> Signature:
    """Of the model, whatever its code returns beside."""
    main = prepared.mod["main"]
    single = isinstance(main.ret_ty, relax.TensorType)
    results = [main.ret_ty] if single else list(main.ret_ty.fields)
    inputs = [_tensor_spec(parameter.name, parameter.ty, prepared.turns) for parameter in main.params]
    if prepared.checks:
        results.pop()
        single = len(results) == 1
    names = prepared.outputs
    if len({*names}) != len(results):
        # They have none, or one is returned twice.
        names = tuple(f"output{index}" for index in range(len(results)))
    outputs = [_tensor_spec(*each, prepared.turns) for each in zip(names, results, strict=True)]
    return Signature(tuple(inputs), tuple(outputs), single)


def _tensor_spec(name: str, ty: Any, turns: int) -> TensorSpec:
    shape = tuple(int(size) for size in ty.shape.values)
    return TensorSpec(name, (turns * shape[0], *shape[1:]) if turns > 1 else shape, str(ty.dtype))
