"""The space of the kernel that computes a convolution and two in front of it: nothing is left to decide."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm import tirx
from tvm.s_tir import Schedule

from tvm_sparse.scheduling.cuda.bottleneck.bottleneck import Bottleneck
from tvm_sparse.scheduling.cuda.bottleneck.call import bottleneck_call
from tvm_sparse.scheduling.cuda.bottleneck.packing import packed
from tvm_sparse.scheduling.cuda.bottleneck.sample import sample_layers
from tvm_sparse.scheduling.space import Choose, WrittenSpace
from tvm_sparse.target.gpu import GpuInfo


class BottleneckSpace(WrittenSpace):
    """Its kernels have the weight of the last layer; those in front are drawn (`sample`)."""

    def __init__(self, name: str, bottleneck: Bottleneck, gpu: GpuInfo):
        super().__init__(name, "")
        self.bottleneck, self.gpu = bottleneck, gpu

    def apply(self, sch: Schedule, choose: Choose) -> None:
        pass

    def written(self, decisions: Mapping[str, Any]) -> tirx.PrimFunc:
        return bottleneck_call(self.bottleneck, self.gpu)

    def packed(self, weight: np.ndarray, decisions: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
        return (packed(*sample_layers(self.bottleneck, weight), self.bottleneck.third.dtype),)

    @property
    def estimate_us(self) -> float:
        return self.bottleneck.estimated_us(self.gpu)
