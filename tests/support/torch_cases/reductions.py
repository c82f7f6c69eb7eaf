"""Operators that reduce, order or accumulate."""

from __future__ import annotations

import torch

from torch_cases.case import booleans, f32, integers, special

_X = f32(2, 3, 4)
_TIES = torch.tensor([[1.0, 3.0, 3.0, 2.0], [2.0, 2.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]])


def _over(reduce, dims=(0, 1, -1, -2, (0, 2), (-1, -3))):
    """`reduce` over everything, and over dimensions, kept or not."""
    of_dims = [lambda x, d=dim, k=keep: reduce(x, d, k) for dim in dims for keep in (False, True)]
    return [reduce, *of_dims]


def _one_by_one(reduce):
    return [lambda x, d=dim, k=keep: reduce(x, d, k) for dim in (0, 1, -1) for keep in (False, True)]


CASES = {
    "sums": ([_X], [*_over(torch.sum), lambda x: x.sum(dtype=torch.float32), lambda x: x.sum((0, 1, 2))]),
    "means": ([_X], [*_over(torch.mean), lambda x: x.mean(1, dtype=torch.float32), lambda x: x.mean((0, 1, 2), True)]),
    "sums of integers": (
        [integers(2, 3, 4)],
        [*_over(torch.sum), lambda x: x.sum(1, dtype=torch.float32), lambda x: x.sum(1, dtype=torch.int32)],
    ),
    "sums of short integers": ([integers(2, 3, 4, dtype=torch.int32)], _over(torch.sum)),
    "means of integers": ([integers(2, 3, 4)], [lambda x: x.mean(1, dtype=torch.float32), lambda x: x.float().mean()]),
    "sums of booleans": ([booleans(2, 3, 4)], _over(torch.sum)),
    "products": ([_X], [torch.prod, *_one_by_one(torch.prod)]),
    "products of integers": ([integers(2, 3, 4)], [torch.prod, *_one_by_one(torch.prod)]),
    "amax": ([_X], _over(torch.amax)),
    "amin": ([_X], _over(torch.amin)),
    "amax of specials": ([special(4, 5, nan=False)], [torch.amax, torch.amin, torch.max, torch.min, torch.aminmax]),
    "amax of specials by rows": (
        [special(4, 5, nan=False)],
        [lambda x: x.amax(1), lambda x: x.amin(1), lambda x: x.max(1)[0]],
    ),
    "amax of integers": ([integers(2, 3, 4)], [*_over(torch.amax), torch.max, torch.min]),
    "max": ([_X], [torch.max, *_one_by_one(torch.max)]),
    "min": ([_X], [torch.min, *_one_by_one(torch.min)]),
    "max of ties": ([_TIES], [lambda x: x.max(1), lambda x: x.min(1), lambda x: x.max(0), lambda x: x.min(0)]),
    "max of integers": ([integers(3, 5)], [lambda x: x.max(1), lambda x: x.min(1), torch.max]),
    "variances": (
        [_X],
        [
            torch.var,
            torch.std,
            *(lambda x, d=dim, k=keep: x.var(d, keepdim=k) for dim in (1, -1, (0, 2)) for keep in (False, True)),
            lambda x: x.std(1),
            lambda x: x.var(1, unbiased=False),
            lambda x: x.std((1, 2), unbiased=False, keepdim=True),
            lambda x: x.var((0, 1), correction=2),
            lambda x: torch.var_mean(x, 1),
            lambda x: torch.std_mean(x, (1, 2), keepdim=True),
            lambda x: torch.var_mean(x, 1, unbiased=False),
        ],
    ),
    "norms": (
        [_X],
        [
            torch.norm,
            lambda x: x.norm(dim=1),
            lambda x: x.norm(2, -1, True),
            lambda x: x.norm(1, 1),
            lambda x: x.norm(3, 1),
            lambda x: x.norm(float("inf"), 1),
            lambda x: x.norm(-float("inf"), 1),
            lambda x: x.norm(0, 1),
            lambda x: torch.linalg.vector_norm(x, dim=(0, 2)),
            torch.linalg.norm,
            torch.linalg.matrix_norm,
            torch.nn.functional.normalize,
            lambda x: torch.nn.functional.normalize(x, 1.0, -1, 1e-3),
            lambda x: x.norm("fro"),
        ],
    ),
    "logsumexp": ([_X * 30], [lambda x: x.logsumexp(1), lambda x: x.logsumexp((0, -1), True)]),
    "argmax": (
        [_X],
        [
            reduce
            for each in (torch.argmax, torch.argmin)
            for reduce in (
                each,
                *(lambda x, r=each, d=dim, k=keep: r(x, d, k) for dim in (0, -1) for keep in (False, True)),
            )
        ],
    ),
    "argmax of ties": ([_TIES], [lambda x: x.argmax(1), lambda x: x.argmin(1), lambda x: x.argmax(0), torch.argmax]),
    "argmax of integers": ([integers(3, 5)], [lambda x: x.argmax(1), lambda x: x.argmin(0)]),
    "argmax of specials": ([special(4, 5, nan=False)], [lambda x: x.argmax(1), lambda x: x.argmin(1), torch.argmax]),
    "any and all": (
        [booleans(2, 3, 4)],
        [torch.any, torch.all, *_one_by_one(torch.any), *_one_by_one(torch.all), lambda x: x.any((0, 2))],
    ),
    "any and all of numbers": ([integers(3, 4)], [torch.any, torch.all, lambda x: x.any(1), lambda x: x.all(0)]),
    "any and all of fractions": ([special(3, 4)], [torch.any, torch.all, lambda x: x.any(1), lambda x: x.all(0)]),
    "count of what is not zero": ([integers(3, 4)], [torch.count_nonzero, lambda x: x.count_nonzero(1)]),
    "cumulative": (
        [_X],
        [f for each in (torch.cumsum, torch.cumprod) for f in (lambda x, c=each, d=dim: c(x, d) for dim in (0, 1, -1))],
    ),
    "cumulative of integers": (
        [integers(3, 4)],
        [
            lambda x: x.cumsum(0),
            lambda x: x.cumsum(-1),
            lambda x: x.cumprod(1),
            lambda x: x.cumsum(1, dtype=torch.float32),
        ],
    ),
    "cumulative of short integers": ([integers(3, 4, dtype=torch.int32)], [lambda x: x.cumsum(0)]),
    "cumulative of booleans": ([booleans(3, 4)], [lambda x: x.cumsum(1)]),
    "differences": ([_X], [lambda x: x.diff(dim=1), torch.diff]),
    "sort": (
        [_X],
        [
            torch.sort,
            *(lambda x, d=dim, r=down: x.sort(d, r) for dim in (0, 1, -1) for down in (False, True)),
            torch.argsort,
            lambda x: x.argsort(0, descending=True),
            torch.msort,
        ],
    ),
    "sort of ties": (
        [_TIES],
        [lambda x: x.sort(dim=1, stable=True), lambda x: x.sort(dim=1, descending=True, stable=True)],
    ),
    "sort of integers": ([torch.arange(12).flip(0).reshape(3, 4)], [lambda x: x.sort(1), lambda x: x.sort(0, True)]),
    "topk": (
        [_X],
        [
            lambda x: x.topk(2),
            lambda x: x.topk(3, -1, True, True),
            lambda x: x.topk(2, 1),
            lambda x: x.topk(1, 0),
            lambda x: x.topk(2, -1, False),
            lambda x: x.topk(3, 1, False, True),
        ],
    ),
    "topk of integers": ([torch.arange(12).flip(0).reshape(3, 4)], [lambda x: x.topk(2), lambda x: x.topk(2, 0)]),
    "median": ([f32(3, 5)], [torch.median, lambda x: x.median(1), lambda x: x.median(0, True), lambda x: x.median(-1)]),
    "quantile": ([f32(3, 5)], [lambda x: x.quantile(0.25, 1)]),
    "bucketize": (
        [f32(3, 5), torch.tensor([-1.0, 0.0, 0.5, 1.0])],
        [torch.bucketize, lambda x, b: torch.bucketize(x, b, right=True)],
    ),
    "isin": ([integers(3, 5), torch.tensor([1, 3])], [torch.isin]),
}
