"""Tuning a large layer on a proxy, a sample of its output channels: a share of the filters, as many times more images.

A CUDA kernel with 100,000 multiply-adds and more takes half a minute to a minute to build on eight cores, that of an
eighth of the filters an eighth of that. With eight times as many images it has as many thread blocks, and each has as
much code, copies and barriers. Of 27 kernels of five layers of ResNet-50 and VGG16 (105,000 to 236,000 non-zeros, batch
1), timed both ways on an H200, the fastest of each layer's sample was its fastest as a whole or within 1% of it, though
samples took 0.62 to 0.97 times as long: all tiles' code is fetched once a call, and a sample has less of it.

A sample is a convolution of its own, and so are its records. A layer's own are of kernels built whole, the best few.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from tvm.target import Target

from tvm_sparse.autotune.search.strategies import GuidedPhase
from tvm_sparse.autotune.search.trial_runner import TrialRunner
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import UsageError
from tvm_sparse.logs.ranking import ranked
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.measure.measurer import Measurer
from tvm_sparse.schedules.lookup import find_space
from tvm_sparse.scheduling.code_size import LARGE_NON_ZEROS
from tvm_sparse.scheduling.space import Space

# Shares of the filters, the smallest first, and a number that tiles of output channels divide.
SHARES, FILTERS = (8, 4, 2), 64
# Input and output of a sample at most, bytes.
MAX_BYTES = 1 << 30
# Kernels built whole, and trials from which on a sample is worth it.
WHOLE, MIN_TRIALS = 4, 12


@dataclass(frozen=True)
class Sample:
    """A sample of a layer: its convolution, its weight (K / share, C, R, S) and the pattern of that."""

    spec: ConvSpec
    weight: np.ndarray
    pattern: SparsityPattern

    @classmethod
    def of(cls, spec: ConvSpec, weight: np.ndarray, target: Target) -> "Sample | None":
        """The smallest sample of a layer; None where the layer is built fast enough, or cannot be divided."""
        if target.kind.name != "cuda" or np.count_nonzero(weight) < LARGE_NON_ZEROS or spec.groups > 1:
            return None
        for share in SHARES:
            size = 4 * (share * math.prod(spec.input_shape) + math.prod(spec.output_shape))
            if spec.k % (share * FILTERS) == 0 and size <= MAX_BYTES:
                # Every so many filters, as neighbours may be pruned alike.
                few = np.ascontiguousarray(weight[::share])
                return cls(replace(spec, n=spec.n * share, k=spec.k // share), few, SparsityPattern.of(few))
        return None

    def twin(self, each: Space, target: Target) -> Space | None:
        """The sample's space that is called like one of the layer, if there is one."""
        try:
            return find_space(each.name, self.spec, self.pattern, target)
        except UsageError:
            return None


class SamplePhase(GuidedPhase):
    """A guided search on a sample, and the best of it measured whole."""

    def __init__(self, runner: TrialRunner, sample: Sample, spaces: list[Space], budget: int):
        super().__init__(runner, spaces, budget)
        self.sample = sample

    def run(self) -> Iterator[TuningRecord]:
        runner = self.runner
        # Of several starts all but one come on top.
        whole = WHOLE + max(len(runner.starts) - 1, 0)
        # Half of the layer's time.
        seconds = runner.options.seconds / 2 if runner.options.seconds is not None else None
        options = replace(runner.options, trials=self.left - whole, seconds=seconds)
        with Measurer(
            self.sample.spec, self.sample.weight, runner.target, options.measure, runner.measurer.worker_pool
        ) as measurer:
            inner = TrialRunner(measurer, self.sample.weight, options, runner.given)
            spaces = [twin for each in self.spaces if (twin := self.sample.twin(each, runner.target))]
            inner.settle(spaces)
            yield from GuidedPhase(inner, spaces, inner.left()).run()
        found = ranked(each for each in inner.known.records if each.status == "ok")
        # The sample's trials count.
        self.end -= len(inner.known)
        proposals = list(islice(self._fitting([*runner.starts, *found]), whole))
        if not proposals:
            # None of the sample's runs: the layer's own may.
            yield from super().run()
        elif self._goes_on():
            yield from self._measure(proposals)
        runner.is_out_of_time |= inner.is_out_of_time
        runner.is_exhausted |= inner.is_exhausted
