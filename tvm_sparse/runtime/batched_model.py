"""BatchedModel: one model compiled for several batch sizes, called with any number of samples."""

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


class BatchedModel:
    """Called like a `CompiledModel`, but the first dimension of the inputs, the same in all, may be any.

    A batch that the model was compiled for runs as it is. A smaller one than the largest is padded with zeros to the
    next that there is. A larger one runs in turns: the largest as often as it fits, then the rest.

    Parameters
    ----------
    models
        By batch size. All compute the same of each sample, whatever the others are, for the same target.

    Attributes
    ----------
    batches
        The sizes, ascending.
    signature, target, device
        Of the model for the largest batch.
    libraries
        Those that any of the models calls, name -> version that it was made with.
    """

    def __init__(self, models: Mapping[int, CompiledModel]):
        self.models = dict(sorted(models.items()))
        self.batches = tuple(self.models)
        largest = self.models[self.batches[-1]]
        self.signature, self.target, self.device = largest.signature, largest.target, largest.device
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
        count, largest = self._count(values), self.batches[-1]
        if count is None or count in self.models:
            found = self.models[count or largest](*values)
            return self.signature.returned([found] if self.signature.single else found, is_named)
        libraries = [library_of(spec.name, value) for spec, value in zip(self.signature.inputs, values, strict=True)]
        turns = []
        for start in range(0, count, largest):
            stop = min(start + largest, count)
            size = next(batch for batch in self.batches if batch >= stop - start)
            pairs = zip(libraries, values, strict=True)
            found = self.models[size](*(samples.take(library, value, start, stop, size) for library, value in pairs))
            turns.append([found] if self.signature.single else found)
        results = [samples.join(libraries[0], parts, count) for parts in zip(*turns, strict=True)]
        return self.signature.returned(results, is_named)

    def save(self, directory: str | Path) -> Path:
        """Write all models to `directory`; see `CompiledModel.save`."""
        return write(self, self.models, directory)

    @property
    def comparison(self) -> Comparison | None:
        """Of the batch whose outputs differ most from the source's, or that was not compared."""
        found = [model.comparison for model in self.models.values() if model.comparison is not None]
        return max(found, key=lambda each: (each.difference is None, each.difference), default=None)

    @property
    def verdict(self) -> Verdict | None:
        """Of the largest batch; the others' are their models'."""
        return self.models[self.batches[-1]].verdict

    @property
    def file(self) -> ModelFile | None:
        """The file that it was compiled from; None of a module."""
        return self.models[self.batches[-1]].file

    def _count(self, inputs: Sequence[Any]) -> int | None:
        """How many samples each input has; None where something else is wrong, which each of the models says."""
        specs = self.signature.inputs
        counts = set()
        for spec, value in zip(specs, inputs, strict=True):
            layout = library_of(spec.name, value).layout(value)
            if layout.obstacle:
                return None
            counts.add(layout.shape[:1])
            if layout.shape[1:] != spec.shape[1:] or len(counts) > 1 or counts <= {(), (0,)}:
                allowed = f"(N{''.join(f', {size}' for size in spec.shape[1:])}), N the same for all inputs, 1 or more"
                compiled = f"batches {', '.join(map(str, self.batches))} are compiled, others padded or run in turns"
                raise InputError(f"input {spec.name}", "wrong shape", layout.shape, allowed, compiled)
        return counts.pop()[0]

    def report(self) -> list[dict[str, Any]]:
        """What `CompiledModel.report` says for each batch, each object with a key ``batch`` before the others."""
        return [{"batch": batch, **row} for batch, model in self.models.items() for row in model.report()]

    def report_text(self) -> str:
        """`report` as a table for each batch."""
        return "\n\n".join(f"batch {batch}\n{model.report_text()}" for batch, model in self.models.items())

    def __repr__(self) -> str:
        return "\n".join(f"batch {batch}: {model!r}" for batch, model in self.models.items())

    def _repr_html_(self) -> str:
        return tables.layers(repr(self), self.report()).html()


AnyModel = CompiledModel | BatchedModel
