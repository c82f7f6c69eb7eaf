"""What spaces of tensors that may lie in blocks of channels (`conv.nchwc`) have in common."""

from abc import abstractmethod

from tvm import tirx

from tvm_sparse.conv.nchwc import Layouts
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.space import HandMadeSpace
from tvm_sparse.target.cpu_info import CpuInfo


class BlockedSpace(HandMadeSpace):
    """A space of a convolution of tensors in `layouts`, by so many threads. Nothing is decided.

    `is_uniform` says that all of a layer's tensors lie in blocks, or none.
    """

    is_uniform = False

    def __init__(self, name: str, spec: ConvSpec, cpu: CpuInfo, layouts: Layouts, threads: int = 1):
        self.spec, self.layouts, self._cpu, self._threads = spec, layouts, cpu, threads
        super().__init__(name, "nchwc" if layouts.has_blocks else "filters", self._unscheduled, fold=False)

    @abstractmethod
    def _unscheduled(self) -> tirx.PrimFunc:
        """The function to schedule."""

    @staticmethod
    @abstractmethod
    def writes(spec: ConvSpec, cpu: CpuInfo) -> bool:
        """Whether its output can lie in blocks; only with AVX-512 and AVX2, where it was measured."""

    @staticmethod
    @abstractmethod
    def reads(spec: ConvSpec, cpu: CpuInfo) -> bool:
        """Whether the input of a convolution that it `writes` can."""
