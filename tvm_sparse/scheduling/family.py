"""KernelFamily: one way to compute a convolution, and all that the rest of the compiler asks about it, in one place."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from tvm_sparse.conv.dtypes import BFLOAT16, FLOAT16, FLOAT32
from tvm_sparse.conv.error_bounds import CORRECTED_TF32, EXACT, HALF_SUMS, ONE_HALF, TENSOR_CORES, TF32, THREE_HALF

if TYPE_CHECKING:
    # A log is read without TVM.
    from tvm.target import Target

    from tvm_sparse.conv.sparsity import SparsityPattern
    from tvm_sparse.conv.spec import ConvSpec
    from tvm_sparse.scheduling.cpu.blocked_space import BlockedSpace
    from tvm_sparse.scheduling.cpu.expansion import ExpandedSpace
    from tvm_sparse.scheduling.cuda.library.kernel_library import KernelLibrary
    from tvm_sparse.scheduling.space import Decisions, Space

    Spaces = Callable[[ConvSpec, SparsityPattern, Target], list[Space]]
    Named = Callable[[ConvSpec, SparsityPattern, Target, str], Space | None]

# The variant of spaces whose kernels may round their inputs to TF32.
TF32_VARIANT = "tf32"
# Variants of spaces whose kernels multiply half-precision numbers on tensor cores, by the type of their tensors.
HALF_VARIANTS = {FLOAT16: "fp16", BFLOAT16: "bf16"}
# What a gain must be for which a compiler runs for each weight, as a factor.
NVCC_PRICE = 1.05
# How these compute.
HALF_ARITHMETIC = dict.fromkeys(HALF_VARIANTS.values(), TENSOR_CORES)
# Float32 numbers as tensor cores take them, rounded or in parts, in words for a decision table.
_ROUNDED_IN_WORDS = {TF32: "TF32", ONE_HALF: "1xFP16"}
_PARTS_IN_WORDS = {THREE_HALF: "3xFP16", CORRECTED_TF32: "TF32+BF16"}


class Code(Enum):
    """What is built for a layer's kernel."""

    # Code with the weight in it: the longer to build, the more non-zeros.
    FOLDED = "folded"
    # Code of its own, which reads the weight as data.
    OWN = "own"
    # Nothing: kernels launch code of ours that is compiled once for all layers.
    SHARED = "shared"
    # Nothing: kernels are calls of a library of others.
    CALLED = "called"


def without_volumes(spec: "ConvSpec", _decisions: "Decisions | None") -> "ConvSpec":
    """`spec` as it is without volumes, whose maps most kernels do not read in place."""
    return replace(spec, volumes=None)


@dataclass(frozen=True)
class KernelFamily:
    """A family lives in a file of `tvm_sparse.schedules`, whose tuple `FAMILIES` lists it; see the package.

    * `name`: in logs, tables and files alike: the name of its file.
    * `target`: the target kind that it is for.
    * `spaces`: the spaces of a convolution, most promising first; raises `NotApplicable`, with the rule that failed as
      a sentence, where there are none. Others ask `offered` or `can_serve`, which return the sentence.
    * `named`: one space by its variant without the others, also such as are not offered to a search; None where there
      is none.
    * `code`: what is built for a layer.
    * `arithmetic`: how its kernels compute, as `conv.reference` calls it: what bound they are held to.
    * `arithmetic_of_variants`: the same for variants that compute otherwise.
    * `titles`: what people call its variants, where that is not their name.
    * `why_not_here`: why this machine cannot run its kernels, whatever the target, as a sentence; empty if nothing but
      the target counts.
    * `is_dense`: whether kernels ignore the zeros.
    * `is_predicted`: whether its estimates are good enough to take a kernel that nobody has timed.
    * `asked_for_only`: whether it is searched only where it is named.
    * `computes_pool`: whether kernels compute the max pool behind a convolution too, so that they serve no other layer.
    * `computes_before`: whether kernels compute the layers in front of a convolution too, by whose shape these are
      known, and read and write NHWC.
    * `of_zeros`: whether kernels write the bias alone, as they serve layers whose weights are all zero.
    * `is_generated`: whether MetaSchedule makes its spaces itself, so that a decision is a whole trace.
    * `takes_any_zeros`: whether kernels read any weight as data, and take longest for one without zeros, so that a
      record of one without zeros says what others take at most.
    * `libraries`: of kernels in CUDA C++ that its own launch (`library_call`).
    * `blocked`: spaces of its convolutions whose tensors lie in blocks of channels; the first that can write them is
      taken.
    * `takes_bytes`: whether in a quantised network its kernels read bytes, and write them, instead of float32.
    * `reads_volumes`: of a convolution that has `volumes`, the one that its kernels of some decisions can compute: with
      these, with those within, or without. Of decisions that are None: of those that can most.
    * `joined`: the space that computes an expansion too, and the convolution behind it as this family does; None if
      none does.
    """

    name: str
    target: str
    spaces: "Spaces"
    named: "Named | None" = None
    code: Code = Code.OWN
    arithmetic: str = EXACT
    arithmetic_of_variants: Mapping[str, str] = field(default_factory=dict)
    titles: Mapping[str, str] = field(default_factory=dict)
    why_not_here: Callable[[], str] = str
    is_dense: bool = False
    is_predicted: bool = False
    asked_for_only: bool = False
    computes_pool: bool = False
    computes_before: bool = False
    of_zeros: bool = False
    is_generated: bool = False
    takes_any_zeros: bool = False
    libraries: "tuple[KernelLibrary, ...]" = ()
    blocked: "tuple[type[BlockedSpace], ...]" = ()
    takes_bytes: bool = False
    reads_volumes: "Callable[[ConvSpec, Decisions | None], ConvSpec]" = without_volumes
    joined: "type[ExpandedSpace] | None" = None

    @property
    def computes_more(self) -> bool:
        """Whether kernels compute more than a layer, so that their times say nothing of it alone."""
        return self.computes_pool or self.computes_before

    @property
    def is_folded(self) -> bool:
        """Whether the weight is in the code of kernels."""
        return self.code is Code.FOLDED

    @property
    def is_compiled(self) -> bool:
        """Whether each kernel has code of its own."""
        return self.code in (Code.FOLDED, Code.OWN)

    @property
    def build_price(self) -> float:
        """How many times as fast kernels must be where others would do: nvcc takes seconds for each weight."""
        return NVCC_PRICE if self.is_folded and self.target == "cuda" else 1.0

    @property
    def is_library(self) -> bool:
        """Whether kernels are calls of a library of others, so that no compiler runs for them."""
        return self.code is Code.CALLED

    def arithmetic_of(self, variant: str) -> str:
        """How kernels of a variant compute."""
        return self.arithmetic_of_variants.get(variant, self.arithmetic)

    def can_serve(self, spec: "ConvSpec", pattern: "SparsityPattern", target: "Target") -> str:
        """Why it has no space for a convolution, as a sentence; empty where it has one."""
        return self.offered(spec, pattern, target)[1]

    def offered(self, spec: "ConvSpec", pattern: "SparsityPattern", target: "Target") -> tuple[list["Space"], str]:
        """`spaces`, and the sentence of `can_serve`."""
        # A log is read without TVM.
        from tvm_sparse.scheduling.space import NotApplicable

        try:
            if spec.volumes is not None and self.reads_volumes(spec, None) != spec:
                raise NotApplicable("its kernels do not read the maps of volumes in place")
            return self.spaces(spec, pattern, target), ""
        except NotApplicable as reason:
            return [], str(reason)


def schedule_of(name: str) -> str:
    """The schedule that a space belongs to: its name without the variant."""
    return name.partition(":")[0]


def precision_in_words(arithmetic: str, dtype: str) -> str:
    """What kernels compute in and how their tensors are stored, for a decision table."""
    if arithmetic in _ROUNDED_IN_WORDS:
        return _ROUNDED_IN_WORDS[arithmetic]
    if arithmetic in _PARTS_IN_WORDS:
        return _PARTS_IN_WORDS[arithmetic]
    if arithmetic == HALF_SUMS:
        return f"{dtype}, sums too"
    return FLOAT32 if dtype == FLOAT32 else f"{dtype}, {FLOAT32} sums"


def is_in_parts(arithmetic: str) -> bool:
    """Whether float32 numbers are multiplied in parts that tensor cores take."""
    return arithmetic in _PARTS_IN_WORDS
