"""CUDA source of large kernels as parts that are compiled side by side and linked.

A compiler takes about a millisecond for each multiply-add of a folded kernel, and works on one kernel with one core.
But the code of one tile of output channels has nothing to do with that of another: `MakeRings` marks each as a *piece*.
`split` makes every piece of a large kernel a device function in a source of its own, and leaves in the kernel the
branches that call them, so that one launch runs the whole grid as before.

What a call costs is kept away from the code that matters:

* The functions never return, so that they save no registers for their caller: each ends its thread.
* Arguments are passed in shared memory, which every thread writes and reads for itself. A device function that holds
  them in registers has fewer left than a kernel, which reads them from constant memory when it needs them; so what is
  used behind the last barrier only is read there.
* Pointers are marked as global memory's, as a kernel's are: through others, loads and stores are slower.

Launch bounds do not reach a function of another source; the same limit is given as a number of registers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tvm.backend.cuda.op import cuda_func_call
from tvm.tirx import Evaluate, SeqStmt, Stmt

# Lines around a piece; macros without text, so that the source means the same with and without splitting.
BEGIN, END = "tvm_sparse_piece_begin", "tvm_sparse_piece_end"
# Lines of a kernel's marked code, about two a multiply-add, from which it is split: half a minute of one core.
SPLIT_LINES = 60_000
# Lines of a part at least: smaller pieces of one kernel share a source, as each costs half a second to begin.
PART_LINES = 8_000
# Registers of a multiprocessor, those a thread may have, and in which steps.
_REGISTERS, _MAX_REGISTERS, _STEP = 65536, 255, 8

_ARGUMENTS = "tvm_sparse_arguments"
_KERNEL = re.compile(
    r'^extern "C" __global__ void __launch_bounds__\((?P<threads>\d+)(?:, (?P<blocks>\d+))?\) '
    r"(?P<name>\w+)\((?P<parameters>[^)]*)\) \{\n(?P<body>.*?)^\}\n",
    re.MULTILINE | re.DOTALL,
)
_DECLARATION = re.compile(r'^extern "C" __global__ [^{}]*?;\n', re.MULTILINE)
_PIECE = re.compile(rf"^ *{BEGIN}\(\);\n(?P<code>.*?)^ *{END}\(\);\n", re.MULTILINE | re.DOTALL)
# What may come before the branches: declarations.
_LOCALS = re.compile(r"(?: *(?:extern __shared__|alignas\(\d+\)|float|int) [^;=]*;\n)*")
_POINTER = re.compile(r"(?P<type>\w+)\* (?:__restrict__ )?(?P<name>\w+)")


@dataclass(frozen=True)
class Part:
    """One of the sources that together make a module, and the compiler's options for it."""

    source: str
    options: tuple[str, ...] = ()


def piece(stmt: Stmt) -> Stmt:
    """`stmt`, marked as a piece; what it uses of its kernel are arguments, threads, blocks and arrays."""
    return SeqStmt([_marker(BEGIN), stmt, _marker(END)])


def _marker(name: str) -> Stmt:
    return Evaluate(cuda_func_call(name, source_code=f"#define {name}()\n"))


def split(source: str) -> list[Part]:
    """The parts of a CUDA source, largest first; one, the source itself, where no kernel is large.

    Whether a kernel is split depends on its code alone, so that it runs as fast wherever it was built.
    """
    kernels = [kernel for kernel in _KERNEL.finditer(source) if _is_large(kernel)]
    if not kernels:
        return [Part(source)]
    shared = _DECLARATION.sub("", _KERNEL.sub("", source))
    declared = max(kernel["parameters"].count(",") + 1 for kernel in kernels)
    storage = f"__shared__ size_t {_ARGUMENTS}[{declared}]; }}\n"
    parts, main, end = [], [], 0
    for kernel in kernels:
        functions = [_function(kernel, number, each["code"]) for number, each in enumerate(_pieces(kernel))]
        options = (f"-maxrregcount={_registers(kernel)}",)
        parts += [Part(f'{shared}extern "C" {{ extern {storage}{text}', options) for text in _grouped(functions)]
        main += [source[end : kernel.start()], _calls(kernel)]
        end = kernel.end()
    # The storage is declared before the first kernel and nothing else.
    main.append(source[end:])
    text = "".join(main)
    at = text.index('extern "C" __global__')
    parts.append(Part(f'{text[:at]}extern "C" {{ {storage}{text[at:]}'))
    return sorted(parts, key=lambda part: -len(part.source))


def _pieces(kernel: re.Match[str]) -> list[re.Match[str]]:
    return list(_PIECE.finditer(kernel["body"]))


def _is_large(kernel: re.Match[str]) -> bool:
    """Whether a kernel is worth splitting, and of the form that splitting knows."""
    pieces = _pieces(kernel)
    lines = sum(each["code"].count("\n") for each in pieces)
    before = kernel["body"][: pieces[0].start()] if pieces else ""
    rest = before[_LOCALS.match(before).end() :]  # type: ignore[union-attr]
    branches = all(re.fullmatch(r" *(if \(.*\) \{|\} else \{|\})", line) for line in rest.splitlines())
    parameters = all(_POINTER.fullmatch(each.strip()) for each in kernel["parameters"].split(","))
    return len(pieces) > 1 and lines >= SPLIT_LINES and branches and parameters


def _parameters(kernel: re.Match[str]) -> list[tuple[str, str]]:
    """(type of what it points to, name) of each parameter."""
    found = (_POINTER.fullmatch(each.strip()) for each in kernel["parameters"].split(","))
    return [(each["type"], each["name"]) for each in found if each is not None]


def _function(kernel: re.Match[str], number: int, code: str) -> str:
    """The device function of one piece."""
    local = _LOCALS.match(kernel["body"])[0]  # type: ignore[index]
    last_barrier = code.rfind("__syncthreads()")
    macros, pointers = [], []
    for index, (kind, name) in enumerate(_parameters(kernel)):
        value = f"(({kind}*)__cvta_global_to_generic({_ARGUMENTS}[{index}]))"
        if re.search(rf"\b{name}\b", code[: max(last_barrier, 0)]):
            pointers.append(f"  {kind}* __restrict__ {name} = {value};\n")
        else:
            macros.append((name, value))
    return "".join(
        [
            *(f"#define {name} {value}\n" for name, value in macros),
            f"{_signature(kernel, number)} {{\n",
            local,
            *pointers,
            code,
            '  asm volatile("exit;");\n  __builtin_unreachable();\n}\n',
            *(f"#undef {name}\n" for name, _ in macros),
        ]
    )


def _signature(kernel: re.Match[str], number: int) -> str:
    return f'extern "C" __device__ __noinline__ __attribute__((noreturn)) void {kernel["name"]}_piece_{number}()'


def _calls(kernel: re.Match[str]) -> str:
    """The kernel with a call in the place of each piece, behind the declarations of these."""
    numbers = iter(range(len(_pieces(kernel))))
    head, body = kernel[0][: -len(kernel["body"]) - 2], kernel["body"]
    declarations = [f"{_signature(kernel, number)};\n" for number in range(len(_pieces(kernel)))]
    stores = [
        f"  {_ARGUMENTS}[{index}] = __cvta_generic_to_global({name});\n"
        for index, (_, name) in enumerate(_parameters(kernel))
    ]
    calls = _PIECE.sub(lambda _: f"{kernel['name']}_piece_{next(numbers)}();\n", body)
    return "".join([*declarations, head, *stores, calls, "}\n"])


def _registers(kernel: re.Match[str]) -> int:
    """What the compiler makes of a kernel's launch bounds: registers that a thread may have."""
    warps = -(-int(kernel["threads"]) // 32) * int(kernel["blocks"] or 1)
    return min(_REGISTERS // (32 * warps) // _STEP * _STEP, _MAX_REGISTERS)


def _grouped(functions: list[str]) -> list[str]:
    """Neighbours joined until each text has `PART_LINES` lines, but perhaps the last."""
    groups = [""]
    for text in functions:
        if groups[-1].count("\n") >= PART_LINES:
            groups.append("")
        groups[-1] += text
    return groups
