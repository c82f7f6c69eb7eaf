"""A network that runs several times in a call, each time on the next of the inputs' samples."""

import tvm
from tvm import relax
from tvm.ir import Expr, Var

from tvm_sparse.frontend.passes.relax_graph import static_shape

TURN = "turn"


def as_turns(module: tvm.IRModule, turns: int) -> tvm.IRModule:
    """`module` whose ``main`` runs `turns` times on parts of larger inputs; the results are put together.

    The memory of one turn is that of the next.
    """
    if turns == 1:
        return module
    builder, turn = relax.BlockBuilder(_without_main(module)), module["main"]
    called = builder.add_func(turn.without_attr("global_symbol"), TURN)
    params = [_longer(each, turns) for each in turn.params]
    with builder.function("main", params):
        with builder.dataflow():
            results = [
                builder.emit(relax.Call(called, [_part(*pair, at) for pair in zip(params, turn.params, strict=True)]))
                for at in range(turns)
            ]
            output = builder.emit_output(_together(builder, results))
        builder.emit_func_output(output)
    return relax.transform.InlinePrivateFunctions()(builder.get())


def _without_main(module: tvm.IRModule) -> tvm.IRModule:
    functions = {name: function for name, function in module.functions_items() if name.name_hint != "main"}
    return tvm.IRModule(functions, attrs=module.attrs)


def _longer(param: Var, turns: int) -> Var:
    first, *rest = static_shape(param) or ()
    return relax.Var(param.name, relax.TensorType((turns * first, *rest), str(param.ty.dtype)))


def _part(values: Var, part: Var, at: int) -> Expr:
    """A turn's samples of all `values`, copied: TVM's kernels take no tensor that begins in another."""
    samples = (static_shape(part) or ())[0]
    return relax.op.strided_slice(values, [0], [at * samples], [(at + 1) * samples])


def _together(builder: relax.BlockBuilder, results: list[Var]) -> Expr:
    """What the turns return, each output's samples in one tensor."""
    if isinstance(results[0].ty, relax.TensorType):
        return relax.op.concat(results, axis=0)
    outputs = range(len(results[0].ty.fields))
    return relax.Tuple(
        [builder.emit(relax.op.concat([relax.TupleGetItem(each, at) for each in results], axis=0)) for at in outputs]
    )
