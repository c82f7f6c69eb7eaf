"""KernelLibrary: kernels in CUDA C++ that are compiled once for an architecture and for all layers."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from tvm_sparse.conv.dtypes import BFLOAT16, FLOAT16, FLOAT32
from tvm_sparse.scheduling.cuda.library.parameters import Parameter, declaration

# Threads of a warp.
WARP = 32
# How names of kernels and libraries end that there are of each type of tensors: one model may use several.
OF_TYPE = {FLOAT32: "", FLOAT16: "_half", BFLOAT16: "_bfloat16"}
# Names that are defined for the C++ of each type.
DEFINED = {FLOAT32: (), FLOAT16: ("TVM_SPARSE_HALF",), BFLOAT16: ("TVM_SPARSE_HALF", "TVM_SPARSE_BFLOAT16")}


class CppKernel(NamedTuple):
    """A kernel: its name, the C++ function that it calls, and how many blocks should share a multiprocessor."""

    name: str
    function: str
    blocks: int = 1


@dataclass(frozen=True)
class KernelLibrary:
    """What `codegen.cuda.kernel_library` needs to compile kernels; functions that launch them carry it as `text`.

    * `name`: of the library: its family's, and the type of its tensors where there are several.
    * `file`: in codegen/cuda, with what it includes.
    * `kernels`: all of them.
    * `parameters`: C++ that declares the integers which kernels take behind their tensors.
    * `integers`: how many these are.
    * `defined`: names that are defined for the file.
    * `copies`: how the names of each copy's kernels begin, the first being those in `kernels`: names that differ by a
      digit.
    * `has_warpgroups`: whether warpgroups multiply, which only GPUs of exactly the target's architecture do
      (``sm_90a``).
    """

    name: str
    file: str
    kernels: tuple[CppKernel, ...]
    parameters: str
    integers: int
    defined: tuple[str, ...] = ()
    copies: tuple[str, ...] = ("",)
    has_warpgroups: bool = False

    @classmethod
    def of(
        cls, name: str, file: str, kernels: Iterable[CppKernel], parameters: Sequence[Parameter[Any]], **others: Any
    ) -> "KernelLibrary":
        """One whose kernels take `parameters`."""
        integers = sum(len(each.passed) for each in parameters)
        return cls(name, file, tuple(kernels), declaration(parameters), integers, **others)

    @property
    def names(self) -> list[str]:
        """Of its kernels."""
        return [each.name for each in self.kernels]

    def only(self, kernel: str) -> "KernelLibrary":
        """One of its kernels alone, which compiles in a second or two; all of them take up to fifteen."""
        (found,) = (each for each in self.kernels if each.name == kernel)
        return replace(self, kernels=(found,))

    @property
    def text(self) -> str:
        """All of it."""
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> "KernelLibrary":
        """The library that `text` is of."""
        fields: dict[str, Any] = json.loads(text)
        for name in ("defined", "copies"):
            fields[name] = tuple(fields[name])
        fields["kernels"] = tuple(CppKernel(*each) for each in fields["kernels"])
        return cls(**fields)
