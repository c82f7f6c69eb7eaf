"""Random weights: of a density, or like another in its pattern."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tvm_sparse.conv.codes import as_codes
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.storage import rounded
from tvm_sparse.conv.structure import Structure, vector_length
from tvm_sparse.conv.structured_mask import structured_mask


def normal_weight(spec: ConvSpec, density: float, seed: int | Sequence[int]) -> np.ndarray:
    """Normal random weight (K, C / groups, R, S) float32, of which the largest round(density * size) are kept.

    Before that, outputs of normal inputs have variance 1. Its numbers are of the spec's type.
    """
    shape = spec.weight_shape
    values = np.random.default_rng(seed).standard_normal(shape, np.float32) / math.sqrt(math.prod(shape[1:]))
    _drop_smallest(values.reshape(-1), values.size - round(density * values.size))
    return as_codes(values) if spec.is_quantised else rounded(values, spec.dtype)


def _drop_smallest(values: np.ndarray, count: int) -> None:
    """Set `count` of the values (size,) to zero, of equal ones the first."""
    if count > 0:
        # Not sorted: that takes seconds for a large weight.
        sizes = np.abs(values)
        limit = np.partition(sizes, count - 1)[count - 1]
        smaller = sizes < limit
        values[smaller] = 0
        values[np.flatnonzero(sizes == limit)[: count - np.count_nonzero(smaller)]] = 0


def weight_like(spec: ConvSpec, pattern: SparsityPattern) -> np.ndarray:
    """A random weight (K, C / groups, R, S) float32 of about the density of `pattern`, and, by all odds, its structure.

    Dead filters and channels are as many. Its numbers are of the spec's type.
    """
    rng = np.random.default_rng(int(pattern.mask_digest[:8], 16))
    weight = rng.uniform(0.5, 1, spec.weight_shape) * rng.choice((-1, 1), spec.weight_shape)
    kept = np.where(_mask_like(spec, pattern, rng), weight, 0).astype(np.float32)
    return as_codes(kept) if spec.is_quantised else rounded(kept, spec.dtype)


def _mask_like(spec: ConvSpec, pattern: SparsityPattern, rng: np.random.Generator) -> np.ndarray:
    k, channels, r, s = spec.weight_shape
    structure = pattern.structure
    if structure in ("dense", "empty"):
        return np.full(spec.weight_shape, structure == "dense")
    if ":" in structure:
        n, m = map(int, structure.split(":"))
        ranks = rng.random((k, channels // m, m, r, s)).argsort(axis=2)
        return (ranks < n).reshape(spec.weight_shape)
    if structure == "filters" or structure.startswith("slice") or structure.endswith("p"):
        return _permutable_mask_like(spec, pattern, rng)
    length = vector_length(structure)
    blocks = np.zeros((k // length, channels, r, s), bool)
    live_rows = rng.permutation(k // length)[pattern.dead_filters // length :]
    live_channels = rng.permutation(channels)[pattern.dead_channels :]
    places = np.stack(np.meshgrid(live_rows, live_channels, range(r), range(s), indexing="ij")).reshape(4, -1)
    chosen = rng.permutation(places.shape[1])[: max(pattern.nnz // length, 1)]
    blocks[tuple(places[:, chosen])] = True
    return blocks.repeat(length, axis=0)


def _permutable_mask_like(spec: ConvSpec, pattern: SparsityPattern, rng: np.random.Generator) -> np.ndarray:
    structure = Structure.named(pattern.structure)
    if structure.is_permuted:
        first = np.arange(spec.groups)[:, None] * (spec.k // spec.groups)
        within = rng.permuted(np.tile(np.arange(spec.k // spec.groups), (spec.groups, 1)), axis=1)
        structure = replace(structure, order=tuple((first + within).ravel().tolist()))
    return structured_mask(rng.random(spec.weight_shape), structure, 1 - pattern.density, spec.groups)
