"""What a model should gain, from what is known and estimated of its layers, and what it moves between them on a CPU."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from tvm.target import Target

from tvm_sparse.compiler.plan.beside_layers import moved_bytes, others_us
from tvm_sparse.compiler.plan.choice import Predicted
from tvm_sparse.compiler.plan.decision import Decision
from tvm_sparse.compiler.plan.plan import Plan
from tvm_sparse.compiler.plan.predict import cpu_dense_us, gpu_dense_us, predicted
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.display.words import removed_text
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer
from tvm_sparse.logs.ranking import against_baseline
from tvm_sparse.runtime.verdict import Verdict
from tvm_sparse.schedules.lookup import family_of
from tvm_sparse.scheduling.cpu.fit import SPARSE

# By what share the speed-up of a whole model may be off where all of its layers were timed, and where none was. The
# latter was off by 0 to 32%, 13% in the median, for twelve networks with 90% zeros, on one thread of an Emerald Rapids
# (docs/lab/cpu-sparse.md, "Who runs a pruned network on one core?"); the former is taken to be off by less.
TIMED_ERROR, ESTIMATED_ERROR = 0.2, 0.35
DENSE_NAME = "same compiler"


@dataclass(frozen=True)
class LayerTimes:
    """Microseconds of one layer, dense and as it was decided; `is_timed` here, else estimated up to a factor."""

    dense_us: float
    sparse_us: float
    is_timed: bool

    @property
    def speedup(self) -> float:
        """How many times as fast as dense."""
        return self.dense_us / self.sparse_us

    def scaled(self, factor: float) -> "LayerTimes":
        """The same times in another unit."""
        return replace(self, dense_us=self.dense_us * factor, sparse_us=self.sparse_us * factor)


def verdict_of(plan: Plan, allow_tf32: bool = False, variant: str = "") -> Verdict:
    """The verdict on a plan, without a clock: what was timed of its layers counts before what is estimated."""
    times = times_of(plan, allow_tf32)
    scale = _scale(plan, times, allow_tf32)
    # Estimates of a GPU's kernels are of layers alone.
    products_us = sum(_others_us(plan, allow_tf32).values()) if plan.target.kind.name == "llvm" else 0.0
    between_us = scale * (_moved_us(plan) + products_us)
    dense_us = between_us + sum(each.dense_us * (1.0 if each.is_timed else scale) for each in times)
    sparse_us = between_us + sum(each.sparse_us * (1.0 if each.is_timed else scale) for each in times)
    # Estimates of a GPU's kernels are in microseconds of that card, those of a CPU's in such of a Zen 3.
    timed_us = sum(each.dense_us for each in times if each.is_timed)
    is_known = plan.target.kind.name == "cuda" or timed_us > 0
    share = timed_us / dense_us if dense_us else 0.0
    return Verdict(
        kind="predicted",
        speedup=dense_us / sparse_us if sparse_us else None,
        sparse_us=sparse_us if is_known and sparse_us else None,
        dense_us=dense_us if is_known and sparse_us else None,
        dense_name=DENSE_NAME,
        error=share * TIMED_ERROR + (1 - share) * ESTIMATED_ERROR,
        layers=len(times),
        gaining=sum(each.sparse_us < each.dense_us for each in times),
        variant=variant,
        removed=removed_text(*plan.prepared.removed),
    )


def shares_of_others(plan: Plan, allow_tf32: bool = False) -> dict[str, float]:
    """The share of a model's expected time in products of matrices that are no layers, by what they are part of."""
    times, others = times_of(plan, allow_tf32), _others_us(plan, allow_tf32)
    scale = _scale(plan, times, allow_tf32)
    layers_us = sum(each.sparse_us / (scale if each.is_timed else 1.0) for each in times)
    total_us = layers_us + _moved_us(plan) + sum(others.values())
    return {kind: time_us / total_us for kind, time_us in others.items()}


def times_of(plan: Plan, allow_tf32: bool = False) -> list[LayerTimes]:
    """What each layer takes; dense, with the filters and channels that have been taken out of it."""
    found = []
    for given, (layer, decision) in zip(_given(plan), plan.pairs, strict=True):
        times = layer_times(layer, decision, plan.target, allow_tf32)
        if given.spec != layer.spec:
            dense_us = (_dense_us(each.spec, plan.target, allow_tf32) for each in (given, layer))
            times = replace(times, dense_us=times.dense_us * next(dense_us) / next(dense_us))
        found.append(times)
    return found


def shares_of_layers(plan: Plan, allow_tf32: bool = False) -> list[tuple[float, float]]:
    """What each layer should take of the expected time of all layers, and what it would dense, both as shares of it."""
    times = times_of(plan, allow_tf32)
    scale = _scale(plan, times, allow_tf32)
    alike = [each if each.is_timed else each.scaled(scale) for each in times]
    total_us = sum(each.sparse_us for each in alike)
    return [(each.sparse_us / total_us, each.dense_us / total_us) for each in alike]


def _given(plan: Plan) -> list[ConvLayer]:
    """The layers of `plan` as they were in the model."""
    given = {each.name: each for each in plan.prepared.as_given.layers}
    return [given.get(each.name, each) for each in plan.layers]


def layer_times(layer: ConvLayer, decision: Decision, target: Target, allow_tf32: bool) -> LayerTimes:
    """What one layer takes."""
    is_dense = family_of(decision.schedule).is_dense
    if decision.dense_time_us and (decision.time_us or is_dense):
        return LayerTimes(decision.dense_time_us, decision.time_us or decision.dense_time_us, is_timed=True)
    dense_us = _dense_us(layer.spec, target, allow_tf32)
    return LayerTimes(dense_us, dense_us / _times_as_fast(layer, decision, target, allow_tf32), is_timed=False)


def _times_as_fast(layer: ConvLayer, decision: Decision, target: Target, allow_tf32: bool) -> float:
    """How many times as fast as dense the chosen kernel is expected to be."""
    family = family_of(decision.schedule)
    if family.is_dense:
        return 1.0
    if family.of_zeros:
        # It writes the bias, and reads nothing.
        return max(1.0, float(layer.spec.c * layer.spec.r * layer.spec.s))
    if decision.record is not None and (found := against_baseline(decision.record, None, lambda _: True)) is not None:
        return found.baseline.median / found.own.median
    if (time_us := decision.choice.expected_us) is not None:
        return _dense_us(layer.spec, target, allow_tf32) / time_us
    # On a GPU all predictions are times.
    if isinstance(decision.choice, Predicted) and decision.choice.speedup is not None:
        return decision.choice.speedup
    guess = predicted(layer.spec, layer.pattern, target)
    return guess.speedup if guess is not None else 1.0


def _dense_us(spec: ConvSpec, target: Target, allow_tf32: bool) -> float:
    if target.kind.name == "cuda":
        return gpu_dense_us(spec, target, allow_tf32)
    return cpu_dense_us(spec, target)


def _moved_us(plan: Plan) -> float:
    """What moving tensors between layers takes, of both sides."""
    is_cpu = plan.target.kind.name == "llvm"
    return moved_bytes(plan.prepared) * SPARSE.between_ns_byte / 1e3 if is_cpu else 0.0


def _others_us(plan: Plan, allow_tf32: bool) -> dict[str, float]:
    """What products of matrices that are no layers take, by what they are part of."""
    return others_us(plan.prepared, partial(_dense_us, target=plan.target, allow_tf32=allow_tf32))


def _scale(plan: Plan, times: Iterable[LayerTimes], allow_tf32: bool) -> float:
    """Times on this machine for one that is estimated, by the layers of which both are known."""
    pairs = [
        (each.dense_us, _dense_us(layer.spec, plan.target, allow_tf32))
        for layer, each in zip(_given(plan), times, strict=True)
        if each.is_timed
    ]
    estimated_us = sum(estimate for _, estimate in pairs)
    return sum(time for time, _ in pairs) / estimated_us if estimated_us else 1.0
