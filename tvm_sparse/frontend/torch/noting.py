"""Converters of torch operators that note where an operator with indices comes from."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from tvm_sparse.frontend.origins import NotingBuilder, Origin
from tvm_sparse.frontend.torch.converters import Converter
from tvm_sparse.frontend.torch.graph import owner

# Torch takes -1 for the last element in these; in the others it is an error.
_COUNTING_BACK = ("index.Tensor", "index_put.default", "index_put_.default", "select.int", "take.default")
_INDEXED = (
    *_COUNTING_BACK,
    "embedding.default",
    "gather.default",
    "index_select.default",
    "roi_align.default",
    "scatter.src",
    "scatter.value",
)


def noting(converters: Mapping[str, Converter]) -> dict[str, Converter]:
    """`converters`, and those of TVM for operators with indices, by names of operators, with an `Origin` on these."""
    return {name: partial(_converted, name, converters.get(name)) for name in (*converters, *_INDEXED)}


def _converted(name: str, own: Converter | None, node: Any, importer: Any) -> Any:
    builder = importer.block_builder
    origin = Origin(f"operator {name.partition('.')[0]}, {owner(node)}", name in _COUNTING_BACK)
    importer.block_builder = NotingBuilder(builder, origin)
    try:
        # Where there is a converter of ours, TVM's map has that in the place of its own.
        return own(node, importer) if own is not None else importer.create_convert_map()[name](node)
    finally:
        importer.block_builder = builder
