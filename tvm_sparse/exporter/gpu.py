"""What a plan says of a GPU: its constants, its code, and how kernels are launched."""

import re
from dataclasses import dataclass

from tvm_sparse.cudnn.packed_function import CONVOLUTION, LAYOUT_CHANGE
from tvm_sparse.exporter.bytecode import Kernel, Program, UnknownBytecode, calls_tvm
from tvm_sparse.exporter.constants import constants_of
from tvm_sparse.exporter.cudnn_work import Work, works_in
from tvm_sparse.exporter.plan import GPU_ALIGNMENT, aligned

# What the driver loads; another format is source, where no CUDA compiler was at hand.
_LOADED = {"cubin", "fatbin", "ptx"}
# DLPack's codes and bits of arguments, by the letters of `sources/gpu.h`; a pointer is a handle.
_ARGUMENTS = {(3, 64): "p", (0, 64): "p", (1, 64): "p", (0, 32): "i", (1, 32): "i", (2, 32): "f", (2, 64): "d"}
# As many as `sources/gpu.h` has room for; CUDA's own limit was 4,096 bytes.
_MOST_ARGUMENTS = 1024
_AXES = ("blockIdx", "threadIdx", "clusterCtaIdx")
_LAUNCH = {f"{name}.{axis}": str(3 * at + i) for at, name in enumerate(_AXES) for i, axis in enumerate("xyz")}
_LAUNCH |= {"tirx.use_dyn_shared_memory": "s", "tirx.use_cooperative_launch": "c"}
# TVM spells it so.
_LAUNCH["tirx.use_programtic_dependent_launch"] = "e"

# Symbols of functions that look up others by their names, and names that `sources/gpu_model.c` knows.
_CALLED = re.compile(rb"__tvm_func_handle_init\.([^\0]+)\0")
_GIVEN = {"__tvm_set_device", CONVOLUTION, LAYOUT_CHANGE}


@dataclass(frozen=True)
class GpuPart:
    """The part of a plan.

    * `arch`: such as ``sm_90a``.
    * `constants`: where each is in the library's data, where it goes on the GPU, its bytes; `constant_bytes`: of all.
    * `modules`: where each is in the library's data, and its bytes.
    * `kernels`: name, number of its module, letters of its arguments and of its launch; sorted by name.
    * `works`: what cuDNN does.
    """

    arch: str
    constants: tuple[tuple[int, int, int], ...]
    constant_bytes: int
    modules: tuple[tuple[int, int], ...]
    kernels: tuple[tuple[str, int, str, str], ...]
    works: tuple[Work, ...]

    @property
    def places(self) -> dict[int, int]:
        """Where each constant lies on the GPU, by its place in the library's data."""
        return {start: to for start, to, _ in self.constants}


def gpu_part(program: Program, arch: str, code: bytes) -> GpuPart:
    """The part for `program` of the library `code`.

    UnknownBytecode where its code cannot be loaded or launched without TVM, or calls what is no kernel of its own and
    not cuDNN. ValueError, KeyError or TypeError where what it asks of cuDNN cannot be read.
    """
    constants, end = [], 0
    for each in constants_of(program):
        constants.append((each.offset, end, each.size_bytes))
        end += aligned(each.size_bytes, GPU_ALIGNMENT)
    for module in program.modules:
        if module.format not in _LOADED:
            # TVM leaves it so where it finds no driver, compiler or not.
            raise UnknownBytecode("its kernels are CUDA source, as without a GPU", "compile the model where a GPU is")
    kernels = sorted(_launched(kernel, at) for at, module in enumerate(program.modules) for kernel in module.kernels)
    called = {each.decode() for each in _CALLED.findall(code)}
    if unknown := sorted(called - {kernel[0] for kernel in kernels} - _GIVEN):
        raise calls_tvm(f"its code calls {', '.join(unknown)}")
    modules = tuple((each.offset, each.size_bytes) for each in program.modules)
    return GpuPart(arch, tuple(constants), end, modules, tuple(kernels), works_in(code))


def _launched(kernel: Kernel, module: int) -> tuple[str, int, str, str]:
    unknown = [each for each in kernel.launch if each not in _LAUNCH]
    unknown += [f"{code}:{bits}" for code, bits in kernel.arguments if (code, bits) not in _ARGUMENTS]
    if len(kernel.arguments) > _MOST_ARGUMENTS:
        unknown.append(f"{len(kernel.arguments)} arguments")
    if unknown:
        raise UnknownBytecode(f"kernel {kernel.name} is launched with {unknown[0]}")
    arguments = "".join(_ARGUMENTS[each] for each in kernel.arguments)
    return kernel.name, module, arguments, "".join(_LAUNCH[each] for each in kernel.launch)
