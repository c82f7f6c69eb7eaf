"""In which type a model stores its tensors.

Models in half precision are read as float32 models of the same numbers, which every number of theirs is exact in. So
all passes know one type, and batch norms are folded in float32. At the end `store_half` puts the storage type back, or
another that was asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tvm_sparse.conv.dtypes import FLOAT32, HALVES
from tvm_sparse.errors import ModelError


@dataclass(frozen=True)
class Precision:
    """The storage type of a model's tensors, and the element types of its inputs and outputs, in their order."""

    dtype: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @classmethod
    def of(cls, where: str, stored: set[str], inputs: Sequence[str], outputs: Sequence[str]) -> "Precision":
        """That of a model whose parameters and inputs have the types `stored`.

        ModelError where there are float16 and bfloat16 ones.
        """
        halves = [dtype for dtype in HALVES if dtype in stored]
        if len(halves) > 1:
            hint = "convert it to one of them"
            raise ModelError(where, "the model mixes types of half precision", " and ".join(halves), "one", hint)
        return cls(halves[0] if halves else FLOAT32, tuple(inputs), tuple(outputs))

    def cast(self, dtype: str) -> "Precision":
        """That of the model cast to `dtype`: inputs and outputs too, unless they are no floating-point numbers."""

        def changed(types: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(dtype if each in (FLOAT32, *HALVES) else each for each in types)

        return Precision(dtype, changed(self.inputs), changed(self.outputs))
