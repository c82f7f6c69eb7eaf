"""What the assembly of a chain is on every processor: which registers hold accumulators, and which inputs are kept.

An instruction set is a subclass of `ChainWriter`. Accumulators stay in registers from the chain's first product to its
last. Weights are read from a table in the order of use, each once for all vectors that it multiplies. An input that is
used again soon is kept in a register, where one is free.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tvm_sparse.codegen.folding.fma_chains import Chain, Offsets
from tvm_sparse.target.cpu_info import CpuInfo

FLOAT_BYTES = 4
# An input that is used again within so many multiply-adds is kept in a register, where one is free.
_WINDOW = 64

# A native vector: the offsets of a load or store, which is wider, and the vector's number in that.
Vector = tuple[Offsets, int]


@dataclass(frozen=True)
class Product:
    """One multiply-add: its place in the chain, the number of its weight, what is used, the place of x's next use."""

    index: int
    weight: int
    x: Vector
    acc: Vector
    next_use: float

    @property
    def is_x_kept(self) -> bool:
        """Whether its input is used again soon."""
        return self.next_use - self.index <= _WINDOW


class ChainWriter(ABC):
    """Gives registers to the values of one chain and writes its instructions.

    Operands 0, 1 and 2 of the assembly are pointers to inputs, accumulators and weights; `unit_floats` is what an
    offset of 1 skips in the first two.
    """

    # Vector registers that a chain needs beside its accumulators: for weights, and for an input.
    SPARE_REGISTERS: ClassVar[int] = 2
    # General registers that the instructions change.
    SCRATCH: ClassVar[Sequence[str]] = ()

    def __init__(self, cpu: CpuInfo, chain: Chain, unit_floats: Sequence[int]):
        self._cpu, self._values, self._unit_floats = cpu, chain.weights, unit_floats
        parts = range(chain.lanes // cpu.lanes)
        vectors = [(offsets, part) for offsets in dict.fromkeys(chain.acc_offsets) for part in parts]
        self._accumulators = {vector: self._register(index) for index, vector in enumerate(vectors)}
        # Registers that hold no accumulator.
        self._others = [self._register(index) for index in range(len(vectors), cpu.registers)]
        # Inputs that are in a register now.
        self._held: dict[Vector, str] = {}
        ends = enumerate(zip(chain.x_offsets, chain.acc_offsets, strict=True))
        self._products = _with_next_uses([(number, (x, i), (acc, i)) for number, (x, acc) in ends for i in parts])

    @property
    def table(self) -> list[float]:
        """What the pointer to weights must point to."""
        return self._values

    @abstractmethod
    def lines(self) -> list[str]:
        """The instructions: accumulators in, products, accumulators out."""

    def _register(self, index: int) -> str:
        return f"{self._cpu.register_name}{index}"

    def _byte(self, vector: Vector, pointer: int) -> int:
        """Where a vector lies behind a pointer."""
        offsets, part = vector
        return (offsets[0] * self._unit_floats[pointer] + part * self._cpu.lanes) * FLOAT_BYTES

    @abstractmethod
    def _multiply_adds(self) -> Iterator[str]:
        """The instructions of the products, in order."""


def _with_next_uses(products: Sequence[tuple[int, Vector, Vector]]) -> list[Product]:
    """Numbers of weights, inputs and accumulators as products."""
    found, later = [], dict[Vector, int]()
    for index, (weight, x, acc) in reversed(list(enumerate(products))):
        found.append(Product(index, weight, x, acc, later.get(x, float("inf"))))
        later[x] = index
    return found[::-1]
