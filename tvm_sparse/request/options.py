"""The options that the public functions share, and what they mean."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar

from tvm_sparse.errors import UsageError
from tvm_sparse.request.request import Request

if TYPE_CHECKING:
    from tvm.target import Target

    from tvm_sparse.logs.tuning_log import TuningLog
    from tvm_sparse.request.variant import Shapes

P = ParamSpec("P")
R = TypeVar("R")


class ModelOptions(TypedDict, total=False):
    """Options of every function that takes a model: what it is compiled for.

    Attributes
    ----------
    target
        ``"cpu"``, ``"cuda"``, ``"cuda:1"``, or a TVM target, also as JSON. None: where a torch module's parameters are,
        for other models this machine's CPU.
    threads
        How many threads a call uses on a CPU. None: what `target` says, or all cores.
    log
        A path, several, or a `TuningLog`: nothing else is read, and measurements go to the first. None:
        ``tuning.jsonl`` in the working directory, the user's own logs and the shipped ones are read, and measurements
        go to the user's own.
    shapes
        Input name -> shape, or a list of shapes: what an ONNX file leaves open, or other sizes than a module's example
        has. The model is compiled for each shape, and with `batch` for each batch of each. Of several inputs the first
        shapes belong together, then the second ones.
    batch
        Sizes of the first dimension of all inputs. The model is compiled for each, and takes any number of samples
        (`MultiShapeModel`). Not for a program that torch.export has fixed to one batch.
    dtype
        Cast the model, with its inputs and outputs, to ``float16`` or ``bfloat16``, or to ``float32``; None: as it is.
        Batch norms are folded before that; sums stay float32. ``int8`` quantises an .onnx file in float32 with
        onnxruntime's quantiser, from `samples`; the file that is compiled stays in ``quantised`` in the cache folder.
    samples
        With ``dtype="int8"``, inputs as the model meets them, a hundred or so, on which the range of each tensor is
        found: a .npz or .npy file, a dict of arrays by input name, or one array or a sequence of them.
    """

    target: str | dict[str, Any] | Target | None
    threads: int | None
    log: TuningLog | Path | str | Sequence[Path | str] | None
    shapes: Mapping[str, Shapes] | None
    batch: int | Sequence[int] | None
    dtype: str | None
    samples: Any


class CompileOptions(ModelOptions, total=False):
    """Options of functions that choose kernels: those of `ModelOptions`, and what is allowed.

    Attributes
    ----------
    predict
        Let layers for which the log has no record of this machine run with kernels that are expected to be faster than
        dense: what won on a machine like this, or default decisions. They are verified, not timed.
    strict_nonfinite
        Compute also the products with zero weights, so that NaN or infinity in an input reaches every output that it
        reaches in a dense convolution. Every convolution then runs dense.
    allow_tf32
        On a GPU, let convolutions, and dense linear layers of many samples, round their inputs to TF32, 10 bits behind
        the point, where that is faster. torch does so by default for convolutions. Otherwise all compute in float32.
    """

    allow_tf32: bool
    strict_nonfinite: bool
    predict: bool


def refuse_for_compiled(source: str, options: Mapping[str, Any], *but: str) -> None:
    """UsageError where options are given, `but` for some, of what is compiled already. Empty ones count as none."""
    unset = {each.name: each.default for each in fields(Request)}
    given = [
        name
        for name, value in options.items()
        if name not in but and value is not unset[name] and not (isinstance(value, Sized) and len(value) == 0)
    ]
    if given:
        problem = "an artifact is compiled, and takes no options"
        raise UsageError(source, problem, ", ".join(given), hint="give them when you compile it")


def takes(options: type) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Give a function that ends with ``**options`` these by name: to ``help``, to editors, and to who misspells one.

    ``help`` says what they mean too.
    """
    shared = [each for each in fields(Request) if each.name in options.__annotations__]
    of = [ModelOptions] if options is ModelOptions else [ModelOptions, CompileOptions]

    def named(function: Callable[P, R]) -> Callable[P, R]:
        own = list(inspect.signature(function).parameters.values())[:-1]
        keywords = [
            inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type)
            for each in shared
        ]
        signature = inspect.signature(function).replace(parameters=[*own, *keywords])

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}") from None
            return function(*args, **kwargs)

        checked.__signature__ = signature  # type: ignore[attr-defined]
        meanings = (inspect.cleandoc(each.__doc__ or "").partition("----------\n")[2] for each in of)
        checked.__doc__ = "\n".join([inspect.cleandoc(function.__doc__ or ""), "", "Options", "-------", *meanings])
        return checked

    return named
