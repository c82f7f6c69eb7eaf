"""What goes into a compiled model and what comes out: names, shapes and element types."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import tvm_ffi

from tvm_sparse.errors import InputError, printable

_ELEMENT_TYPE = re.compile(r"bool|bfloat16|float(16|32|64)|u?int(8|16|32|64)")


@dataclass(frozen=True)
class TensorSpec:
    """One input or output: its name, shape and element type."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{printable(self.name)} {self.dtype}[{', '.join(map(str, self.shape))}]"

    @cached_property
    def size_bytes(self) -> int:
        """Of all elements."""
        return math.prod(self.shape) * tvm_ffi.dtype(self.dtype).itemsize


def _checked(spec: TensorSpec) -> TensorSpec:
    """`spec`, which a file may have changed."""
    if not (isinstance(spec.dtype, str) and _ELEMENT_TYPE.fullmatch(spec.dtype)):
        raise ValueError(f"{spec.dtype!r} is no element type")
    if not all(type(size) is int and size >= 0 for size in spec.shape):
        raise ValueError(f"{list(spec.shape)} is no shape")
    return spec


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of a model; with `single` it returns its one output itself, not a list."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    single: bool

    def in_order(self, given: Mapping[str, Any] | Sequence[Any], where: str = "inputs") -> list[Any]:
        """Inputs by name or by place as the model takes them.

        Raises
        ------
        InputError
            There are too many or too few, or names of others.
        """
        if not isinstance(given, Mapping):
            if len(given) != len(self.inputs):
                raise InputError(where, "wrong number of tensors", len(given), f"{len(self.inputs)} ({self._wanted})")
            return list(given)
        names = [spec.name for spec in self.inputs]
        if missing := [name for name in names if name not in given]:
            found = ", ".join(map(str, given)) or "nothing"
            raise InputError(where, f"lacks input {', '.join(missing)}", found, self._wanted)
        if unknown := sorted(map(str, set(given) - set(names))):
            raise InputError(where, "no such input", ", ".join(unknown), self._wanted)
        return [given[name] for name in names]

    @property
    def _wanted(self) -> str:
        return ", ".join(map(str, self.inputs))

    def returned(self, results: list[Any], is_named: bool) -> Any:
        """What a call gives back: outputs by name, or the only one, or all."""
        if is_named:
            return dict(zip((spec.name for spec in self.outputs), results, strict=True))
        return results[0] if self.single else results

    def to_json(self) -> dict[str, Any]:
        """As JSON values; `from_json` reads them back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Signature":
        """Rebuild a signature from `to_json`'s output; KeyError, TypeError, ValueError where it is no such output."""

        def specs(items: list[dict[str, Any]]) -> tuple[TensorSpec, ...]:
            return tuple(_checked(TensorSpec(item["name"], tuple(item["shape"]), item["dtype"])) for item in items)

        return cls(specs(data["inputs"]), specs(data["outputs"]), bool(data["single"]))
