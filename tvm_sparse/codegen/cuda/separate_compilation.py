"""Separate compilation: CUDA source of large kernels as translation units that are compiled side by side and linked.

A compiler takes about a millisecond for each multiply-add of a folded kernel, and works on one kernel with one core.
But the code of one tile of output channels has nothing to do with that of another: `multistage_pipeline` marks each as
a *region*. `split` outlines every region of a large kernel: it becomes a device function in another translation unit,
and in the kernel the branches are left that call it, so that one launch runs the whole grid as before.

What a call costs is kept away from the code that matters:

* The functions never return, so that they save no registers for their caller: each ends its thread.
* Arguments are passed in shared memory, which every thread writes before it reads. A device function that holds them
  in registers has fewer left than a kernel, which reads them from constant memory when it needs them; so what is used
  behind the last barrier only is read there.
* Pointers are marked as global memory's, as a kernel's are: through others, loads and stores are slower.
* Bias and residual are read as what nothing writes to, as a kernel's pointers have it (`read_once`).

Launch bounds do not reach a function of another translation unit; the same limit is given as a number of registers.

The kernel has the code of its region fetched into the level-2 cache while it waits for the kernel before it. In a model
other kernels have displaced it, and a multiprocessor that executes straight-line code from memory fetches one line
after the other: docs/lab/cuda-folded.md, "When does it pay to prefetch code?".
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tvm.backend.cuda.op import cuda_func_call
from tvm.tirx import Evaluate, SeqStmt, Stmt

from tvm_sparse.codegen.cuda.dependent_launch import WAIT
from tvm_sparse.codegen.cuda.read_once import DEFINITION, read_once
from tvm_sparse.scheduling import code_size
from tvm_sparse.target.gpu import GpuInfo

# Lines around a region; macros without text, so that the source means the same with and without splitting.
BEGIN, END = "tvm_sparse_region_begin", "tvm_sparse_region_end"
_ARGUMENTS = "tvm_sparse_arguments"
_HEAD = re.compile(
    r'^extern "C" __global__ void __launch_bounds__\((?P<threads>\d+)(?:, (?P<blocks>\d+))?\) '
    rf"(?P<name>\w+)\((?P<parameters>[^)]*)\) \{{\n(?:  {WAIT}\(\);\n)?",
    re.MULTILINE,
)
_POINTER = re.compile(r"(?P<type>\w+)\* (?:__restrict__ )?(?P<name>\w+)")
_FORWARD_DECLARATION = re.compile(r'^extern "C" __global__ [^{}]*?;\n', re.MULTILINE)
# Bytes of a region's machine code, defined as its kernel is compiled; 0: nothing is prefetched.
_CODE_BYTES = "tvm_sparse_code_bytes_"
# Blocks of a grid that prefetch: no GPU runs more at a time, and later ones find the code in the cache.
_PREFETCHING_BLOCKS = 512
# Prefetching beyond the code took longer than it saved: what lies there is no memory.
_PREFETCH = f"""
#define tvm_sparse_prefetch_code(region, bytes) \\
  if (blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z) < {_PREFETCHING_BLOCKS}) {{ \\
    size_t code; \\
    asm volatile("mov.u64 %0, " #region ";" : "=l"(code)); \\
    int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); \\
    for (int at = 128 * thread; at < bytes; at += 128 * blockDim.x * blockDim.y * blockDim.z) \\
      asm volatile("prefetch.global.L2 [%0];" :: "l"(code + at)); \\
  }}
"""
# TVM's helpers of vectors of half precision, which are no inline functions: every unit has them.
_HELPER = re.compile(r"^(?=(?:__host__ )?__device__ \w+ \w+\()", re.MULTILINE)
# Around regions: declarations, then branches.
_AROUND = re.compile(
    r"(?P<locals>(?: *(?:extern __shared__|alignas\(\d+\)|float|int) [^;=]*;\n)*)"
    r"(?P<branches>(?: *(?:if \(.*\) \{|\} else \{|\}|)\n)*)"
)


@dataclass(frozen=True)
class TranslationUnit:
    """One of the sources that together make a module, and the compiler's options for it.

    `measures`: it has the sizes of the other units' functions as macros (`size_options`), so it is compiled last.
    """

    source: str
    options: tuple[str, ...] = ()
    measures: bool = False


def region(stmt: Stmt) -> Stmt:
    """`stmt`, marked as a region; what it uses of its kernel are arguments, threads, blocks and arrays."""
    begin, end = (Evaluate(cuda_func_call(name, source_code=f"#define {name}()\n")) for name in (BEGIN, END))
    return SeqStmt([begin, stmt, end])


def split(source: str) -> list[TranslationUnit]:
    """The translation units of a CUDA source, largest first; one, the source itself, where no kernel is large.

    Whether a kernel is split depends on its code alone, so that it runs as fast wherever it was built.
    """
    kernels = [_Kernel.at(source, head) for head in _HEAD.finditer(source)]
    large = [kernel for kernel in kernels if kernel.is_large]
    if not large:
        return [TranslationUnit(source)]
    # Every unit has what surrounds the kernels; the storage of arguments is defined in one, before its first kernel.
    shared = _FORWARD_DECLARATION.sub("", _replaced(source, dict.fromkeys(kernels, "")))
    declared = max(len(kernel.parameters) for kernel in large)
    storage = f"__shared__ size_t {_ARGUMENTS}[{declared}]; }}\n"
    units = [
        TranslationUnit(
            f'{shared}{DEFINITION}extern "C" {{ extern {storage}{text}', (f"-maxrregcount={kernel.registers}",)
        )
        for kernel in large
        for text in _grouped([kernel.function(number) for number in range(len(kernel.regions))])
    ]
    main = _replaced(source, {kernel: kernel.calls() for kernel in large})
    at = main.index('extern "C" __global__')
    units.append(TranslationUnit(f'{main[:at]}{_PREFETCH}extern "C" {{ {storage}{main[at:]}', measures=True))
    return sorted(units, key=lambda unit: -len(unit.source))


def size_options(function_bytes: Mapping[str, int]) -> tuple[str, ...]:
    """The compiler's options that tell a unit which `measures` the bytes of the other units' functions."""
    return tuple(f"-D{_CODE_BYTES}{name}={size}" for name, size in function_bytes.items())


@dataclass(frozen=True, eq=False)
class _Kernel:
    """A kernel in a source, from `start` to `end`: the code of its regions, and what lies around each of them.

    `form` is what lies around in the form that splitting knows, `parameters` (type of what it points to, name) of each
    parameter; None where they are something else.
    """

    head: re.Match[str]
    start: int
    end: int
    regions: list[str]
    around: list[str]
    form: re.Match[str] | None
    parameters: list[tuple[str, str]]

    @classmethod
    def at(cls, source: str, head: re.Match[str]) -> "_Kernel":
        """The kernel whose definition begins with `head`; it ends with the first brace that is not indented."""
        end = source.index("\n}\n", head.end() - 1) + 3
        first, *rest = source[head.end() : end].split(f"{BEGIN}();\n")
        divided = [each.partition(f"{END}();\n") for each in rest]
        around = [first, *(after for *_, after in divided)]
        pointers = [_POINTER.fullmatch(each.strip()) for each in head["parameters"].split(",")]
        parameters = [(each["type"], each["name"]) for each in pointers if each is not None]
        form = _AROUND.fullmatch("\n".join(around)) if len(parameters) == len(pointers) else None
        return cls(head, head.start(), end, [code for code, *_ in divided], around, form, parameters)

    @property
    def is_large(self) -> bool:
        """Whether it is worth splitting, and of the form that splitting knows."""
        lines = sum(code.count("\n") for code in self.regions)
        return len(self.regions) > 1 and lines >= code_size.SPLIT_LINES and self.form is not None

    @property
    def registers(self) -> int:
        """What the compiler makes of its launch bounds: a linker refuses functions with more than their kernel."""
        return int(GpuInfo.launch_registers(int(self.head["threads"]), int(self.head["blocks"] or 1)))

    def _name(self, number: int) -> str:
        return f"{self.head['name']}_region_{number}"

    def _signature(self, number: int) -> str:
        return f'extern "C" __device__ __noinline__ __attribute__((noreturn)) void {self._name(number)}()'

    def function(self, number: int) -> str:
        """The device function of one region."""
        assert self.form is not None
        code = self.regions[number]
        before, _, _ = code.rpartition("__syncthreads()")
        macros, pointers = [], []
        for index, (kind, name) in enumerate(self.parameters):
            value = f"(({kind}*)__cvta_global_to_generic({_ARGUMENTS}[{index}]))"
            if name in before:
                pointers.append(f"  {kind}* __restrict__ {name} = {value};\n")
            else:
                macros.append((name, value))
                code = read_once(code, kind, name)
        return "".join(
            [
                *(f"#define {name} {value}\n" for name, value in macros),
                f"{self._signature(number)} {{\n",
                self.form["locals"],
                *pointers,
                code,
                '\n  asm volatile("exit;");\n  __builtin_unreachable();\n}\n',
                *(f"#undef {name}\n" for name, _ in macros),
            ]
        )

    def calls(self) -> str:
        """The kernel with a call in the place of each region, behind the declarations of these."""
        numbers = range(len(self.regions))
        wait = f"  {WAIT}();\n"
        head, does_wait = self.head[0].removesuffix(wait), self.head[0].endswith(wait)
        stores = [
            f"  {_ARGUMENTS}[{index}] = __cvta_generic_to_global({name});\n"
            for index, (_, name) in enumerate(self.parameters)
        ]
        calls = [*(self._call(number, wait if does_wait else "") for number in numbers), ""]
        body = [text for pair in zip(self.around, calls, strict=True) for text in pair]
        return "".join([*(self._declaration(number) for number in numbers), head, *stores, *body])

    def _declaration(self, number: int) -> str:
        size = f"{_CODE_BYTES}{self._name(number)}"
        return f"#ifndef {size}\n#define {size} 0\n#endif\n{self._signature(number)};\n"

    def _call(self, number: int, wait: str) -> str:
        name = self._name(number)
        return f"tvm_sparse_prefetch_code({name}, {_CODE_BYTES}{name})\n{wait}{name}();\n"


def _replaced(source: str, texts: dict[_Kernel, str]) -> str:
    """`source` for a unit among others: the definitions of kernels, in their order, replaced, and helpers inline."""
    found, end = [], 0
    for kernel, text in texts.items():
        found += [source[end : kernel.start], text]
        end = kernel.end
    return _HELPER.sub("inline ", "".join([*found, source[end:]]))


def _grouped(functions: list[str]) -> list[str]:
    """Neighbours joined until each text has `code_size.UNIT_LINES` lines, but perhaps the last."""
    groups = [""]
    for text in functions:
        if groups[-1].count("\n") >= code_size.UNIT_LINES:
            groups.append("")
        groups[-1] += text
    return groups
