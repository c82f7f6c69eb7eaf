"""Every operator of a torch program compiled and run alone, to find the first that is wrong."""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from tvm_sparse.compiler.checking.random_inputs import outputs_of
from tvm_sparse.compiler.comparison.differences import worst_difference
from tvm_sparse.compiler.comparison.reference import Alone, Settled
from tvm_sparse.compiler.comparison.torch_tensors import array_of
from tvm_sparse.conv.reference import AGREEMENT
from tvm_sparse.errors import TvmSparseError
from tvm_sparse.runtime.multi_shape_model import AnyModel

# Constants with more elements are weights: operators that differ in nothing else are compiled once.
SMALL = 64


def search(program: Any, leaves: Sequence[Any], alone: Alone, end_s: float) -> Settled:
    """Run a `torch.export.ExportedProgram` on `leaves`, its inputs in their order, operator by operator."""
    finder = _Search(program.module(check_guards=False), alone, end_s)
    with contextlib.suppress(_Ended):
        finder.run(*leaves, enable_io_processing=False)
    return finder.found


class _Ended(Exception):
    """Nothing more is to be found, or time is up."""


class OneOperator(torch.nn.Module):
    """An operator whose arguments are constants, but for some tensors.

    * `target`: an operator of torch.
    * `leaves`, `spec`: its arguments, flattened.
    * `varying`: positions of the leaves that are inputs of this module.
    """

    def __init__(self, target: Any, leaves: Sequence[Any], spec: Any, varying: Sequence[int]):
        super().__init__()
        self._target, self._spec, self._varying = target, spec, list(varying)
        self._is_writing = target._schema.is_mutable
        self._leaves = [None if isinstance(each, torch.Tensor) else each for each in leaves]
        self._constants = [i for i, each in enumerate(leaves) if isinstance(each, torch.Tensor) and i not in varying]
        for place in self._constants:
            self.register_buffer(f"constant{place}", leaves[place].detach())
        self.eval()

    def forward(self, *tensors: Any) -> Any:
        """The operator's results, on copies of its inputs where it writes to them."""
        leaves = list(self._leaves)
        for place in self._constants:
            leaves[place] = self.get_buffer(f"constant{place}")
        for place, tensor in zip(self._varying, tensors, strict=True):
            leaves[place] = tensor.clone() if self._is_writing else tensor
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        return self._target(*args, **kwargs)


class _Search(torch.fx.Interpreter):
    """Runs a graph, and each of its operators in compiled form too, on the same values."""

    def __init__(self, module: Any, alone: Alone, end_s: float):
        super().__init__(module)
        self._alone, self._end_s = alone, end_s
        self.found = Settled()
        # Nodes that depend on the inputs.
        self._varying: set[Any] = set()
        # What compiles to the same -> the compiled operator, None where it is refused.
        self._compiled: dict[Any, AnyModel | None] = {}

    def run_node(self, n: Any) -> Any:
        """The node's value."""
        if n.op == "placeholder" or not self._varying.isdisjoint(n.all_input_nodes):
            self._varying.add(n)
        if n.op != "call_function" or not isinstance(n.target, torch._ops.OpOverload) or n not in self._varying:
            return super().run_node(n)
        if time.monotonic() > self._end_s:
            raise _Ended
        # Before the operator can write to them.
        arguments = _Arguments.of(n, self.fetch_args_kwargs_from_env(n), self._varying)
        value = super().run_node(n)
        expected = [array_of(each) for each in pytree.tree_leaves(value) if isinstance(each, torch.Tensor)]
        if arguments is not None and arguments.varying and expected:
            self._judge(n, arguments, expected)
        return value

    def _judge(self, n: Any, arguments: "_Arguments", expected: Sequence[np.ndarray]) -> None:
        """Note the node and end where it is wrong alone."""
        inputs = [arguments.leaves[place] for place in arguments.varying]
        key = (str(n.target), arguments.key())
        if key not in self._compiled:
            module = OneOperator(n.target, arguments.leaves, arguments.spec, arguments.varying)
            self._compiled[key] = self._compile(module, tuple(inputs))
        elif arguments.has_weight():
            return
        compiled = self._compiled[key]
        if compiled is None:
            return
        found = outputs_of(compiled, [array_of(each) for each in inputs])
        text = worst_difference(found, expected, AGREEMENT).text
        if text:
            self.found = Settled(wrong=f"operator {n.name} ({n.target}){_owner(n)}", difference=text)
            raise _Ended

    def _compile(self, module: OneOperator, inputs: tuple[Any, ...]) -> AnyModel | None:
        """The operator alone; None where it is refused, such as one whose shape depends on values."""
        try:
            return self._alone(module, inputs)
        except TvmSparseError:
            return None


@dataclass(frozen=True)
class _Arguments:
    """What an operator is called with, flattened, and which of it are tensors that depend on the program's inputs."""

    leaves: list[Any]
    spec: Any
    varying: list[int]

    @classmethod
    def of(cls, n: Any, called_with: Any, varying: set[Any]) -> "_Arguments | None":
        """Copies of the arguments of a node; None where one of its arguments is not a tensor but several."""
        nodes = pytree.tree_leaves((tuple(n.args), dict(n.kwargs)))
        leaves, spec = pytree.tree_flatten((tuple(called_with[0]), dict(called_with[1])))
        if len(nodes) != len(leaves):
            return None
        copies = [each.clone() if isinstance(each, torch.Tensor) else each for each in leaves]
        places = [i for i, each in enumerate(leaves) if isinstance(each, torch.Tensor) and nodes[i] in varying]
        return cls(copies, spec, places)

    def has_weight(self) -> bool:
        """Whether a constant has many elements."""
        return any(_is_weight(each) for i, each in enumerate(self.leaves) if i not in self.varying)

    def key(self) -> str:
        """Equal for what compiles to the same, but for the values of weights."""
        described = [
            f"{tuple(each.shape)} {each.dtype} {i in self.varying or _is_weight(each) or each.tolist()}"
            if isinstance(each, torch.Tensor)
            else repr(each)
            for i, each in enumerate(self.leaves)
        ]
        return f"{self.spec} {described}"


def _is_weight(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() > SMALL


def _owner(n: Any) -> str:
    """The module that an operator belongs to, as the end of a phrase."""
    stack = list(n.meta.get("nn_module_stack", {}).values())
    path = stack[-1][0] if stack else ""
    return f" of module {path}" if path else ""
