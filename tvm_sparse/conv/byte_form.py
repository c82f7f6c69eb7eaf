"""What a kernel of eight-bit integers has for tensors in a quantised network: bytes, of four channels in an int32.

Codes are stored less the least of their tensor, so as uint8. Sums are scaled, rounded half to even and clipped in the
kernel that computes them.
"""

from dataclasses import dataclass

import numpy as np

from tvm_sparse.conv.codes import CODES, FOUR, in_fours

# What is rounded to an int32 stays below this.
MOST_STEPS = 2.0**30


@dataclass(frozen=True, eq=False)
class Stage:
    """``clip(round(own * value + shift + other * residual), least, greatest)``.

    `own` is (K,) or (1,), float32, and so is `shift`; `other` is None where no residual is added.
    """

    own: np.ndarray
    other: np.float32 | None
    least: int
    greatest: int
    shift: np.ndarray | None = None

    def of(self, values: np.ndarray, residual: np.ndarray | None) -> np.ndarray:
        """Codes of `values` and the codes of a `residual`, both (N, K, OH, OW)."""
        scaled = values.astype(np.float32) * self.own[:, None, None]
        if self.shift is not None:
            scaled = scaled + self.shift[:, None, None]
        if self.other is not None:
            assert residual is not None, "a residual is given where it is added"
            scaled = scaled + residual.astype(np.float32) * self.other
        return np.clip(np.rint(scaled), self.least, self.greatest)


@dataclass(frozen=True, eq=False)
class ByteForm:
    """The input is bytes; what `stages` make of sums is too, less `least`, and so is a residual, less `residual_least`.

    Sums begin with a `bias` of integers (K,). Without stages the output is that of a kernel alone, in float32.
    """

    stages: tuple[Stage, ...] = ()
    least: int = 0
    residual_least: int | None = None
    bias: np.ndarray | None = None

    @property
    def is_exact(self) -> bool:
        """Whether no operation but the last rounding rounds, so that there is one right result."""
        return self.residual_least is None and all(stage.shift is None for stage in self.stages)

    def is_bounded(self, sums: float) -> bool:
        """Whether what is rounded is far from the limits of int32 where sums are `sums` at most."""
        most = sums
        for stage in self.stages:
            most = most * float(np.abs(stage.own).max()) + CODES * float(stage.other or 0)
            most += 0.0 if stage.shift is None else float(np.abs(stage.shift).max())
            if not most < MOST_STEPS:
                return False
            most = max(abs(stage.least), abs(stage.greatest))
        return True

    def numbers(self, filters: int) -> dict[str, np.ndarray]:
        """What stages have of each filter, float32 (filters,), by the names of a kernel's arguments."""
        named = {f"own{index}": stage.own for index, stage in enumerate(self.stages)}
        named |= {f"shift{index}": each.shift for index, each in enumerate(self.stages) if each.shift is not None}
        return {name: np.broadcast_to(array, (filters,)).astype(np.float32) for name, array in named.items()}

    def of(self, sums: np.ndarray, residual: np.ndarray | None) -> np.ndarray:
        """The codes that a kernel makes of `sums` (N, K, OH, OW), without the bias, and the codes of a residual."""
        sums = sums if self.bias is None else sums + self.bias[:, None, None]
        for stage in self.stages:
            sums = stage.of(sums, residual)
        return sums


def fours_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of the int32 tensor that has the bytes of one of `shape` (N, C, H, W)."""
    n, c, h, w = shape
    return n, -(-c // FOUR), h, w


def as_fours(codes: np.ndarray, least: int) -> np.ndarray:
    """Codes (N, C, H, W) as bytes, int32 (N, C / 4, H, W)."""
    fours = in_fours((codes - least).astype(np.uint8)).transpose(0, 1, 3, 4, 2)
    return np.ascontiguousarray(fours).view(np.int32)[..., 0]


def of_bytes(fours: np.ndarray, least: int) -> np.ndarray:
    """The codes (N, C, H, W) that `as_fours` made int32 (N, C / 4, H, W) of, int64."""
    n, blocks, h, w = fours.shape
    codes = np.ascontiguousarray(fours)[..., None].view(np.uint8).transpose(0, 1, 4, 2, 3)
    return codes.reshape(n, blocks * FOUR, h, w).astype(np.int64) + least


def starts(form: ByteForm | None, weight: np.ndarray, least: int) -> np.ndarray:
    """What the sums of filters (K, C, R, S) of integers begin with, whose input's bytes are codes less `least`."""
    found = weight.astype(np.int64).sum(axis=(1, 2, 3)) * least
    return found if form is None or form.bias is None else found + form.bias.astype(np.int64)
