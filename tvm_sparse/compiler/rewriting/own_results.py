"""Results in memory of their own, for the caller to write to: no input, constant or other result lies there."""

import tvm
from tvm import relax, te
from tvm.ir import Expr, Var

from tvm_sparse.frontend.passes.indices.main_results import results_of, with_results
from tvm_sparse.frontend.passes.relax_graph import ALLOCATION, SAME_MEMORY, Graph, is_call, static_shape


@tvm.transform.module_pass(opt_level=0, name="tvm_sparse.own_results")
def own_results(module: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
    """Copy results of ``main`` that lie elsewhere; run it once memory is asked for, and before it is planned."""
    main, definitions = module["main"], Graph.of(module).definitions
    builder = relax.BlockBuilder(module)
    taken: set[Expr] = set()
    bindings = [binding for block in main.body.blocks for binding in block.bindings]

    def bind(value: Expr) -> Var:
        value = builder.normalize(value)
        bindings.append(relax.VarBinding(relax.Var(f"own{len(bindings)}", value.ty), value))
        return bindings[-1].var

    def own(value: Expr) -> Expr:
        memory, shape = _memory_of(value, definitions), static_shape(value)
        is_own = is_call(definitions.get(memory), ALLOCATION) and memory not in taken
        taken.add(memory)
        if is_own or shape is None or 0 in shape:
            return value
        dtype = str(value.ty.dtype)
        source = te.placeholder(shape, dtype, "source")
        copy = te.create_prim_func([source, te.compute(shape, source, "copied")])
        copied = bind(relax.op.builtin.alloc_tensor(relax.ShapeExpr(shape), dtype, 0))
        bind(relax.Call(builder.add_func(copy, "copy"), [value, copied]))
        return copied

    results = [own(each) for each in results_of(main.body.body, definitions, bind)]
    return with_results(builder.get(), bindings, results)


def _memory_of(value: Expr, definitions: dict[Var, Expr]) -> Expr:
    """The variable or constant in whose memory `value` lies, as far as that is known."""
    while isinstance(value, Var) and (other := definitions.get(value)) is not None:
        if any(is_call(other, name) for name in SAME_MEMORY):
            other = other.args[0]
        elif isinstance(other, relax.TupleGetItem):
            whole = definitions.get(other.tuple_value)
            if not isinstance(whole, relax.Tuple):
                return value
            other = whole.fields[other.index]
        elif not isinstance(other, Var | tvm.ir.GenericConst):
            return value
        value = other
    return value
