"""MultiShapeModel: one model compiled for several shapes of its inputs: batches, sizes, or both."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tvm_sparse.display import tables
from tvm_sparse.errors import InputError
from tvm_sparse.runtime import samples
from tvm_sparse.runtime.comparison import Comparison
from tvm_sparse.runtime.compiled_model import CompiledModel
from tvm_sparse.runtime.model_file import ModelFile
from tvm_sparse.runtime.saving import write
from tvm_sparse.runtime.tensors import library_of
from tvm_sparse.runtime.verdict import Verdict

Shapes = tuple[tuple[int, ...], ...]


class MultiShapeModel:
    """Called like a `CompiledModel`, with inputs of any of the shapes that it was compiled for.

    With `has_batches` the inputs may have any number of samples, the same in all. A batch that the model was compiled
    for runs as it is. A smaller one is padded with zeros to the next size. One that is larger than all of them runs in
    turns: the largest size as often as it fits, then the rest.

    Parameters
    ----------
    models
        By name, such as "batch 8" or "1x3x320x640", for the same target. Those that differ in their batches compute the
        same of each sample, whatever the others are.
    has_batches
        Whether the first dimension of all inputs and outputs counts samples.

    Raises
    ------
    ValueError
        Two models take inputs of the same shapes.

    Attributes
    ----------
    batches
        The batches, ascending; empty without `has_batches`.
    groups
        Shapes of the inputs, with `has_batches` but for the first dimension -> batch -> model, both ascending.
    signature, target, device
        Of the model with the largest inputs.
    libraries
        Those that any of the models calls, name -> version that it was made with.
    """

    def __init__(self, models: Mapping[str, CompiledModel], has_batches: bool):
        self.models = dict(sorted(models.items(), key=lambda item: _elements(item[1])))
        self.has_batches = has_batches
        self.groups: dict[Shapes, dict[int, CompiledModel]] = {}
        for model in self.models.values():
            shapes = [spec.shape for spec in model.signature.inputs]
            group, batch = self.groups.setdefault(self._inner(shapes), {}), shapes[0][0] if has_batches else 0
            if group.setdefault(batch, model) is not model:
                raise ValueError("two of its models take inputs of the same shapes")
        self.batches = tuple(sorted({batch for group in self.groups.values() for batch in group} - {0}))
        self._largest = [*self.models.values()][-1]
        self.signature, self.target = self._largest.signature, self._largest.target
        self.device = self._largest.device
        self.libraries = {k: v for model in self.models.values() for k, v in model.libraries.items()}

    def __call__(self, *inputs: Any) -> Any:
        """Run the model; see `CompiledModel.__call__`.

        Results of a batch that was padded or ran in turns are the caller's own too. Tensors of other libraries than
        torch and NumPy are then copied through the host's memory.

        Raises
        ------
        InputError
            The number of inputs, or the type, shape, element type or device of one, is wrong, or there is no sample.
        BuildError
            This machine cannot run code for `target`.
        """
        is_named = len(inputs) == 1 and isinstance(inputs[0], Mapping)
        values = self.signature.in_order(inputs[0] if is_named else inputs)
        libraries = [library_of(spec.name, value) for spec, value in zip(self.signature.inputs, values, strict=True)]
        layouts = [library.layout(value) for library, value in zip(libraries, values, strict=True)]
        if any(each.obstacle for each in layouts):
            # Each of the models says what it is.
            return self._largest(*values)
        models, count = self._matching([each.shape for each in layouts])
        if count in models:
            found = models[count](*values)
            return self.signature.returned([found] if self.signature.single else found, is_named)
        largest = max(models)
        turns = []
        for start in range(0, count, largest):
            stop = min(start + largest, count)
            size = next(batch for batch in models if batch >= stop - start)
            pairs = zip(libraries, values, strict=True)
            found = models[size](*(samples.take(library, value, start, stop, size) for library, value in pairs))
            turns.append([found] if self.signature.single else found)
        results = [samples.join(libraries[0], parts, count) for parts in zip(*turns, strict=True)]
        return self.signature.returned(results, is_named)

    def save(self, directory: str | Path) -> Path:
        """Write all models to `directory`; see `CompiledModel.save`."""
        return write(self, self.models, directory)

    @property
    def comparison(self) -> Comparison | None:
        """Of the model whose outputs differ most from the source's, or that was not compared."""
        found = [model.comparison for model in self.models.values() if model.comparison is not None]
        return max(found, key=lambda each: (each.difference is None, each.difference), default=None)

    @property
    def verdict(self) -> Verdict | None:
        """Of the largest inputs; the others' are their models'."""
        return self._largest.verdict

    @property
    def file(self) -> ModelFile | None:
        """The file that it was compiled from; None of a module."""
        return self._largest.file

    def _inner(self, shapes: Sequence[tuple[int, ...]]) -> Shapes:
        """Shapes of inputs, without what counts samples."""
        return tuple(shape[1:] if self.has_batches else shape for shape in shapes)

    def _matching(self, shapes: Sequence[tuple[int, ...]]) -> tuple[dict[int, CompiledModel], int]:
        """The models by batch for inputs of `shapes`, and how many samples these have; InputError where none is."""
        found = self.groups.get(self._inner(shapes))
        counts = {shape[:1] for shape in shapes} if self.has_batches else {(0,)}
        if found is not None and len(counts) == 1 and (not self.has_batches or counts.isdisjoint({(), (0,)})):
            return found, counts.pop()[0]
        held = [{inner[at] for inner in self.groups} for at in range(len(shapes))]
        wrong = next((at for at, inner in enumerate(self._inner(shapes)) if inner not in held[at]), len(shapes) - 1)
        first, samples = ("N, ", ", N the same for all inputs, 1 or more") if self.has_batches else ("", "")
        allowed = " or ".join(f"({first}{', '.join(map(str, inner[wrong]))})" for inner in self.groups)
        batches = f"batches {', '.join(map(str, self.batches))} are compiled, others padded or run in turns"
        hint = batches if self.has_batches else "compile the model for this size too"
        where = f"input {self.signature.inputs[wrong].name}"
        raise InputError(where, "wrong shape", shapes[wrong], f"{allowed}{samples}", hint)

    def report(self) -> list[dict[str, Any]]:
        """What `CompiledModel.report` says for each model, each object with its name as ``variant`` before the rest."""
        return [{"variant": name, **row} for name, model in self.models.items() for row in model.report()]

    def report_text(self) -> str:
        """`report` as a table for each model."""
        return "\n\n".join(f"{name}\n{model.report_text()}" for name, model in self.models.items())

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {model!r}" for name, model in self.models.items())

    def _repr_html_(self) -> str:
        return tables.layers(repr(self), self.report()).html()


def _elements(model: CompiledModel) -> int:
    return sum(math.prod(spec.shape) for spec in model.signature.inputs)


AnyModel = CompiledModel | MultiShapeModel
