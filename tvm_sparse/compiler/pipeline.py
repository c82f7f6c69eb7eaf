"""The passes that decide what computes each layer of a model, in their order."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from tvm.target import Target

from tvm_sparse.compiler.blocked_layers import with_blocks
from tvm_sparse.compiler.choose_layouts import in_nhwc
from tvm_sparse.compiler.decision import Decision
from tvm_sparse.compiler.dump import dump_module, dump_plan
from tvm_sparse.compiler.joined_layers import with_joined
from tvm_sparse.compiler.kernel_selection import select
from tvm_sparse.compiler.plan import Plan
from tvm_sparse.compiler.pooled_layers import with_pools
from tvm_sparse.frontend.prepare import PreparedModel
from tvm_sparse.logs.tuning_log import TuningLog

Pass = Callable[[Plan], Plan]


def passes(log: TuningLog | None, allow_tf32: bool, predict: bool) -> Iterator[tuple[str, Pass]]:
    """All of them by name."""
    # What computes each layer, whatever the others are.
    yield "select", partial(select, log=log, allow_tf32=allow_tf32, predict=predict)
    # How tensors lie on a GPU.
    yield "nhwc", partial(in_nhwc, log=log, allow_tf32=allow_tf32)
    # What one kernel computes together.
    yield "pools", partial(with_pools, log=log)
    yield from passes_of_dense_layers(predict)


def passes_of_dense_layers(joins: bool) -> Iterator[tuple[str, Pass]]:
    """Those that make dense layers of a CPU faster together, as kernels of two only if it `joins`."""
    # How tensors lie on a CPU.
    yield "blocks", with_blocks
    if joins:
        yield "expansions", with_joined
        # Those of two layers have no tensors in blocks, so that their neighbours may have none either.
        yield "blocks", with_blocks


def decide_together(
    prepared: PreparedModel, target: Target, log: TuningLog | None, allow_tf32: bool = False, predict: bool = False
) -> list[Decision]:
    """As `decide`, for the layers of a model: their layouts suit each other.

    One kernel computes a layer and its pool, or an expansion and the depthwise layer behind it, where that is faster.
    Tensors between dense layers lie in blocks of channels on a CPU.
    """
    dump_module("prepare", prepared.mod)
    plan = Plan.of(prepared, (), target)
    return list(after(plan, passes(log, allow_tf32, predict)).decisions)


def dense_together(prepared: PreparedModel, decisions: Sequence[Decision], target: Target) -> list[Decision]:
    """`decisions`, all of them dense, with what makes dense layers of a CPU faster together."""
    return list(after(Plan.of(prepared, decisions, target), passes_of_dense_layers(joins=True)).decisions)


def after(plan: Plan, some: Iterable[tuple[str, Pass]]) -> Plan:
    """What `some` passes make of `plan`, one after the other."""
    for name, each in some:
        plan = each(plan)
        dump_plan(name, plan)
    return plan
