"""What becomes of a kernel, as text: its compute, its schedule, its folded code and the source generated from that."""

import re
from collections.abc import Callable

import tvm
from tvm import tirx
from tvm.target import Target

from tvm_sparse.codegen import lowering
from tvm_sparse.codegen.cuda import kernel_library
from tvm_sparse.codegen.cuda.nvcc import source_only
from tvm_sparse.scheduling.annotations import KERNEL_LIBRARY, WEIGHT_ATTRIBUTE
from tvm_sparse.scheduling.cuda.library.kernel_library import KernelLibrary
from tvm_sparse.scheduling.kernel import Kernel
from tvm_sparse.scheduling.space import Space, WrittenSpace

NO_COMPUTE = "# no compute: the kernel is written for its decisions, see the stage scheduled\n"

# Of LLVM's IR: a kernel's constants or a function, and the head of one that TVM puts around a kernel.
_FUNCTION = re.compile(r"^@(?!\.str|__TVM|llvm\.)[^\n]*\n|^define .*?^}\n", re.MULTILINE | re.DOTALL)
_AROUND = re.compile(r".*@__tvm_(ffi|set_raised)_|.* section \"\.text\.tvm\.fp16\.conv\"")


def stage_names(target: Target) -> list[str]:
    """The stages of a kernel for `target`, in the order in which it goes through them."""
    return ["te", "scheduled", "folded", target.kind.name]


def stages(space: Space, kernel: Kernel, target: Target) -> dict[str, Callable[[], str]]:
    """Name -> text of each stage of `kernel`, one of `space`; a text is made when it is called for.

    * ``te``: the dense compute, as TVMScript; a comment where a kernel is written for its decisions, and none is
      scheduled;
    * ``scheduled``: the same with tiles, threads and staging, and the weight bound to it; or what is written;
    * ``folded``: what `FoldWeights` leaves, straight-line multiply-adds with weights as constants, before host and
      device code are split; of a schedule that reads its weights as data, its loops;
    * ``cuda`` or ``llvm``: the source as the compiler is given it, or of LLVM's IR the functions that
      compute.

    CUDA source needs neither a GPU nor a CUDA compiler. BuildError, when called for, where the kernel cannot be folded
    or built.
    """
    source = {"cuda": _cuda_source, "llvm": _llvm_ir}[target.kind.name]
    return {
        "te": lambda: NO_COMPUTE if isinstance(space, WrittenSpace) else _script(space.func),
        "scheduled": lambda: _script(kernel.func),
        "folded": lambda: _script(folded(kernel.func, target)),
        target.kind.name: lambda: source(kernel.func, target),
    }


def _script(func: tirx.PrimFunc) -> str:
    """TVMScript without the attributes that the code shows anyway, or that name this machine."""
    for name in (WEIGHT_ATTRIBUTE, KERNEL_LIBRARY, "target"):
        func = func.without_attr(name)
    return f"{func.script()}\n"


def folded(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """A scheduled function as `FoldWeights` leaves it, all multiply-adds written."""
    bind = tirx.transform.BindTarget(target if target.host is not None else target.with_host(Target("llvm")))
    with target:
        return tvm.transform.Sequential([bind, *lowering.folding_passes()])(tvm.IRModule.from_expr(func))["main"]


def _cuda_source(func: tirx.PrimFunc, target: Target) -> str:
    if KERNEL_LIBRARY in func.attrs:
        return kernel_library.source(KernelLibrary.of_text(str(func.attrs[KERNEL_LIBRARY])))
    lowering.register()
    with target, source_only():
        built = tvm.compile(tvm.IRModule.from_expr(func), target, tir_pipeline=lowering.PIPELINE)
    if not built.mod.imports:
        return "// no code of its own: a library is called, see the stage before\n"
    return str(built.mod.imports[0].inspect_source())


def _llvm_ir(func: tirx.PrimFunc, target: Target) -> str:
    """Constants and what computes, without functions that check arguments, raise errors and convert numbers."""
    source = str(lowering.build(func, target).inspect_source("ll"))
    functions = [each for each in _FUNCTION.findall(source) if not _AROUND.match(each.partition("\n")[0])]
    # A line of assembly each, which LLVM prints as one.
    return "\n".join(functions).replace("\\0A", "\n    ")
