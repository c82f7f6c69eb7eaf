"""How one axis of a tensor is resized: which elements of it each new element is made of, and with which weights.

Positions follow ONNX's standard for Resize (opset 19), which names all that torch knows too. They are computed as
fractions: in float32 a position that lies halfway between two elements, or on one, falls on either side of it.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

# Half the width of each mode's kernel.
_RADIUS = {"linear": 1, "cubic": 2}


@dataclass(frozen=True)
class Positions:
    """Where the elements of a resized axis lie on the old one: `start` + i `step`, for i < `out` on `size` elements.

    `shrinking` is how many times shorter the axis becomes, which is not the step where the corners are aligned.
    """

    size: int
    out: int
    step: Fraction
    start: Fraction
    shrinking: Fraction

    @cached_property
    def _parts(self) -> tuple[np.ndarray, int]:
        """Positions as integers over one denominator."""
        denominator = math.lcm(self.step.denominator, self.start.denominator)
        step, start = int(self.step * denominator), int(self.start * denominator)
        largest = abs(step) * self.out + abs(start) + 2 * denominator
        # Python's integers are as long as it takes.
        indices = np.arange(self.out, dtype=np.int64 if largest < 2**61 else object)
        return indices * step + start, denominator

    @property
    def is_identity(self) -> bool:
        return self.size == self.out and (self.step, self.start) == (1, 0)

    def floors(self) -> np.ndarray:
        """The last whole number that is not behind each position; shape (out,), int64."""
        numerators, denominator = self._parts
        return (numerators // denominator).astype(np.int64)

    def fractions(self) -> np.ndarray:
        """What each position has more than its floor; shape (out,), float64."""
        numerators, denominator = self._parts
        return (numerators % denominator / denominator).astype(np.float64)

    def outside(self) -> np.ndarray:
        """Whether each position is before the first or behind the last element; shape (out,), bool."""
        numerators, denominator = self._parts
        return ((numerators < 0) | (numerators > (self.size - 1) * denominator)).astype(bool)

    def nearest(self, mode: str = "round_prefer_floor") -> np.ndarray:
        """The element nearest to each position, by ONNX's ``nearest_mode``; shape (out,), int64."""
        numerators, denominator = self._parts
        found = {
            "floor": numerators // denominator,
            "ceil": -(-numerators // denominator),
            "round_prefer_floor": -((denominator - 2 * numerators) // (2 * denominator)),
            "round_prefer_ceil": (2 * numerators + denominator) // (2 * denominator),
        }[mode]
        return np.clip(found.astype(np.int64), 0, self.size - 1)


def exact_scale(size: int, out: int, scale: float) -> Fraction:
    """The factor by which `size` elements become `out`, of a `scale` that exporters round to float32."""
    whole = Fraction(out, size)
    return whole if abs(float(whole) - scale) <= np.spacing(np.float32(scale)) else Fraction(float(scale))


def positions(
    size: int,
    out: int,
    scale: Fraction | None = None,
    coordinates: str = "half_pixel",
    roi: tuple[float, float] = (0.0, 1.0),
) -> Positions:
    """Where the elements of a resized axis lie on the old one; KeyError where `coordinates` is none of these.

    * `size`, `out`: elements before and after.
    * `scale` (a Fraction, or None): the factor between them where it is not `out` / `size`: `size` times it was
      rounded.
    * `coordinates`: ONNX's ``coordinate_transformation_mode``, or ``align_corners_antialias``, which is torch's
      ``align_corners`` with ``antialias``.
    * `roi` (floats): the start and the end of what is resized, in parts of the axis, for
      ``tf_crop_and_resize``.
    """
    scale = Fraction(out, size) if scale is None else scale
    step, half, span = 1 / scale, Fraction(1, 2), size - 1
    half_pixel = step, half * step - half
    between = Fraction(span, out - 1) if out > 1 else Fraction(0)
    begin, end = map(Fraction, roi)
    step, start = {
        "half_pixel": half_pixel,
        "half_pixel_symmetric": (step, half_pixel[1] + (size - out * step) / 2),
        "pytorch_half_pixel": half_pixel if out > 1 else (step, Fraction(0)),
        "align_corners": (between, Fraction(0)),
        "align_corners_antialias": (between, half * between - half),
        "asymmetric": (step, Fraction(0)),
        "tf_half_pixel_for_nn": (step, half * step),
        "tf_crop_and_resize": ((end - begin) * between, begin * span if out > 1 else (begin + end) * span / 2),
    }[coordinates]
    return Positions(size, out, step, start, step if coordinates == "align_corners_antialias" else 1 / scale)


def taps(
    where: Positions, mode: str, *, cubic_coeff_a: float = -0.75, antialias: bool = False, exclude_outside: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """The elements that each element of a resized axis is a weighted sum of.

    Parameters
    ----------
    where : Positions
        Where the new elements lie.
    mode : str
        ``linear`` or ``cubic``.
    cubic_coeff_a : float
        The kernel's coefficient: torch's is -0.75, and -0.5 with `antialias`.
    antialias : bool
        Whether the kernel is as many times wider as the axis becomes shorter.
    exclude_outside : bool
        Whether elements outside the axis have no weight; else they are those at its ends. Torch's have none with
        `antialias`.

    Returns
    -------
    tuple of numpy.ndarray
        Indices, int64, and weights, float64; both of shape (out, taps).
    """
    width = max(float(where.shrinking), 1.0) if antialias else 1.0
    radius = math.ceil(_RADIUS[mode] * width)
    offsets = np.arange(1 - radius, radius + 1)
    indices = where.floors()[:, None] + offsets
    distances = (offsets - where.fractions()[:, None]) / width
    weights = _linear(distances) if mode == "linear" else _cubic(distances, cubic_coeff_a)
    if exclude_outside:
        weights[(indices < 0) | (indices >= where.size)] = 0
    if exclude_outside or antialias:
        sums = weights.sum(1, keepdims=True)
        weights /= np.where(sums == 0, 1, sums)
    used = np.flatnonzero(weights.any(axis=0))
    used = used if len(used) else np.array([0])
    return np.clip(indices[:, used], 0, where.size - 1), weights[:, used]


def _linear(distances: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(distances), 0)


def _cubic(distances: np.ndarray, a: float) -> np.ndarray:
    """Keys' kernel."""
    far = np.abs(distances)
    inner = ((a + 2) * far - (a + 3)) * far**2 + 1
    outer = ((far - 5) * far + 8) * far * a - 4 * a
    return np.where(far <= 1, inner, np.where(far < 2, outer, 0.0))
