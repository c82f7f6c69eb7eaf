"""The passes that decide what computes each layer of a model, in their order."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from tvm.target import Target

from tvm_sparse.compiler.dump import dump_module, dump_plan
from tvm_sparse.compiler.layouts.blocked_layers import with_blocks
from tvm_sparse.compiler.layouts.choose_layouts import in_nhwc
from tvm_sparse.compiler.plan.bottlenecks import with_bottlenecks
from tvm_sparse.compiler.plan.decision import Decision
from tvm_sparse.compiler.plan.dense_fallback import with_dense_kernels
from tvm_sparse.compiler.plan.joined_layers import with_joined
from tvm_sparse.compiler.plan.kernel_selection import select
from tvm_sparse.compiler.plan.plan import Plan
from tvm_sparse.compiler.plan.pooled_layers import with_pools
from tvm_sparse.frontend.prepare import PreparedModel
from tvm_sparse.logs.tuning_log import TuningLog

Pass = Callable[[Plan], Plan]


@dataclass(frozen=True)
class Options:
    """What users allow; see `compile`."""

    allow_tf32: bool = False
    predict: bool = True
    strict_nonfinite: bool = False


def passes(log: TuningLog | None, options: Options) -> Iterator[tuple[str, Pass]]:
    """All of them by name."""
    # What computes each layer, whatever the others are.
    yield "select", partial(select, log=log, allow_tf32=options.allow_tf32, predict=options.predict)
    # How tensors lie on a GPU.
    yield "nhwc", partial(in_nhwc, log=log, allow_tf32=options.allow_tf32)
    # What one kernel computes together.
    if not options.strict_nonfinite:
        yield "bottlenecks", partial(with_bottlenecks, log=log, predict=options.predict)
    yield "pools", partial(with_pools, log=log)
    yield from passes_of_dense_layers(options.predict)
    if options.strict_nonfinite:
        yield "nonfinite", partial(with_dense_kernels, why="strict_nonfinite asks for the products with zeros")
        yield "blocks", with_blocks


def passes_of_dense_layers(joins: bool) -> Iterator[tuple[str, Pass]]:
    """Those that make dense layers of a CPU faster together, as kernels of two only if it `joins`."""
    # How tensors lie on a CPU. What two layers by one kernel save is compared with what blocks save.
    yield "blocks", with_blocks
    if joins:
        yield "expansions", with_joined
        # Those of two layers have no tensors in blocks, so that their neighbours may have none either.
        yield "blocks", with_blocks


def planned(prepared: PreparedModel, target: Target, log: TuningLog | None, options: Options) -> Plan:
    """What computes each layer of a model: as `decide` says it of layers alone, and so that they suit each other."""
    dump_module("prepare", prepared.mod)
    return after(Plan.of(prepared, (), target), passes(log, options))


def dense(plan: Plan, why: str) -> Plan:
    """`plan` with dense kernels alone, those of a CPU as they are fastest together."""
    return after(with_dense_kernels(plan, why), passes_of_dense_layers(joins=True))


def decide_together(
    prepared: PreparedModel, target: Target, log: TuningLog | None, allow_tf32: bool = False, predict: bool = False
) -> list[Decision]:
    """The decisions of `planned`."""
    return list(planned(prepared, target, log, Options(allow_tf32, predict)).decisions)


def after(plan: Plan, some: Iterable[tuple[str, Pass]]) -> Plan:
    """What `some` passes make of `plan`, one after the other."""
    for name, each in some:
        plan = each(plan)
        dump_plan(name, plan)
    return plan
