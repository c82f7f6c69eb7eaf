"""Let Relax plan the memory in which GPU kernels keep what they compute for themselves, such as padded inputs.

TVM takes it from a pool of the calling thread, which all streams share, and frees it when that thread ends or asks for
more. But a CUDA graph works on with the addresses that it was recorded with.
"""

import tvm
from tvm import relax, tirx
from tvm.ir import Expr, Var
from tvm.s_tir import SBlock, SBlockRealize

from tvm_sparse.codegen.tir.tir_builder import sequence, statements_of
from tvm_sparse.frontend.passes.relax_graph import Graph, is_call, rebuild


def plan_scratch(module: tvm.IRModule) -> tvm.IRModule:
    """`module` with the scratch arrays of each scheduled function as further outputs of it, behind its own.

    Run it after `replace_convolutions`, for CUDA only; who calls a function by itself passes `scratch_of` it too.
    """
    found = {name: scratch_of(func) for name, func in module.functions_items() if isinstance(func, tirx.PrimFunc)}
    scratch = {name: arrays for name, arrays in found.items() if arrays}
    # Added under their old names, but anew: a name is typed by its function's parameters.
    builder = relax.BlockBuilder(tvm.IRModule({k: v for k, v in module.functions_items() if k not in scratch}))
    lifted = {name: builder.add_func(_lift(module[name]), name.name_hint) for name in scratch}
    edits: dict[Var, list[tuple[Var, Expr]]] = {}
    for var, value in Graph.of(module).definitions.items():
        if is_call(value, "relax.call_tir") and value.args[0] in scratch:
            name, arguments = value.args[:2]
            types = [value.ty, *(relax.TensorType(array.ty.shape, str(array.ty.dtype)) for array in scratch[name])]
            results = type(var)(f"{var.name}_and_scratch", relax.TupleType(types))
            call = relax.call_tir(lifted[name], arguments, types)
            edits[var] = [(results, call), (var, relax.TupleGetItem(results, 0))]
    return rebuild(builder.get(), edits)


def scratch_of(func: tirx.PrimFunc) -> list[Var]:
    """The arrays in global memory that a scheduled function makes for itself, or one that launches built kernels."""
    if isinstance(func.body, SBlockRealize):
        return [array for array in func.body.block.alloc_buffers if _is_global(array)]
    return [stmt.buffer for stmt in statements_of(func.body) if _makes_array(stmt)]


def _is_global(array: Var) -> bool:
    return array.ty.storage_scope in ("", "global")


def _makes_array(stmt: tirx.Stmt) -> bool:
    return isinstance(stmt, tirx.AllocBuffer) and _is_global(stmt.buffer)


def _lift(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with its scratch arrays as its last parameters."""
    if not isinstance(func.body, SBlockRealize):
        body = sequence([stmt for stmt in statements_of(func.body) if not _makes_array(stmt)])
        return tirx.PrimFunc([*func.params, *scratch_of(func)], body, func.ret_type, func.attrs)
    root = func.body.block
    kept = [array for array in root.alloc_buffers if not _is_global(array)]
    rest = (root.name_hint, root.body, root.init, kept, root.match_buffers, root.annotations)
    block = SBlock(root.iter_vars, root.reads, root.writes, *rest)
    body = SBlockRealize(func.body.iter_values, func.body.predicate, block)
    return tirx.PrimFunc([*func.params, *scratch_of(func)], body, func.ret_type, func.attrs)
