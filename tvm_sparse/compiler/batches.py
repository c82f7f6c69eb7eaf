"""One model out of those compiled for several batch sizes, after a check that samples do not depend on each other."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import tvm

from tvm_sparse.compiler.checking.layer_check import agreement_of
from tvm_sparse.conv.reference import relative_difference
from tvm_sparse.errors import InputError, ModelError
from tvm_sparse.runtime.batched_model import AnyModel, BatchedModel
from tvm_sparse.runtime.compiled_model import CompiledModel
from tvm_sparse.target.compatibility import why_not_here

# The samples of the check are drawn from this seed.
SEED = 2020


def joined(models: Mapping[int | None, CompiledModel]) -> AnyModel:
    """`models`, by batch size, as one; the only one, where no batch was asked for.

    ModelError where what comes out for a sample depends on the batch that it is in. Checked where this machine runs the
    code.
    """
    if None in models:
        return models[None]
    sized = {size: model for size, model in models.items() if size is not None}
    found = BatchedModel(sized)
    for size, model in sized.items():
        model.verdict = replace(model.verdict, batch=size) if model.verdict is not None else None
    if why_not_here(found.target):
        return found
    rng = np.random.default_rng(SEED)
    first = [_random(rng, spec.shape[1:], spec.dtype) for spec in found.signature.inputs]
    expected = None
    agreement = agreement_of((), (spec.dtype for spec in found.signature.outputs))
    # The largest again: neighbours are others each time.
    for batch in (*found.batches, found.batches[-1]):
        try:
            outputs = _first_outputs(sized[batch], first, rng)
        except InputError:
            # Random numbers are no indices into its tensors: there is nothing to compare.
            return found
        expected = expected or outputs
        worst = max(map(relative_difference, outputs, expected))
        if not worst <= agreement:
            difference = f"a difference of {worst:.3g} of the largest value at batch {batch}"
            hint = "such a model is right only in the batch that it is given: compile it without batch"
            problem = "what comes out for a sample depends on the others of its batch"
            raise ModelError("model", problem, difference, f"up to {agreement}", hint)
    return found


def _first_outputs(model: CompiledModel, first: list[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    """What `model` makes of the sample `first` among random ones, one array an output."""
    inputs = [_random(rng, spec.shape, spec.dtype) for spec in model.signature.inputs]
    for array, sample in zip(inputs, first, strict=True):
        array[0] = sample
    outputs = model(*(tvm.runtime.tensor(array, model.device) for array in inputs))
    return [output.numpy()[0] for output in ([outputs] if model.signature.single else outputs)]


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Standard normal numbers; zeros and ones where they are to be integers, which may be indices."""
    if np.dtype(dtype).kind not in "iub":
        return np.asarray(rng.standard_normal(shape)).astype(dtype)
    return np.asarray(rng.integers(0, 2, shape)).astype(dtype)
