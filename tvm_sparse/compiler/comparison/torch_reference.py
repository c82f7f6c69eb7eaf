"""A torch module or program as what it was compiled from, in this process, where its tensors are."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tvm_sparse.compiler.comparison.reference import Alone, Answer, NotCompared, Refused, Settled, Way, in_float32
from tvm_sparse.compiler.comparison.torch_tensors import array_of, tensor_of
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.errors import first_line
from tvm_sparse.frontend.torch.import_program import export_module
from tvm_sparse.frontend.torch.pt2_file import load_exported_program
from tvm_sparse.frontend.torch.rewriting import half


class TorchReference:
    """A `torch.nn.Module` with the inputs that it is called with, a `torch.export.ExportedProgram`, or a .pt2 file."""

    def __init__(self, source: Any, examples: Any):
        import torch

        self.where, self._torch = "model", torch
        if isinstance(source, str | Path):
            self.where, source = str(source), load_exported_program(Path(source))
        self._source = source
        if isinstance(source, torch.nn.Module):
            examples = (examples,) if isinstance(examples, torch.Tensor) else tuple(examples)
            self._examples: Any = (examples, {})
        else:
            # Of no known values: the program knows their shapes and places.
            examples = [
                torch.zeros(each.shape, dtype=each.dtype, device=each.device) for each in half.inputs_of(source)
            ]
            self._examples = torch.utils._pytree.tree_unflatten(examples, source.call_spec.in_spec)

    def ways(self) -> Iterator[Way]:
        """The module itself, or the program's."""
        is_module = isinstance(self._source, self._torch.nn.Module)
        yield Way("torch", self._runner(self._source if is_module else self._source.module(check_guards=False)))

    def widened(self) -> Way | None:
        """The program in float32, of one in half precision."""
        if half.precision_of(self.where, self._program).dtype == FLOAT32:
            return None
        run = self._runner(self._in_float32.module(check_guards=False))
        return Way("torch in float32", lambda inputs: run(in_float32(inputs)))

    @cached_property
    def _program(self) -> Any:
        is_module = isinstance(self._source, self._torch.nn.Module)
        return export_module(self._source, self._examples[0]) if is_module else self._source

    @cached_property
    def _in_float32(self) -> Any:
        is_wide = half.precision_of(self.where, self._program).dtype == FLOAT32
        return self._program if is_wide else half.widened(self.where, self._program)

    def _runner(self, module: Callable[..., Any]) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
        pytree = self._torch.utils._pytree

        def run(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
            args, kwargs = self._placed(inputs)
            try:
                with self._exact():
                    results = pytree.tree_leaves(module(*args, **kwargs))
            # What a module raises is the user's own.
            except Exception as error:
                raise Refused(first_line(error)) from error
            return [array_of(each) for each in results if isinstance(each, self._torch.Tensor)]

        return run

    def _placed(self, inputs: Sequence[np.ndarray]) -> tuple[Any, Any]:
        """`inputs` in the places of the tensors that the source is called with."""
        torch, pytree = self._torch, self._torch.utils._pytree
        leaves, spec = pytree.tree_flatten(self._examples)
        places = [place for place, each in enumerate(leaves) if isinstance(each, torch.Tensor)]
        if len(places) != len(inputs):
            raise Refused(f"it takes {len(places)} tensors, and the compiled model {len(inputs)}")
        for place, array in zip(places, inputs, strict=True):
            leaves[place] = tensor_of(array).to(leaves[place].device)
        return pytree.tree_unflatten(leaves, spec)

    @contextlib.contextmanager
    def _exact(self) -> Iterator[None]:
        """Compute in float32 where it is said so, and no gradients.

        Torch says for the whole process how it may round: nothing is changed where it rounds to float32 anyway.
        """
        torch = self._torch
        leaves = torch.utils._pytree.tree_leaves(self._examples)
        precision = torch.get_float32_matmul_precision()
        with contextlib.ExitStack() as stack:
            if precision != "highest":
                stack.callback(torch.set_float32_matmul_precision, precision)
                torch.set_float32_matmul_precision("highest")
            if any(each.is_cuda for each in leaves if isinstance(each, torch.Tensor)):
                stack.enter_context(torch.backends.cudnn.flags(enabled=True, allow_tf32=False))
            stack.enter_context(torch.no_grad())
            yield

    def begin(self, work: Callable[[], Answer]) -> Callable[[], Answer]:
        """Later: beside others, the user's module would surprise them."""
        return work

    def settle(self, inputs: Sequence[np.ndarray], alone: Alone, end_s: float) -> Settled:
        """Every operator of the program alone; see `torch_nodes`."""
        # It imports torch.
        from tvm_sparse.compiler.comparison.torch_nodes import search

        leaves = self._torch.utils._pytree.tree_leaves(self._placed(in_float32(inputs)))
        try:
            with self._exact():
                return search(self._in_float32, leaves, alone, end_s)
        # Of the user's own operators, one by one.
        except Exception as error:
            raise NotCompared(first_line(error)) from error

    def close(self) -> None:
        """Nothing was started."""
