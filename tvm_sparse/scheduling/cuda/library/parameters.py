"""Integers that a kernel in CUDA C++ takes: declared once, for Python, which computes them, and for C++."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from tvm_sparse.conv.spec import ConvSpec

T_contra = TypeVar("T_contra", contravariant=True)


@dataclass(frozen=True)
class Parameter(Generic[T_contra]):
    """Some integers of a kernel; C++ has them as fields of its `Geometry`.

    * `names`: theirs, with spaces between them.
    * `meaning`: theirs, with units.
    * `value`: theirs for a tiling: an integer, or one for each name. Without it they are what a launch gives by their
      names, or attributes of the tiling.
    * `divides`: whether C++ divides by them: each is a `FastDivmod` there (codegen/cuda/device/primitives.cuh).
    """

    names: str
    meaning: str
    value: Callable[[T_contra], int | tuple[int, ...]] | None = None
    divides: bool = False

    @property
    def passed(self) -> list[str]:
        """Names of all integers that are passed, multipliers too."""
        ends = ("", "_m") if self.divides else ("",)
        return [name + end for name in self.names.split() for end in ends]

    @property
    def declaration(self) -> str:
        """Its fields in C++."""
        kind = "FastDivmod" if self.divides else "int"
        return f"  // {self.meaning}\n  {kind} {', '.join(self.names.split())};\n"

    def arguments(self, tiling: T_contra, given: Mapping[str, Any]) -> Iterator[Any]:
        """What is passed: integers, or whatever is given."""
        names = self.names.split()
        if self.value is None:
            values: Sequence[Any] = [given[name] if name in given else getattr(tiling, name) for name in names]
        else:
            found = self.value(tiling)
            values = found if isinstance(found, tuple) else (found,)
        for _, value in zip(names, values, strict=True):
            yield from (value, multiplier(value)) if self.divides else (value,)


def arguments(parameters: Sequence[Parameter[T_contra]], tiling: T_contra, **given: Any) -> list[Any]:
    """What a kernel is called with behind its tensors; what a launch has to find out itself is `given`."""
    return [each for parameter in parameters for each in parameter.arguments(tiling, given)]


def declaration(parameters: Sequence[Parameter[Any]]) -> str:
    """C++ of a struct `Geometry`, and of a macro that lists its integers in their order."""
    listed = " ".join(f"X({name})" for each in parameters for name in each.passed)
    return f"#define FIELDS(X) {listed}\nstruct Geometry {{\n{''.join(each.declaration for each in parameters)}}};\n"


def multiplier(divisor: int) -> int:
    """What a multiplication needs to divide by `divisor`, as a signed 32-bit integer."""
    found = (1 << 32) // divisor + 1 if divisor > 1 else 0
    return found - (1 << 32) if found >= 1 << 31 else found


class _Tiling(Protocol):
    @property
    def spec(self) -> ConvSpec: ...


def _epilogue(tiling: _Tiling) -> tuple[int, ...]:
    spec = tiling.spec
    return int(spec.bias), int(spec.residual), int(spec.relu), int(np.float32(spec.relu_max).view(np.int32))


EPILOGUE: Parameter[_Tiling] = Parameter(
    "has_bias has_residual relu relu_max", "What follows the sum; of ReLU's largest value the bits.", _epilogue
)
