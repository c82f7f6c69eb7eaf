"""The dense kernel of a layer: where no record says which, and what takes the place of a kernel that is not used."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from tvm.target import Target

from tvm_sparse.compiler.plan.choice import Choice, Default, recorded_or_default
from tvm_sparse.compiler.plan.decision import Decision
from tvm_sparse.compiler.plan.plan import Plan
from tvm_sparse.compiler.plan.predict import PRODUCT_IMAGES
from tvm_sparse.compiler.plan.reasons import dense_because
from tvm_sparse.conv.conv2d_product import is_linear
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.storage import is_half
from tvm_sparse.errors import UsageError
from tvm_sparse.schedules import dense_cudnn
from tvm_sparse.schedules.lookup import family_of, schedule_names
from tvm_sparse.scheduling.family import TF32_VARIANT, schedule_of


def default_of(spec: ConvSpec, target: Target, is_allowed: Callable[[str], bool]) -> str:
    """The dense schedule of a layer without a record: a library's, in TF32 where that is allowed."""
    defaults, tf32 = _default_dense(target), f"{dense_cudnn.NAME}:{TF32_VARIANT}"
    if is_linear(spec):
        # cuDNN computes one pixel as a convolution, which took it 6 times as long as to read the weights.
        return defaults[0] if is_half(spec.dtype) and spec.n in PRODUCT_IMAGES else defaults[-1]
    if defaults[0] == dense_cudnn.NAME and spec.groups == spec.c > 1:
        # Depthwise: for MobileNetV2's at batch 64 on an H200, cuDNN in NCHW took 2.4 to 5.9 times as long as that.
        return defaults[-1]
    takes_tf32 = defaults[0] == dense_cudnn.NAME and not is_half(spec.dtype) and is_allowed(tf32)
    return tf32 if takes_tf32 else defaults[0]


def _default_dense(target: Target) -> list[str]:
    """Dense schedules that need no record, in the order in which they are tried; the last one serves everything."""
    names = schedule_names(target)
    dense = [name for name in names if family_of(name).is_dense and not family_of(name).why_not_here()]
    if not dense:
        found = ", ".join(names) or "none"
        raise UsageError(f"target {target.kind.name}", "has no dense schedule", found, "one named dense")
    return dense


def can_be_dense(decision: Decision, target: Target) -> bool:
    """Whether `to_dense` has something left to turn it into."""
    choice = decision.choice
    return choice.record is not None or (not choice.is_verified and choice.schedule != _default_dense(target)[-1])


def to_dense(decision: Decision, target: Target, why: str) -> Decision:
    """`decision` turned into the log's dense kernel, or a default one if that is what it was already."""
    return replace(decision, choice=_dense_instead(decision, target), reason=dense_because(why))


def _dense_instead(decision: Decision, target: Target) -> Choice:
    choice, record, defaults = decision.choice, decision.dense_record, _default_dense(target)
    schedule = schedule_of(choice.schedule)
    if record is None and choice.decisions is not None and family_of(schedule).is_library:
        # The library may compute it by its own decisions, in the layout that needs no neighbours.
        return Default(choice.schedule, choice.time_us)
    if choice.record is None and schedule in defaults:
        record, defaults = None, defaults[defaults.index(schedule) + 1 :]
    elif choice.record is record:
        record = None
    return recorded_or_default(defaults[0], record, decision.dense_time_us)


def all_dense(decisions: Sequence[Decision], target: Target, why: str) -> list[Decision]:
    """`decisions` where the log's best dense kernel, which multiplies by zeros too, replaces each sparse one."""
    return [d if family_of(d.schedule).is_dense else to_dense(d, target, why) for d in decisions]


def with_dense_kernels(plan: Plan, why: str) -> Plan:
    """`plan` without sparse kernels."""
    return plan.with_decisions(all_dense(plan.decisions, plan.target, why))
