"""What runs a dense network fastest on a GPU today, `torch.compile`: the program that it gets, and a call of it."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tvm.target import Target

from tvm_sparse.compiler.comparison.compare import Source
from tvm_sparse.compiler.comparison.torch_tensors import array_of, tensor_of
from tvm_sparse.errors import BuildError, first_line
from tvm_sparse.frontend.optional_imports import with_torch
from tvm_sparse.frontend.torch.import_program import export_module
from tvm_sparse.frontend.torch.pt2_file import load_exported_program

# Seconds to compile, of the other mode minutes, which gain a few percent.
MODE = "reduce-overhead"
WARM_UP_CALLS = 3


def serves(source: Any, target: Target) -> bool:
    """Whether `source`, a file or an object, is torch's, and torch and a GPU may be there; torch is not imported."""
    is_onnx = isinstance(source, str | Path) and Path(source).suffix != ".pt2"
    return target.kind.name == "cuda" and not is_onnx and importlib.util.find_spec("torch") is not None


def program_file(source: Source, folder: Path) -> Path:
    """The .pt2 file of a source that `serves`; of an object one in `folder`. ModelError where it cannot be traced."""
    model, path = source.model, folder / "program.pt2"
    if isinstance(model, str | Path):
        return Path(model)
    import torch

    if isinstance(model, torch.nn.Module):
        model = export_module(model, source.examples)
    torch.export.save(model, path)
    return path


@dataclass(frozen=True)
class _Output:
    tensor: Any

    def numpy(self) -> np.ndarray:
        return array_of(self.tensor)


def open_program(path: Path, inputs: list[np.ndarray], dtype: str | None, device: str) -> Callable[[], list[_Output]]:
    """A call of the program in `path` on `inputs`, in `dtype` if one is given, that returns when it has finished.

    Convolutions and products may round to TF32, tensors are channels last.

    Raises
    ------
    BuildError
        There is no such device, or torch cannot compile the program or run it.
    """
    with with_torch():
        import torch
        from torch.export.passes import move_to_device_pass
    if device == "cuda" and not torch.cuda.is_available():
        raise BuildError("torch", "it finds no GPU")
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    try:
        program = move_to_device_pass(load_exported_program(path), device)
        module = program.module(check_guards=False).to(getattr(torch, dtype) if dtype else None)
        compiled = torch.compile(module.to(memory_format=torch.channels_last), mode=MODE)
        leaves = [tensor_of(each).to(device) for each in inputs]
        leaves = [each.to(memory_format=torch.channels_last) if each.ndim == 4 else each for each in leaves]
        args, kwargs = torch.utils._pytree.tree_unflatten(leaves, program.call_spec.in_spec)

        def call() -> list[_Output]:
            with torch.no_grad():
                found = torch.utils._pytree.tree_leaves(compiled(*args, **kwargs))
            if device == "cuda":
                torch.cuda.synchronize()
            return [_Output(each) for each in found]

        for _ in range(WARM_UP_CALLS):
            call()
    # Its compilers raise anything.
    except Exception as error:
        raise BuildError(str(path), f"torch.compile cannot run it ({first_line(error)})") from error
    return call
