"""Chains for NEON. Weights come four at a time, and multiply-adds take one by its number in the register."""

from collections.abc import Iterator, Sequence

from tvm_sparse.codegen.folding.chain_writer import ChainWriter
from tvm_sparse.codegen.folding.fma_chains import Chain
from tvm_sparse.target.cpu_info import CpuInfo

_VECTOR_BYTES = 16
# A load reaches 4,095 vectors beyond its base, whole vectors only.
_REACH_BYTES = 4095 * _VECTOR_BYTES
# Where a base is moved because of one load, loads so far before that one are within reach as well: taps of a strided
# convolution go back and forth between phases of the input.
_BEFORE_BYTES = 16384
# Additions take 12 bits, or 12 bits shifted left by 12.
_SHIFT, _ADDED = 12, 1 << 24
# General registers for the bases of loads, one for each float of a vector at which an input may begin; for the base of
# weights; for a distance that is too long for an addition.
_BASES, _WEIGHT_BASE, _DISTANCE = ("x9", "x10", "x11", "x12"), "x13", "x14"


class NeonWriter(ChainWriter):
    """Writes the instructions `ldr`, `str`, `fmla`, and those that move bases."""

    SCRATCH = (*_BASES, _WEIGHT_BASE, _DISTANCE)

    def __init__(self, cpu: CpuInfo, chain: Chain, unit_floats: Sequence[int]):
        super().__init__(cpu, chain, unit_floats)
        self._factors, self._input, *self._free = self._others

    @property
    def table(self) -> list[float]:
        """Weights, with zeros behind them: the last load is of a whole vector too."""
        return [*self._values, *[0.0] * (-len(self._values) % self._cpu.lanes)]

    def lines(self) -> list[str]:
        """Accumulators in, products, accumulators out."""
        loads, stores = _Bases(1, _BASES), _Bases(1, _BASES)
        found: list[str] = []
        for vector, register in self._accumulators.items():
            found += loads.moved("ldr", register, self._byte(vector, 1))
        found += self._multiply_adds()
        for vector, register in self._accumulators.items():
            found += stores.moved("str", register, self._byte(vector, 1))
        return found

    def _multiply_adds(self) -> Iterator[str]:
        inputs, weights, loaded = _Bases(0, _BASES), _Bases(2, (_WEIGHT_BASE,)), -1
        for product in self._products:
            group, element = divmod(product.weight, self._cpu.lanes)
            if group != loaded:
                yield from weights.moved("ldr", self._factors, group * _VECTOR_BYTES)
                loaded = group
            x = self._held.get(product.x)
            if x is None:
                x = self._input
                if product.is_x_kept and self._free:
                    x = self._held[product.x] = self._free.pop()
                yield from inputs.moved("ldr", x, self._byte(product.x, 0))
            yield f"fmla {self._accumulators[product.acc]}.4s, {x}.4s, {self._factors}.s[{element}]"
            if product.x in self._held and not product.is_x_kept:
                self._free.append(self._held.pop(product.x))


class _Bases:
    """Moves vectors between registers and memory behind one pointer, through base registers within reach."""

    def __init__(self, pointer: int, registers: Sequence[str]):
        self._pointer, self._registers = pointer, registers
        self._bytes: dict[str, int] = {}

    def moved(self, instruction: str, register: str, byte: int) -> Iterator[str]:
        """The load or store of `register` at `byte`, after what brings a base within reach."""
        base = self._registers[byte % _VECTOR_BYTES * len(self._registers) // _VECTOR_BYTES]
        distance = byte - self._bytes.get(base, byte + 1)
        if not 0 <= distance <= _REACH_BYTES:
            distance = max(0, min(_BEFORE_BYTES, byte - byte % _VECTOR_BYTES))
            self._bytes[base] = byte - distance
            yield from _add(base, f"${self._pointer}", byte - distance)
        yield f"{instruction} q{register[1:]}, [{base}, #{distance}]"


def _add(target: str, source: str, number: int) -> list[str]:
    """`target` = `source` + `number`."""
    operation, size = ("add", number) if number >= 0 else ("sub", -number)
    if size >= _ADDED:
        parts = [f"movz {_DISTANCE}, #{size % 65536}"]
        parts += [
            f"movk {_DISTANCE}, #{size >> shift & 65535}, lsl #{shift}" for shift in (16, 32, 48) if size >> shift
        ]
        return [*parts, f"{operation} {target}, {source}, {_DISTANCE}"]
    high, low = divmod(size, 1 << _SHIFT)
    if not high:
        return [f"{operation} {target}, {source}, #{low}"]
    shifted = f"{operation} {target}, {source}, #{high}, lsl #{_SHIFT}"
    return [shifted, f"{operation} {target}, {target}, #{low}"] if low else [shifted]
