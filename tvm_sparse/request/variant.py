"""The shapes that a model is compiled for: each combination of a batch and a size is a variant of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm_sparse.errors import UsageError
from tvm_sparse.frontend.batch import batch_sizes

Shape = tuple[int, ...]
# As users give it: one shape, or several.
Shapes = Sequence[int] | Sequence[Sequence[int]]


@dataclass(frozen=True, eq=False)
class Variant:
    """One batch and size of a model.

    * `name`: "batch 8", "1x3x320x640", or "batch 8, 3x320x640": what tells it from the others; empty of the only one.
    * `batch`: None where the model, or `shapes`, says it.
    * `shapes`: input name -> shape, of the inputs for which users gave some.
    """

    name: str = ""
    batch: int | None = None
    shapes: Mapping[str, Shape] | None = None


def variants_of(shapes: Mapping[str, Shapes] | None, batch: int | Sequence[int] | None) -> list[Variant]:
    """Every batch of every size, each once, sizes as they were given.

    UsageError where a batch is not usable, or inputs have lists of shapes that differ in length.
    """
    lists = {name: _listed(each) for name, each in (shapes or {}).items()}
    lengths = {name: len(each) for name, each in lists.items() if len(each) > 1}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{length} of {name}" for name, length in lengths.items())
        hint = "the first shapes of all inputs belong together, then the second ones"
        raise UsageError("shapes", "one input has more of them than another", found, "as many of each, or one", hint)
    variants: dict[Any, Variant] = {}
    for at in range(max(lengths.values(), default=1)):
        row = {name: each[at if name in lengths else 0] for name, each in lists.items()}
        for size in [None] if batch is None else batch_sizes(batch):
            first = 0 if size is None else 1
            names = [f"batch {size}"] if size is not None else []
            names += [" and ".join("x".join(map(str, row[name][first:])) for name in lengths)] if lengths else []
            key = (size, *(shape[first:] for shape in row.values()))
            variants.setdefault(key, Variant(", ".join(names), size, row))
    return list(variants.values())


def _listed(shapes: Shapes) -> list[Shape]:
    several = [each for each in shapes if not isinstance(each, int)]
    return [tuple(each) for each in several] if several else [tuple(shapes)]  # type: ignore[arg-type]
