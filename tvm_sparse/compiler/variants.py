"""One model out of those compiled for several batches and sizes, after a check that samples do not mix."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tvm_sparse.compiler.checking.layer_check import agreement_of
from tvm_sparse.compiler.checking.random_inputs import outputs_of, random_inputs
from tvm_sparse.compiler.comparison.differences import require_apart
from tvm_sparse.conv.reference import relative_difference
from tvm_sparse.errors import InputError, ModelError
from tvm_sparse.request.variant import Variant
from tvm_sparse.runtime.compiled_model import CompiledModel
from tvm_sparse.runtime.multi_shape_model import AnyModel, MultiShapeModel
from tvm_sparse.target.compatibility import why_not_here

# The samples of the check are drawn from this seed.
SEED = 2020


def joined(models: Mapping[Variant, CompiledModel]) -> AnyModel:
    """`models` as one; the only one, where neither batches nor several sizes were asked for.

    ModelError where what comes out for a sample depends on the batch that it is in. Checked where this machine runs the
    code.
    """
    first = next(iter(models))
    if not first.name:
        return models[first]
    for variant, model in models.items():
        model.verdict = replace(model.verdict, variant=variant.name) if model.verdict is not None else None
    by_name = {variant.name: model for variant, model in models.items()}
    _require_samples(by_name)
    found = MultiShapeModel(by_name, has_batches=first.batch is not None)
    if found.has_batches and not why_not_here(found.target):
        for group in found.groups.values():
            _require_independent(group)
    return found


def _require_samples(models: Mapping[str, CompiledModel]) -> None:
    """Raise ModelError where an output has as many samples as the inputs at some sizes, and not at others.

    A head of one size does that behind ``view(-1, features)``: it makes several samples of one that is too large.
    """
    known: dict[int, str] = {}
    for name, model in models.items():
        samples = model.signature.inputs[0].shape[:1]
        for at, output in enumerate(model.signature.outputs):
            if output.shape[:1] == samples:
                known.setdefault(at, name)
    for name, model in models.items():
        samples = model.signature.inputs[0].shape[:1]
        for at, output in enumerate(model.signature.outputs):
            if at in known and output.shape[:1] != samples:
                problem = f"output {output.name} has another number of samples than the inputs, unlike at {known[at]}"
                hint = "a layer behind a reshape is made for one size: compile the model for that alone"
                raise ModelError(f"model at {name}", problem, f"shape {output.shape}", f"({samples[0]}, ...)", hint)


def _require_independent(models: Mapping[int, CompiledModel]) -> None:
    """Raise ModelError where models by batch, of one size, differ in what they make of a sample among others.

    Among others and elsewhere: what adds the first sample to all, or sums those before, is right at the first place.
    """
    *_, largest = models.values()
    signature = largest.signature
    samples = random_inputs(signature.inputs, SEED)
    agreement = agreement_of((), (spec.dtype for spec in signature.outputs))
    try:
        expected = outputs_of(largest, samples)
        for batch, model in models.items():
            inputs = random_inputs(model.signature.inputs, SEED + batch)
            # Each second place has a known sample, which was one place before: of batch 1 the only one has the last.
            places = np.arange(min(1, batch - 1), batch, 2)
            for array, known in zip(inputs, samples, strict=True):
                array[places] = known[places - 1]
            pairs = zip(outputs_of(model, inputs), expected, strict=True)
            worst = max(relative_difference(found[places], known[places - 1]) for found, known in pairs)
            require_apart(worst, agreement, batch)
    except InputError:
        # Random numbers are no indices into its tensors: there is nothing to compare.
        return
