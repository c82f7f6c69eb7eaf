"""What a graph of TorchDynamo takes and returns, and the same graph as a module that holds its weights."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

# In the place of a tensor among results.
TENSOR = object()
# Dynamo names a tensor after the path by which it found it: L_self_modules_layer1_modules_0_parameters_weight_
_STEP = re.compile(r"_(?:modules|parameters|buffers)_")


@dataclass(frozen=True)
class GraphInputs:
    """The arguments of a graph by their positions.

    `constants` are tensors that belong to modules: parameters, buffers and others. `names` are theirs, such as
    ``layer1.0.weight``. `tensors` are those that a call brings. `numbers` are what it brings beside them; some of these
    are tensors for Dynamo, of which a graph reads only the value. `sizes` are integers that are sizes of tensors:
    position of the integer -> position of the tensor and its dimension.
    """

    constants: tuple[int, ...]
    names: tuple[str, ...]
    tensors: tuple[int, ...]
    numbers: tuple[int, ...]
    sizes: dict[int, tuple[int, int]]

    @classmethod
    def of(cls, gm: torch.fx.GraphModule) -> GraphInputs:
        """The arguments of a graph, as Dynamo has marked them."""
        nodes = placeholders(gm)
        constants = tuple(i for i, node in enumerate(nodes) if _is_constant(node))
        others = [i for i, node in enumerate(nodes) if not _is_constant(node)]
        tensors = tuple(i for i in others if isinstance(_example(nodes[i]), torch.Tensor) and not _is_number(nodes[i]))
        sizes = _sizes({i: _example(nodes[i]) for i in others})
        numbers = tuple(i for i in others if i not in tensors and i not in sizes)
        return cls(constants, _names([str(nodes[i].target) for i in constants]), tensors, numbers, sizes)

    def values(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """The numbers of a call."""
        return tuple(v.item() if isinstance(v, torch.Tensor) else v for v in (arguments[i] for i in self.numbers))


def placeholders(gm: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """The arguments of a graph."""
    return [node for node in gm.graph.nodes if node.op == "placeholder"]


def results(gm: torch.fx.GraphModule) -> list[Any]:
    """What a graph returns: nodes, and constants."""
    (output,) = (node for node in gm.graph.nodes if node.op == "output")
    return list(output.args[0])


def _is_constant(node: torch.fx.Node) -> bool:
    return "_dynamo_static_input_type" in node.meta.get("tensor_dict", {})


def _is_number(node: torch.fx.Node) -> bool:
    """Whether only the value of a tensor in the host's memory is read: Dynamo wraps Python's floats like that."""
    value, users = _example(node), node.users
    is_scalar = value.ndim == 0 and value.device.type == "cpu"
    return is_scalar and bool(users) and all((user.op, user.target) == ("call_method", "item") for user in users)


def _names(targets: Sequence[str]) -> tuple[str, ...]:
    """A name for each constant, the user's where its path is known."""
    paths = [_STEP.split(target.removesuffix("_")) for target in targets]
    # The root is the model itself where all are of one.
    roots = {path[0] for path in paths if len(path) > 1}
    names: list[str] = []
    for path in paths:
        name = stem = ".".join(path[1:] if len(path) > 1 and len(roots) == 1 else path)
        copies = 2
        while name in names:
            name, copies = f"{stem}_{copies}", copies + 1
        names.append(name)
    return tuple(names)


def _sizes(examples: dict[int, Any]) -> dict[int, tuple[int, int]]:
    """Integers among the examples that are a size of one of the tensors there."""
    tensors = {i: value for i, value in examples.items() if isinstance(value, torch.Tensor)}
    places = {_symbol(size): (i, axis) for i, value in tensors.items() for axis, size in enumerate(value.shape)}
    integers = {i: _symbol(value) for i, value in examples.items() if isinstance(value, torch.SymInt)}
    return {i: places[symbol] for i, symbol in integers.items() if symbol in places}


def _symbol(size: Any) -> Any:
    """What is equal for sizes that Dynamo knows to be the same."""
    return size.node.expr if isinstance(size, torch.SymInt) else size


def counts_samples(gm: torch.fx.GraphModule, inputs: GraphInputs) -> bool:
    """Whether all tensors of a call and all results have the same first dimension."""
    nodes = placeholders(gm)
    values = [*(_example(nodes[i]) for i in inputs.tensors), *map(_example, results(gm))]
    if not all(isinstance(value, torch.Tensor) and value.ndim for value in values):
        return False
    return len({_symbol(value.shape[0]) for value in values}) == 1


def wants_gradients(gm: torch.fx.GraphModule) -> bool:
    """Whether a result of the graph shall be differentiated."""
    return any(getattr(_example(result), "requires_grad", False) for result in results(gm))


def shares_memory(gm: torch.fx.GraphModule) -> bool:
    """Whether a result is a view of an argument or of another result, so that writing to one changes both."""
    seen = {_storage(node) for node in placeholders(gm)}
    for result in dict.fromkeys(each for each in results(gm) if isinstance(each, torch.fx.Node)):
        storage = _storage(result)
        if storage is not None and storage in seen:
            return True
        seen.add(storage)
    return False


def writes_to_arguments(traced: torch.fx.Graph) -> bool:
    """Whether an operator in a graph of `torch.export` writes to one of the graph's arguments, or to a view of one."""
    memory = {_storage(node) for node in traced.nodes if node.op == "placeholder"} - {None}
    for node in traced.nodes:
        schema = getattr(node.target, "_schema", None)
        for position, argument in enumerate(schema.arguments if schema is not None else ()):
            if argument.alias_info is not None and argument.alias_info.is_write:
                written = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
                if isinstance(written, torch.fx.Node) and _storage(written) in memory:
                    return True
    return False


def _example(value: Any) -> Any:
    """The fake tensor or symbolic integer by which Dynamo, or torch.export, knows a node."""
    return value.meta.get("example_value", value.meta.get("val")) if isinstance(value, torch.fx.Node) else value


def _storage(node: torch.fx.Node) -> int | None:
    value = _example(node)
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


class GraphWithWeights(torch.nn.Module):
    """A graph whose constants are buffers of this module; it takes, and returns, only the tensors among the rest.

    Parameters
    ----------
    gm, inputs
        The graph.
    arguments
        Of a call: its constants and numbers.
    """

    def __init__(self, gm: torch.fx.GraphModule, inputs: GraphInputs, arguments: Sequence[Any]):
        super().__init__()
        self._tvm_sparse_graph, self._tvm_sparse_inputs = gm, inputs
        # NumPy's have a method `item` too, which a graph calls where it takes a tensor for a number.
        self._tvm_sparse_numbers = {
            i: np.asarray(value)[()] if isinstance(arguments[i], torch.Tensor) else value
            for i, value in zip(inputs.numbers, inputs.values(arguments), strict=True)
        }
        # An object of no kind that torch.export sets back after tracing, as it does lists.
        self._tvm_sparse_returned = SimpleNamespace(values=[])
        for name, index in zip(inputs.names, inputs.constants, strict=True):
            self._hold(name.split("."), arguments[index].detach())
        # Each operator of the graph says itself whether it trains.
        self.eval()

    def _hold(self, path: Sequence[str], tensor: torch.Tensor) -> None:
        """Keep a tensor under the name that it has in the user's model, which reports then show."""
        owner: torch.nn.Module = self
        for part in path[:-1]:
            if part not in owner._modules:
                owner.add_module(part, torch.nn.Module())
            owner = owner.get_submodule(part)
        owner.register_buffer(path[-1], tensor)

    @property
    def returned(self) -> list[Any]:
        """What the graph returned when it was last traced, tensors as `TENSOR`."""
        return list(self._tvm_sparse_returned.values)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The tensors among the results of the graph."""
        inputs = self._tvm_sparse_inputs
        arguments = dict(self._tvm_sparse_numbers)
        arguments |= zip(inputs.tensors, tensors, strict=True)
        # Those of this batch, which may be another one.
        arguments |= {i: arguments[place].shape[axis] for i, (place, axis) in inputs.sizes.items()}
        arguments |= zip(inputs.constants, map(self.get_buffer, inputs.names), strict=True)
        values = self._tvm_sparse_graph(*(arguments[i] for i in range(len(arguments))))
        self._tvm_sparse_returned.values = [TENSOR if isinstance(value, torch.Tensor) else value for value in values]
        return tuple(value for value in values if isinstance(value, torch.Tensor))
