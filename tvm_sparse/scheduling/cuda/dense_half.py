"""What families of dense kernels in half precision have in common: one space for a convolution, whatever its zeros."""

from collections.abc import Callable, Mapping
from typing import Any

from tvm.target import Target

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.storage import is_half
from tvm_sparse.scheduling.cuda.library.kernel_library import KernelLibrary
from tvm_sparse.scheduling.cuda.library.library_space import LibrarySpace, offered, why_too_old
from tvm_sparse.scheduling.family import HALF_VARIANTS, Code, KernelFamily
from tvm_sparse.scheduling.space import NotApplicable, Space
from tvm_sparse.target.gpu import GpuInfo, gpu_info


def why_not_half(spec: ConvSpec, gpu: GpuInfo) -> str:
    """Why none of these families serves a convolution on this GPU, as a sentence, or ""."""
    return why_too_old(gpu) or (
        "" if is_half(spec.dtype) else f"its tensors are {spec.dtype}, and only half precision is served"
    )


def half_family(
    name: str,
    space: Callable[[str, ConvSpec, GpuInfo], LibrarySpace[Any]],
    why_not_served: Callable[[ConvSpec, GpuInfo], str],
    libraries: Mapping[str, KernelLibrary],
    **arithmetic: Any,
) -> KernelFamily:
    """The family of the kernels of `space`; not applicable where `why_not_served` has a sentence."""

    def spaces(spec: ConvSpec, _pattern: SparsityPattern, target: Target) -> list[Space]:
        gpu = gpu_info(target)
        if reason := why_not_served(spec, gpu):
            raise NotApplicable(reason)
        return list[Space](offered([space(name, spec, gpu)], gpu))

    def named(spec: ConvSpec, _pattern: SparsityPattern, target: Target, variant: str) -> Space | None:
        gpu = gpu_info(target)
        is_served = variant == HALF_VARIANTS.get(spec.dtype) and not why_not_served(spec, gpu)
        return space(name, spec, gpu) if is_served else None

    held = tuple(libraries.values())
    return KernelFamily(
        name, "cuda", spaces, named, code=Code.SHARED, takes_any_zeros=True, libraries=held, **arithmetic
    )
