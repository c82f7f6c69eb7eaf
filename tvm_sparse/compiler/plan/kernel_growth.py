"""How much longer the kernel of a tuning log's record may take for a weight with more non-zeros."""

import math

from tvm.target import Target

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.errors import BuildError, UsageError
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.schedules.lookup import find_space

# A GPU's kernel for more non-zeros may take so many times as long as estimated.
MARGIN = 1.5


class Growths:
    """`growth` on a target, once for each record and number of non-zeros."""

    def __init__(self, target: Target):
        self.target = target
        self._known: dict[tuple[int, int], tuple[TuningRecord, float]] = {}

    def __call__(self, record: TuningRecord, pattern: SparsityPattern) -> float:
        key = id(record), pattern.nnz
        if key not in self._known:
            # A record that is kept has its identity for itself.
            self._known[key] = record, growth(record, pattern, self.target)
        return self._known[key][1]


def growth(record: TuningRecord, pattern: SparsityPattern, target: Target) -> float:
    """How many times as long as `record`, at least once, its kernel may take for the non-zeros of `pattern`.

    Infinite where its decisions do not fit these, as where there would be too much code, or shared memory is too small.
    On a CPU it is at most in proportion. On a GPU code that leaves a cache costs more, and a kernel that memory bounds
    hardly anything: of 62 kernels with decisions made for fewer non-zeros (docs/results/table2-h200.md) 23 took longer
    than in proportion, up to 2.3 times, but only three longer than this, by 10% at most. Kernels that read weights as
    data have the same code for any: ResNet-50's 48 took 1.29 times as long for twice the non-zeros.
    """
    more = max(1.0, pattern.nnz / max(record.pattern.nnz, 1))
    if more <= 1 or target.kind.name != "cuda":
        return more
    before_us, after_us = (_estimate_us(record, each, target) for each in (record.pattern, pattern))
    if after_us is None:
        return math.inf
    if not before_us or not after_us:
        return more
    longer = max(1.0, after_us / before_us)
    return longer * min(more, MARGIN) if record.family.is_compiled else min(longer, more)


def _estimate_us(record: TuningRecord, pattern: SparsityPattern, target: Target) -> float | None:
    """Estimated time of a record's decisions with another pattern of zeros, 0 if there is none; None: unfit."""
    try:
        space = find_space(record.schedule, record.spec, pattern, target)
        schedule = space.scheduled(record.chosen)
    except (UsageError, BuildError):
        return None
    return None if space.obstacle_of(schedule) else space.estimate(schedule) or 0.0
