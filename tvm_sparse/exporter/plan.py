"""The plan of a model: which kernels run, one after the other, on which fixed pieces of memory.

It is what TVM's virtual machine does in each call, done once. All shapes are known, so nothing is left to decide.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import tvm_ffi

from tvm_sparse.exporter.bytecode import Constant, Program, Register, UnknownBytecode, calls_tvm
from tvm_sparse.runtime.gpu.call_order import CallOrder, Span
from tvm_sparse.runtime.signature import Signature
from tvm_sparse.runtime.workspace import NEXT_CALL

# Compiled code reads and writes tensors with vector instructions that need it; on a GPU, TVM's own tensors have it.
ALIGNMENT, GPU_ALIGNMENT = 64, 256


def aligned(size_bytes: int, alignment: int = ALIGNMENT) -> int:
    """The next multiple of `alignment`."""
    return -(-size_bytes // alignment) * alignment


class Base(IntEnum):
    """What a tensor lies in."""

    WORKSPACE, CONSTANTS, INPUT = 0, 1, 2


@dataclass(frozen=True)
class Tensor:
    """`offset` bytes into its `base`; `number` says which input, and until all have their places which piece of it.

    A constant's number is where the byte code has it.
    """

    base: Base
    number: int
    offset: int
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Step:
    """A call of a kernel; arguments are tensors, whole numbers and floats.

    `after`: where branches run side by side, the numbers of the steps that it runs after; none: of the one before it.
    """

    kernel: str
    arguments: tuple[Any, ...]
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class Plan:
    """Inputs, steps, results, that of index checks last, and how large the workspace is.

    `ends`: the numbers of the steps that no other runs after; none where all run in a row.
    """

    inputs: tuple[Tensor, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Tensor, ...]
    workspace_bytes: int
    ends: tuple[int, ...] = ()

    def with_places(self, base: Base, places: Mapping[int, int]) -> "Plan":
        """The same, where what lies in `base` has its place there, by number."""

        def placed(values: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(
                replace(each, number=0, offset=each.offset + places[each.number])
                if isinstance(each, Tensor) and each.base is base
                else each
                for each in values
            )

        steps = tuple(replace(step, arguments=placed(step.arguments)) for step in self.steps)
        return replace(self, steps=steps, outputs=placed(self.outputs))


def plan_of(program: Program, signature: Signature, kernels: frozenset[str], is_for_gpu: bool = False) -> Plan:
    """The plan of `program`, of a model with `signature` whose library has `kernels`.

    On a GPU pieces of memory lie side by side, as TVM's planner wants them: a kernel may begin before the last one has
    ended, which is right for those that the planner let share memory, and not for others.

    UnknownBytecode where it calls what is no kernel, or the program and the signature do not fit.
    """
    if program.parameters != len(signature.inputs):
        raise UnknownBytecode(f"it takes {program.parameters} inputs, and the manifest lists {len(signature.inputs)}")
    run = _Run(signature)
    for call in program.calls:
        arguments = [run.registers.get(each.number) if isinstance(each, Register) else each for each in call.arguments]
        if call.function in _BUILTINS:
            run.registers[call.result.number] = _BUILTINS[call.function](run, *arguments)
        elif call.function in kernels:
            run.steps.append(Step(call.function, tuple(map(_argument, arguments))))
        else:
            raise calls_tvm(f"it calls {call.function}")
    result = run.registers[program.result.number]
    outputs = tuple(result) if isinstance(result, tuple) else (result,)
    if not all(isinstance(each, Tensor) for each in outputs) or len(outputs) < len(signature.outputs):
        raise UnknownBytecode("it returns something else than tensors")
    return _in_one_workspace(run, outputs, is_for_gpu)


class _Run:
    """What is known while the program is gone through: registers, pieces of memory by number, steps.

    `written`: what each step was said to write, so that branches may run side by side.
    """

    def __init__(self, signature: Signature):
        inputs = signature.inputs
        self.inputs = tuple(Tensor(Base.INPUT, n, 0, each.shape, each.dtype) for n, each in enumerate(inputs))
        self.registers: dict[int, Any] = dict(enumerate(self.inputs))
        self.pieces: list[int] = []
        self.steps: list[Step] = []
        self.written: dict[int, tuple[Any, ...]] = {}

    def storage(self, _machine: None, shape: Sequence[int], device: int, dtype: str, *_scope: str) -> int:
        if device:
            raise UnknownBytecode("it computes on two devices")
        self.pieces.append(math.prod(shape) * tvm_ffi.dtype(dtype).itemsize)
        return len(self.pieces) - 1

    def tensor(self, piece: int, offset: int, shape: tuple[int, ...], dtype: str, *_scope: str) -> Tensor:
        return Tensor(Base.WORKSPACE, piece, offset, shape, dtype)

    def reshape(self, tensor: Any, shape: tuple[int, ...]) -> Tensor:
        return replace(_argument(tensor), shape=shape)

    def view(self, tensor: Any, shape: tuple[int, ...], dtype: str, offset: int) -> Tensor:
        tensor = _argument(tensor)
        return replace(tensor, shape=shape, dtype=dtype, offset=tensor.offset + offset)

    def together(self, *tensors: Any) -> tuple[Tensor, ...]:
        return tuple(map(_argument, tensors))

    def same(self, value: Any) -> Any:
        return value

    def nothing(self, *_arguments: Any) -> None:
        """Also checks of inputs: the C library takes addresses, and the signature says of what."""

    def next_call(self, outputs: int, *tensors: Any) -> None:
        self.written[len(self.steps)] = tensors[:outputs]


_BUILTINS: dict[str, Callable[..., Any]] = {
    "vm.builtin.check_tensor_info": _Run.nothing,
    "vm.builtin.match_shape": _Run.nothing,
    "vm.builtin.null_value": _Run.nothing,
    "vm.builtin.copy": _Run.same,
    "vm.builtin.alloc_storage": _Run.storage,
    "vm.builtin.alloc_tensor": _Run.tensor,
    "vm.builtin.reshape": _Run.reshape,
    "vm.builtin.make_tuple": _Run.together,
    "runtime.TVMTensorCreateView": _Run.view,
    NEXT_CALL: _Run.next_call,
}


def _argument(value: Any) -> Any:
    """A tensor or a number."""
    if isinstance(value, Constant):
        return Tensor(Base.CONSTANTS, value.offset, 0, value.shape, value.dtype)
    if isinstance(value, Tensor | int | float):
        return value
    raise UnknownBytecode(f"it passes {value!r} to a kernel")


_Lives = Mapping[int, tuple[int, int]]


def _in_one_workspace(run: _Run, outputs: tuple[Tensor, ...], is_for_gpu: bool) -> Plan:
    """The plan in which each piece of memory has its place."""
    uses: dict[int, list[int]] = {}
    for index, tensors in enumerate((*(step.arguments for step in run.steps), outputs)):
        for each in tensors:
            if isinstance(each, Tensor) and each.base is Base.WORKSPACE:
                uses.setdefault(each.number, []).append(index)
    lives = {piece: (each[0], each[-1]) for piece, each in uses.items()}
    places = _side_by_side(run.pieces, lives) if is_for_gpu else _places(run.pieces, lives)
    size_bytes = max((places[each] + run.pieces[each] for each in places), default=0)
    has_branches = is_for_gpu and len(run.written) == len(run.steps)
    steps, ends = _with_branches(run, places) if has_branches else (run.steps, [])
    return Plan(run.inputs, tuple(steps), outputs, size_bytes, tuple(ends)).with_places(Base.WORKSPACE, places)


def _with_branches(run: _Run, places: Mapping[int, int]) -> tuple[list[Step], list[int]]:
    """The steps with the numbers of those that they run after, and of those that none runs after."""

    def spans(values: Sequence[Any]) -> list[Span]:
        # Inputs and constants are never written.
        tensors = [each for each in values if isinstance(each, Tensor) and each.base is Base.WORKSPACE]
        starts = [places[each.number] + each.offset for each in tensors]
        sizes = [math.prod(each.shape) * tvm_ffi.dtype(each.dtype).itemsize for each in tensors]
        return [(start, start + size) for start, size in zip(starts, sizes, strict=True)]

    order = CallOrder()
    after = [order.add(spans(step.arguments), spans(run.written[number])) for number, step in enumerate(run.steps)]
    steps = [replace(step, after=tuple(each)) for step, each in zip(run.steps, after, strict=True)]
    return steps, order.ends()


def _side_by_side(sizes: Sequence[int], lives: _Lives) -> dict[int, int]:
    starts = itertools.accumulate((aligned(sizes[piece], GPU_ALIGNMENT) for piece in lives), initial=0)
    return dict(zip(lives, starts, strict=False))


def _places(sizes: Sequence[int], lives: _Lives) -> dict[int, int]:
    """Where each piece of memory lies, the largest first, each as low as it fits beside those that live meanwhile."""
    places: dict[int, int] = {}
    for piece in sorted(lives, key=lambda each: -sizes[each]):
        at = 0
        for other in sorted(places, key=lambda each: places[each]):
            meet = lives[other][0] <= lives[piece][1] and lives[piece][0] <= lives[other][1]
            if meet and places[other] < at + sizes[piece]:
                at = max(at, places[other] + aligned(sizes[other]))
        places[piece] = at
    return places
