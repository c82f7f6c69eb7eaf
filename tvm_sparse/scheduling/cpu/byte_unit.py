"""Which instructions of a CPU multiply bytes, four in a lane: the one place that knows them.

AVX2's saturates: it is right where a four of weights, if its products may be too large for that, is two, each of half.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
from tvm import tirx
from tvm.target import Target
from tvm.target.codegen import target_has_features
from tvm.tirx.script import builder as T

from tvm_sparse.conv.codes import CODES, FOUR
from tvm_sparse.scheduling.cpu.byte_vectors import INT32
from tvm_sparse.target.cpu_info import CpuInfo, is_aarch64


@dataclass(frozen=True)
class ByteUnit:
    """Instructions for vectors of `lanes` int32, of four bytes each.

    * `dot`: what multiplies bytes by signed ones and adds up four products, or of int16 two, which are two in a lane.
    * `packs`: of int32 to int16, and of these to uint8, clipped.
    * `saturating`: what multiplies bytes by signed ones and adds up two products as int16, clipped, where `dot` is of
      int16; it is for weights that are not wide.
    * `signed`: whether it multiplies signed bytes alone, so that pixels are less by 128, and sums begin with more.
    """

    lanes: int
    dot: str
    packs: tuple[str, str]
    signed: bool = False
    saturating: str = ""

    @classmethod
    def of(cls, target: Target) -> "ByteUnit | None":
        """That of a target for LLVM; None where it has none."""
        units, lanes = ARM_UNITS if is_aarch64(target) else X86_UNITS, CpuInfo.of(target).lanes
        own = (unit for feature, unit in units if unit.lanes == lanes and target_has_features(feature, target))
        return next(own, None)

    @property
    def ints(self) -> str:
        """The type of a vector of int32."""
        return f"{INT32}x{self.lanes}"

    @property
    def bytes(self) -> str:
        """The type of a vector of bytes."""
        return f"int8x{FOUR * self.lanes}"

    @property
    def is_wide(self) -> bool:
        """Whether it multiplies int16, so that it takes two products for four bytes."""
        return bool(self.saturating)

    @property
    def moved(self) -> int:
        """How much less pixels are than bytes."""
        return CODES // 2 if self.signed else 0

    def at(self, first: tirx.Expr | int) -> tirx.Expr:
        """The index of a vector of elements from `first` on."""
        return tirx.Ramp(first, 1, self.lanes)

    def all_of(self, value: tirx.Expr | int) -> tirx.Expr:
        """A vector of an int32."""
        return tirx.Broadcast(tirx.const(value, INT32) if isinstance(value, int) else value, self.lanes)

    def loaded(self, x: tirx.Var, index: tuple, first: int, count: int) -> tirx.Expr:
        """A vector with `count` elements from `index` on, from the lane `first` on; others repeat one of them."""
        *front, column = index
        if count == self.lanes:
            return tirx.BufferLoad(x, [*front, self.at(column)])
        if count == 1:
            return tirx.Broadcast(x[index], self.lanes)
        some = tirx.BufferLoad(x, [*front, tirx.Ramp(column, 1, count)])
        lanes = [min(max(0, lane - first), count - 1) for lane in range(self.lanes)]
        # TVM takes no more lanes out of vectors than these have.
        return tirx.Shuffle([some] * -(-self.lanes // count), lanes)

    def store(self, y: tirx.Var, index: tuple, vector: tirx.Expr, first: int, count: int) -> None:
        """Store `count` lanes of a `vector`, from the lane `first` on, from `index` on."""
        *front, column = index
        if count < self.lanes:
            vector = tirx.Shuffle([vector], list(range(first, first + count)))
        T.buffer_store(y, vector, [*front, column if count == 1 else tirx.Ramp(column, 1, count)])

    def pixels(self, bytes_: tirx.Expr, lanes: int) -> tirx.Expr:
        """What is multiplied of so many int32 of four bytes each."""
        if not self.signed:
            return bytes_
        # The least of a signed byte, in each.
        least = tirx.const(-0x7F7F7F80, INT32)
        return bytes_ ^ (tirx.Broadcast(least, lanes) if lanes > 1 else least)

    def zeros(self, least: int) -> tirx.Expr:
        """A vector of what is multiplied of zeros, of a tensor whose least code is `least`."""
        zero = np.full(FOUR, -least - self.moved, np.int64).astype(np.uint8).view(np.int32)[0]
        return self.all_of(int(zero))

    def multiply(self, sums: tirx.Expr, pixels: tirx.Expr, weights: tirx.Expr) -> tirx.Expr:
        """`sums`, with the products of the bytes of vectors of int32 added to them."""
        if not self.is_wide:
            operands = [tirx.reinterpret(self.bytes, each) for each in (pixels, weights)]
            return tirx.call_llvm_pure_intrin(self.ints, self.dot, sums, *operands)
        codes, taps = self._as_pairs("uint16", pixels), self._as_pairs("int16", weights)
        even = codes & self._pair(CODES - 1, "uint16"), (taps << self._pair(8)) >> self._pair(8)
        odd = codes >> self._pair(8, "uint16"), taps >> self._pair(8)
        for pixel, tap in (even, odd):
            found = tirx.call_llvm_pure_intrin(self.ints, self.dot, self._as_pairs("int16", pixel), tap)
            sums = sums + found
        return sums

    def multiply_unsaturated(self, sums: tirx.Expr, pixels: tirx.Expr, weights: tirx.Expr) -> tirx.Expr:
        """As `multiply`, with weights none of which are wide, by fewer instructions."""
        if not self.is_wide:
            return self.multiply(sums, pixels, weights)
        operands = [tirx.reinterpret(self.bytes, each) for each in (pixels, weights)]
        found = tirx.call_llvm_pure_intrin(self._pairs(), self.saturating, *operands)
        return sums + tirx.call_llvm_pure_intrin(self.ints, self.dot, found, self._pair(1))

    def narrowed(self, codes: list[tirx.Expr]) -> tirx.Expr:
        """Four vectors of int32 as the bytes of one, clipped: quarter by quarter, of each of the four in turn."""
        first, second = self.packs
        if self.lanes > FOUR:
            pairs = [
                tirx.call_llvm_pure_intrin(self._pairs(), first, codes[0], codes[1]),
                tirx.call_llvm_pure_intrin(self._pairs(), first, codes[2], codes[3]),
            ]
            return tirx.call_llvm_pure_intrin(self.bytes, second, *pairs)
        halves = [tirx.call_llvm_pure_intrin("int16x4", first, each) for each in codes]
        pairs = [_joined(halves[:2], FOUR), _joined(halves[2:], FOUR)]
        return _joined([tirx.call_llvm_pure_intrin("int8x8", second, each) for each in pairs], 2 * FOUR)

    def by_pixel(self, codes: tirx.Expr) -> tirx.Expr:
        """Bytes `narrowed` of four channels as int32 of a pixel each."""
        lanes = product(range(self.lanes // FOUR), range(FOUR), range(FOUR))
        of_pixel = [FOUR * (FOUR * quarter + channel) + pixel for quarter, pixel, channel in lanes]
        return tirx.reinterpret(self.ints, tirx.Shuffle([codes], of_pixel))

    def _pairs(self, kind: str = "int16") -> str:
        return f"{kind}x{2 * self.lanes}"

    def _as_pairs(self, kind: str, vector: tirx.Expr) -> tirx.Expr:
        return tirx.reinterpret(self._pairs(kind), vector)

    def _pair(self, value: int, kind: str = "int16") -> tirx.Expr:
        return tirx.Broadcast(tirx.const(value, kind), 2 * self.lanes)


def _joined(vectors: list[tirx.Expr], lanes: int) -> tirx.Expr:
    """Vectors of so many lanes, one behind the other."""
    return tirx.Shuffle(vectors, list(range(lanes * len(vectors))))


_OF_512 = ("llvm.x86.avx512.packssdw.512", "llvm.x86.avx512.packuswb.512")
_OF_256 = ("llvm.x86.avx2.packssdw", "llvm.x86.avx2.packuswb")
_OF_128 = ("llvm.aarch64.neon.sqxtn", "llvm.aarch64.neon.sqxtun")
# By what a target has, the best first: AVX-512 with VNNI and without, AVX-VNNI, AVX2; i8mm and dotprod.
X86_UNITS = (
    ("avx512vnni", ByteUnit(16, "llvm.x86.avx512.vpdpbusd.512", _OF_512)),
    ("avx512bw", ByteUnit(16, "llvm.x86.avx512.pmaddw.d.512", _OF_512, saturating="llvm.x86.avx512.pmaddubs.w.512")),
    ("avxvnni", ByteUnit(8, "llvm.x86.avx512.vpdpbusd.256", _OF_256)),
    ("avx2", ByteUnit(8, "llvm.x86.avx2.pmadd.wd", _OF_256, saturating="llvm.x86.avx2.pmadd.ub.sw")),
)
ARM_UNITS = (
    ("i8mm", ByteUnit(4, "llvm.aarch64.neon.usdot", _OF_128)),
    ("dotprod", ByteUnit(4, "llvm.aarch64.neon.sdot", _OF_128, signed=True)),
)
