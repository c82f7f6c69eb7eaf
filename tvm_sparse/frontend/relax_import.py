"""What importing through TVM's front ends has in common, whatever the model's format.

Parameters become constants at import, never function arguments: TVM's ``keep_params_as_input`` loses the masks of
`torch.nn.utils.prune`, and folding weights needs their values anyway.
"""

import contextlib
import math
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import tvm
from tvm import relax

from tvm_sparse.conv.spec import MAX_ELEMENTS
from tvm_sparse.errors import ModelError, first_line
from tvm_sparse.frontend.passes.relax_graph import fixed_shape

# What they say and which module it is put down to: about names, sizes and the old code of TVM and torch.
_IDLE_WARNINGS = (
    ("", r"tvm[.]relax[.]frontend[.]"),
    (r"The tensor attributes? .* assigned during export", ""),
    (r"`isinstance\(treespec, LeafSpec\)` is deprecated", ""),
)


def checked(where: str, module: tvm.IRModule) -> tvm.IRModule:
    """`module`, whose inputs and outputs all have known shapes and none of whose tensors is too large."""
    main = module["main"]
    results = [main.ret_ty] if isinstance(main.ret_ty, relax.TensorType) else list(getattr(main.ret_ty, "fields", []))
    named = [(f"input {parameter.name}", parameter.ty) for parameter in main.params]
    named += [(f"output {index}", result) for index, result in enumerate(results)]
    if not main.params or not results:
        raise ModelError(where, f"the model has no {'input' if results else 'output'}", hint="export it again")
    for name, kind in named:
        if fixed_shape(kind) is None:
            hint = "export it without dynamic_shapes, once for each batch size"
            raise ModelError(where, f"{name} has no fixed shape", kind, hint=hint)
    inner = [binding.var for block in main.body.blocks for binding in block.bindings]
    for name, kind in (*named, *((f"tensor {var.name}", var.ty) for var in inner)):
        if isinstance(kind, relax.TensorType) and fixed_shape(kind) is None:
            hint = "export it so that no shape depends on values"
            raise ModelError(where, f"{name} has no fixed shape", kind, hint=hint)
        sizes = list(fixed_shape(kind) or ())
        if min(sizes, default=0) < 0:
            raise ModelError(where, f"{name} has an impossible shape", sizes, "sizes of 0 or more")
        if math.prod(sizes) > MAX_ELEMENTS:
            found, allowed = f"{math.prod(sizes)} elements", f"up to {MAX_ELEMENTS}"
            raise ModelError(where, f"{name} is too large", found, allowed, "use a smaller input or batch")
    return module


@contextlib.contextmanager
def tvm_frontend(where: str) -> Iterator[None]:
    """Run a TVM front end: no chatter, and one sentence for whatever it cannot convert."""
    _end_blocks_of_failed_builders()
    ignore_warnings()
    try:
        yield
    # They report what they cannot convert by exceptions of any kind.
    except Exception as error:
        problem = f"TVM cannot import it ({first_line(error)})"
        raise ModelError(where, problem, hint="replace that operator in the model") from error


@cache
def _end_blocks_of_failed_builders() -> None:
    """Make TVM's block builder end its block where an error ends its function; else it warns on standard error."""
    exit_scope = relax.BlockBuilder._exit_function_scope

    def ended(builder: relax.BlockBuilder, kind: type | None, error: BaseException | None, trace: Any) -> None:
        if kind is not None:
            builder._end_block()
        exit_scope(builder, kind, error, trace)

    relax.BlockBuilder._exit_function_scope = ended


def ignore_warnings() -> None:
    """Have no warning shown that tells a user nothing to do; all others are, of this and of other threads."""
    for message, module in _IDLE_WARNINGS:
        warnings.filterwarnings("ignore", message, module=module)
