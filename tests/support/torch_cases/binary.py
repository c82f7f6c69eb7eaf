"""Operators on two tensors, or a tensor and a number: broadcasts, element types, choices."""

from __future__ import annotations

import torch

from torch_cases.case import booleans, f32, integers, positive, special

_ARITHMETIC = [torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum, torch.rsub]
_COMPARISONS = [torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge]
_DIVISIONS = [
    torch.div,
    torch.floor_divide,
    torch.remainder,
    torch.fmod,
    lambda a, b: torch.div(a, b, rounding_mode="floor"),
    lambda a, b: torch.div(a, b, rounding_mode="trunc"),
]
_NON_ZERO = torch.tensor([-3, -2, -1, 1, 2, 3, 7])

CASES = {
    "arithmetic": ([f32(2, 3, 4), f32(2, 3, 4)], [*_ARITHMETIC, torch.fmax, torch.fmin]),
    "arithmetic by rows": ([f32(2, 3, 4), f32(3, 1)], _ARITHMETIC),
    "arithmetic by columns": ([f32(4), f32(2, 3, 4)], _ARITHMETIC),
    "arithmetic with a scalar tensor": ([f32(2, 3), f32()], _ARITHMETIC),
    "arithmetic of specials": (
        [special(3, 6), special(6, 3).T.contiguous()],
        [torch.add, torch.mul, torch.div, torch.fmax, torch.fmin],
    ),
    "arithmetic of integers": (
        [integers(3, 4), integers(4)],
        [torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, torch.rsub],
    ),
    "arithmetic of short integers": (
        [integers(3, 4, dtype=torch.int32), integers(4, dtype=torch.int32)],
        [torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum],
    ),
    "arithmetic of mixed types": (
        [integers(3, 4), f32(4)],
        [torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.rsub],
    ),
    "arithmetic of mixed integers": (
        [integers(3, 4), integers(4, dtype=torch.int32)],
        [torch.add, torch.sub, torch.mul, torch.maximum],
    ),
    "arithmetic of booleans and numbers": (
        [booleans(3, 4), f32(4)],
        [torch.add, torch.mul, lambda a, b: a * b + a, lambda a, b: b / (a + 1)],
    ),
    "arithmetic of booleans": ([booleans(3, 4), booleans(4)], [torch.add, torch.mul, lambda a, b: a.sum() + b]),
    "arithmetic with numbers": (
        [f32(3, 4)],
        [
            lambda x: x + 1,
            lambda x: x + 1.5,
            lambda x: 1 - x,
            lambda x: x - 2,
            lambda x: x * 3,
            lambda x: x / 3,
            lambda x: 2 / x,
            lambda x: x // 0.5,
            lambda x: x % 0.7,
            lambda x: x % -0.7,
            lambda x: torch.fmod(x, 0.7),
            lambda x: x * True,
        ],
    ),
    "arithmetic of integers with numbers": (
        [integers(3, 4)],
        [lambda x: x + 1, lambda x: 1 - x, lambda x: x - 2, lambda x: x * 3, lambda x: -x],
    ),
    "arithmetic of integers with fractions": (
        [integers(3, 4)],
        [
            lambda x: x + 1.5,
            lambda x: 1.5 - x,
            lambda x: x - 0.5,
            lambda x: x * 2.5,
            lambda x: x / 2,
            lambda x: x / 0.4,
            lambda x: 2.5 / (x.abs() + 1),
            lambda x: torch.add(x, 1, alpha=2),
        ],
    ),
    "arithmetic of booleans with numbers": (
        [booleans(3, 4)],
        [lambda x: x + 1, lambda x: x * 2, lambda x: x * 0.5, lambda x: 1 - x.float(), lambda x: x * 2.5 - 1],
    ),
    "scaled terms": (
        [f32(3, 4), f32(4)],
        [
            lambda a, b: torch.add(a, b, alpha=2),
            lambda a, b: torch.sub(a, b, alpha=0.5),
            lambda a, b: torch.rsub(a, b, alpha=3),
            lambda a, _: torch.rsub(a, 1.5, alpha=2),
            lambda a, b: (a * 1).add_(b, alpha=-1.5),
            lambda a, b: (a * 1).sub_(b, alpha=2),
            lambda a, b: torch.lerp(a, b, 0.3),
            lambda a, b: torch.addcmul(a, a, b, value=0.5),
            lambda a, b: torch.addcdiv(a, a, b.abs() + 1, value=0.5),
            lambda a, b: torch.addcmul(a, a, b),
        ],
    ),
    "scaled terms of integers": ([integers(3, 4), integers(4)], [lambda a, b: torch.add(a, b, alpha=2)]),
    "divisions": ([f32(3, 7) * 5, _NON_ZERO.float()], _DIVISIONS),
    "divisions of integers": ([integers(3, 7), _NON_ZERO], _DIVISIONS),
    "divisions of short integers": ([integers(3, 7, dtype=torch.int32), _NON_ZERO.int()], _DIVISIONS),
    "divisions of mixed types": ([integers(3, 7), _NON_ZERO.float()], _DIVISIONS),
    "divisions of integers by numbers": (
        [integers(3, 7)],
        [
            lambda x: x // 2,
            lambda x: x // -2,
            lambda x: x % 3,
            lambda x: x % -3,
            lambda x: torch.fmod(x, 3),
            lambda x: torch.div(x, 2, rounding_mode="trunc"),
            lambda x: torch.div(x, 2, rounding_mode="floor"),
            lambda x: x // 1.5,
            lambda x: x % 1.5,
        ],
    ),
    "comparisons": ([special(3, 6), special(3, 6).flip(0)], _COMPARISONS),
    "comparisons by rows": ([f32(3, 4), f32(3, 1)], _COMPARISONS),
    "comparisons of integers": ([integers(3, 4), integers(4)], _COMPARISONS),
    "comparisons of mixed types": ([integers(3, 4), f32(4)], _COMPARISONS),
    "comparisons with numbers": (
        [special(3, 6)],
        [lambda x: x == 0, lambda x: x != 0.5, lambda x: x < 1, lambda x: x <= 0.5, lambda x: x > 0, lambda x: x >= -1],
    ),
    "comparisons of integers with numbers": (
        [integers(3, 6)],
        [lambda x: x == 0, lambda x: x != 2, lambda x: x < 1, lambda x: x <= 0, lambda x: x > 0, lambda x: x >= -1],
    ),
    "comparisons of integers with fractions": (
        [integers(3, 6)],
        [
            lambda x: x == 0.5,
            lambda x: x != 2.5,
            lambda x: x < 1.5,
            lambda x: x <= -0.5,
            lambda x: x > 0.5,
            lambda x: x >= -1.5,
        ],
    ),
    "comparisons of booleans with numbers": ([booleans(3, 6)], [lambda x: x == 0, lambda x: x == 1, lambda x: x != 1]),
    "choices": (
        [booleans(3, 4), f32(3, 4), f32(4)],
        [
            torch.where,
            lambda c, a, _: torch.where(c, a, 0.5),
            lambda c, a, _: torch.where(c, 1, a),
            lambda c, _, b: torch.where(c[:, :1], 2.0, b),
            lambda c, a, _: a.masked_fill(c, -1e9),
            lambda c, a, _: a.masked_fill(c, float("-inf")),
            lambda c, a, _: a.masked_fill(c[:, :1], 0),
            lambda c, a, b: a.masked_fill(c, b.sum()),
            lambda c, _, __: torch.where(c, 1.0, 0.0),
        ],
    ),
    "choices of mixed types": (
        [booleans(3, 4), f32(3, 4), integers(4)],
        [
            torch.where,
            lambda c, _, b: torch.where(c, b, 3),
            lambda c, _, b: torch.where(c, b, 0.5),
            lambda c, _, b: b.expand(3, 4).masked_fill(c, 7),
        ],
    ),
    "extremes with numbers": (
        [special(3, 6, nan=False)],
        [lambda x: torch.maximum(x, torch.tensor(0.5)), lambda x: torch.minimum(x, torch.tensor(0.5))],
    ),
    "distances": (
        [f32(4, 8), f32(4, 8)],
        [
            torch.nn.CosineSimilarity(),
            torch.nn.CosineSimilarity(0, 1e-3),
            torch.nn.PairwiseDistance(),
            torch.nn.PairwiseDistance(1),
        ],
    ),
    "losses": (
        [positive(4, 8) / 1.2, positive(4, 8) / 1.2],
        [
            torch.nn.functional.mse_loss,
            torch.nn.functional.l1_loss,
            torch.nn.functional.smooth_l1_loss,
            torch.nn.functional.binary_cross_entropy,
            torch.nn.functional.huber_loss,
        ],
    ),
}
