"""Layers with parameters: convolutions, products of matrices, norms, recurrences, attention."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from torch_cases.case import booleans, f32, indices, positive, seeded

_MAPS, _ROWS, _VOLUMES = f32(2, 4, 8, 9), f32(2, 4, 11), f32(1, 4, 5, 6, 7)


def _seeded(*layers):
    return [seeded(layer) for layer in layers]


def _recurrent(kind, **options):
    return seeded(kind(4, 6, **options))


_RECURRENT = (
    {},
    {"batch_first": True},
    {"bidirectional": True},
    {"num_layers": 2},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
    {"bias": False},
    {"num_layers": 2, "dropout": 0.5},
)


class SelfAttention(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.attention = seeded(nn.MultiheadAttention(8, 2, batch_first=True, **options))

    def forward(self, x):
        return self.attention(x, x, x)


class AsExported(nn.Module):
    """Every operator that torch does not decompose where a network has no others, with all of its options."""

    def __init__(self):
        super().__init__()
        self.layers = seeded(nn.Sequential(nn.Conv2d(4, 8, 3, 2, 1, 1, 2), nn.BatchNorm2d(8), nn.ReLU(True)))
        self.one = seeded(nn.Conv2d(8, 8, 3, 1, 2, 2, bias=False))
        self.plain = nn.BatchNorm2d(8, affine=False)
        self.relu6, self.drop = nn.ReLU6(True), nn.Dropout(inplace=True)
        self.last = seeded(nn.Linear(8, 3, bias=False))

    def forward(self, x):
        y = self.layers(x)
        z = self.plain(self.one(functional.dropout(y, training=False))) * 0.5
        z += y
        z = functional.hardtanh(functional.relu(self.relu6(z)) * y + 0.1, -0.3, 0.4)
        few = functional.adaptive_avg_pool2d(z, (3, 2)).permute(0, 2, 1, 3).reshape(-1, 8, 3, 2).mean((2, 3), True)
        pools = [
            functional.max_pool2d(z, 2, 2, 1, ceil_mode=True),
            functional.max_pool2d(z, 3, 1, 1, 2),
            functional.avg_pool2d(z, 3, 2, 1, True, False),
            functional.avg_pool2d(z, 2),
        ]
        means = [torch.flatten(each, 2).mean(2).view(2, 8, 1, 1) for each in pools]
        joined = torch.cat([torch.sigmoid(few), *means], 0).mean([2, 3])
        return self.last(self.drop(joined * 2)), torch.flatten(functional.hardtanh_(z * 1.5), 1)


class WithState(nn.Module):
    """A recurrent layer whose state has that many tensors."""

    def __init__(self, layer, count):
        super().__init__()
        self.layer, self.count = layer, count

    def forward(self, x, h, c):
        return self.layer(x, (h, c) if self.count == 2 else h)


CASES = {
    "convolutions": (
        [_MAPS],
        _seeded(
            nn.Conv2d(4, 6, 3),
            nn.Conv2d(4, 6, 3, 2, 1, bias=False),
            nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 2)),
            nn.Conv2d(4, 8, 3, groups=2, padding="same"),
            nn.Conv2d(4, 4, 3, groups=4, padding="valid"),
            nn.Conv2d(4, 6, (4, 2), padding="same"),
            nn.Conv2d(4, 6, 3, padding=2, padding_mode="reflect"),
            nn.Conv2d(4, 6, 3, padding=(1, 2), padding_mode="circular"),
            nn.Conv2d(4, 6, 3, padding=1, padding_mode="replicate"),
        ),
    ),
    "convolutions without a batch": ([f32(4, 8, 9)], _seeded(nn.Conv2d(4, 6, 3), nn.ConvTranspose2d(4, 6, 3))),
    "convolutions of rows": (
        [_ROWS],
        _seeded(
            nn.Conv1d(4, 6, 3),
            nn.Conv1d(4, 6, 3, 2, 1, 2, bias=False),
            nn.Conv1d(4, 8, 4, groups=2, padding="same"),
            nn.Conv1d(4, 6, 3, padding=2, padding_mode="reflect"),
            nn.Conv1d(4, 6, 3, padding=1, padding_mode="circular"),
        ),
    ),
    "convolutions of volumes": (
        [_VOLUMES],
        _seeded(
            nn.Conv3d(4, 6, 3),
            nn.Conv3d(4, 6, (1, 3, 2), (1, 2, 1), (0, 1, 0), bias=False),
            nn.Conv3d(4, 8, 2, groups=2, dilation=2),
            nn.Conv3d(4, 4, 3, groups=4, padding="same"),
        ),
    ),
    "transposed convolutions": (
        [_MAPS],
        _seeded(
            nn.ConvTranspose2d(4, 6, 3),
            nn.ConvTranspose2d(4, 6, 4, 2, 1, bias=False),
            nn.ConvTranspose2d(4, 6, 3, 2, 1, 1),
            nn.ConvTranspose2d(4, 8, 3, 2, groups=2),
            nn.ConvTranspose2d(4, 4, 3, groups=4),
            nn.ConvTranspose2d(4, 6, 3, dilation=2),
            nn.ConvTranspose2d(4, 6, (3, 2), (2, 3), (1, 0), (1, 2)),
        ),
    ),
    "transposed convolutions of rows": (
        [_ROWS],
        _seeded(
            nn.ConvTranspose1d(4, 6, 3),
            nn.ConvTranspose1d(4, 6, 4, 2, 1, 1),
            nn.ConvTranspose1d(4, 8, 3, 2, groups=2),
            nn.ConvTranspose1d(4, 6, 3, dilation=2),
        ),
    ),
    "transposed convolutions of volumes": (
        [f32(1, 4, 3, 4, 2)],
        _seeded(
            nn.ConvTranspose3d(4, 6, 2, 2),
            nn.ConvTranspose3d(4, 6, 3, 2, 1, 1, bias=False),
            nn.ConvTranspose3d(4, 8, 3, groups=2),
        ),
    ),
    "what is imported as it was exported": ([_MAPS], [AsExported()]),
    "linear layers": ([f32(3, 5)], _seeded(nn.Linear(5, 4), nn.Linear(5, 4, bias=False))),
    "linear layers of rows": ([f32(2, 3, 5)], _seeded(nn.Linear(5, 4), nn.Linear(5, 4, bias=False))),
    "linear layers of vectors": ([f32(5)], _seeded(nn.Linear(5, 4), nn.Linear(5, 4, bias=False))),
    "products": (
        [f32(2, 3, 4), f32(2, 4, 5)],
        [
            torch.bmm,
            torch.matmul,
            lambda a, b: a @ b[0],
            lambda a, b: a[0] @ b,
            lambda a, b: a[0] @ b[0],
            lambda a, b: a[0, 0] @ b[0],
            lambda a, b: a @ b[0, :, 0],
            lambda a, b: a[0, 0] @ b[0, :, 0],
            lambda a, b: torch.mm(a[0], b[0]),
            lambda a, b: torch.mv(a[0], b[0, :, 0]),
            lambda a, b: torch.dot(a[0, 0], b[0, :, 0]),
            lambda a, b: a[:, None] @ b[None],
            lambda a, b: torch.baddbmm(torch.ones(5), a, b),
            lambda a, b: torch.baddbmm(torch.ones(5), a, b, beta=0.5, alpha=2),
            lambda a, b: torch.addmm(torch.ones(5), a[0], b[0]),
            lambda a, b: torch.addmm(torch.ones(5), a[0], b[0], beta=0.5, alpha=2),
            lambda a, b: torch.addmv(torch.ones(3), a[0], b[0, :, 0]),
            lambda a, b: torch.outer(a[0, 0], b[0, 0]),
            lambda a, b: torch.kron(a[0], b[0]),
            lambda a, b: torch.einsum("bij,bjk->bik", a, b),
            lambda a, b: torch.einsum("bij,bjk->bki", a, b),
            lambda a, b: torch.einsum("bij,cjk->bcik", a, b),
            lambda a, b: torch.einsum("bij->ji", a),
            lambda a, b: torch.einsum("bij,bjk->", a, b),
            lambda a, b: torch.tensordot(a, b, ([2], [1])),
            lambda a, b: torch.linalg.multi_dot([a[0], b[0], b[0].T]),
            lambda a, b: torch.cross(a[:, :, :3], b[:, :3, :3], dim=1),
        ],
    ),
    "batch norms": (
        [_MAPS],
        _seeded(
            nn.BatchNorm2d(4),
            nn.BatchNorm2d(4, eps=0.1, momentum=0.3),
            nn.BatchNorm2d(4, affine=False),
        ),
    ),
    "batch norms of rows": ([_ROWS], _seeded(nn.BatchNorm1d(4), nn.BatchNorm1d(4, affine=False))),
    "batch norms of matrices": ([f32(3, 4)], _seeded(nn.BatchNorm1d(4))),
    "batch norms of volumes": ([_VOLUMES], _seeded(nn.BatchNorm3d(4))),
    "norms": (
        [_MAPS],
        _seeded(
            nn.BatchNorm2d(4, affine=False),
            nn.GroupNorm(2, 4),
            nn.GroupNorm(1, 4, eps=0.1),
            nn.GroupNorm(4, 4, affine=False),
            nn.InstanceNorm2d(4),
            nn.InstanceNorm2d(4, affine=True, eps=0.1),
            nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
            nn.LayerNorm([4, 8, 9]),
            nn.LayerNorm([8, 9], eps=0.1),
            nn.LayerNorm(9, elementwise_affine=False),
            nn.LayerNorm(9, bias=False),
            nn.RMSNorm(9),
            nn.RMSNorm([8, 9], eps=0.1),
            nn.RMSNorm(9, elementwise_affine=False),
        ),
    ),
    "norms of rows": (
        [_ROWS],
        _seeded(nn.GroupNorm(2, 4), nn.InstanceNorm1d(4, affine=True), nn.LayerNorm(11), nn.RMSNorm(11)),
    ),
    "norms of matrices": ([f32(3, 4)], _seeded(nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.RMSNorm(4))),
    "norms of volumes": ([_VOLUMES], _seeded(nn.GroupNorm(2, 4), nn.InstanceNorm3d(4, affine=True))),
    "LSTM": ([f32(3, 2, 4)], [_recurrent(nn.LSTM, **options) for options in (*_RECURRENT, {"proj_size": 3})]),
    "GRU": ([f32(3, 2, 4)], [_recurrent(nn.GRU, **options) for options in _RECURRENT]),
    "RNN": (
        [f32(3, 2, 4)],
        [_recurrent(nn.RNN, **options) for options in (*_RECURRENT, {"nonlinearity": "relu"})],
    ),
    "recurrent without a batch": ([f32(3, 4)], [_recurrent(nn.LSTM), _recurrent(nn.GRU)]),
    "recurrent with a state": (
        [f32(3, 2, 4), f32(1, 2, 6), f32(1, 2, 6)],
        [WithState(_recurrent(nn.LSTM), 2), WithState(_recurrent(nn.GRU), 1)],
    ),
    "cells": (
        [f32(2, 4), f32(2, 6), f32(2, 6)],
        [
            WithState(seeded(nn.LSTMCell(4, 6)), 2),
            WithState(seeded(nn.GRUCell(4, 6)), 1),
            WithState(seeded(nn.RNNCell(4, 6)), 1),
        ],
    ),
    "attention": (
        [f32(2, 5, 8)],
        [
            SelfAttention(),
            SelfAttention(bias=False),
            SelfAttention(add_zero_attn=True),
            SelfAttention(add_bias_kv=True),
            seeded(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)),
            seeded(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True, activation="gelu")),
        ],
    ),
    "scaled dot products": (
        [f32(2, 2, 5, 8), f32(2, 2, 6, 8), f32(2, 2, 6, 4)],
        [
            functional.scaled_dot_product_attention,
            lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
            lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, scale=0.3),
            lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, q[..., :6]),
            lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, torch.ones(5, 6).tril().bool()),
            lambda q, k, v: functional.scaled_dot_product_attention(q, q, q),
            lambda q, k, v: functional.scaled_dot_product_attention(q[0], k[0], v[0]),
            lambda q, k, v: functional.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True),
        ],
    ),
    "scaled dot products with a mask": (
        [f32(2, 2, 5, 8), booleans(5, 5) | torch.eye(5).bool()],
        [lambda q, m: functional.scaled_dot_product_attention(q, q, q, m)],
    ),
    "branches": (
        [f32(2, 3)],
        [
            lambda x: torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x[:, -1:] - x, (x,)),
            lambda x: torch.cond(x.sum() <= 0, lambda x: x.sin() + 1, lambda x: x[:, -1:] - x, (x,)),
        ],
    ),
    "embeddings": (
        [indices(7, 3, 2)],
        [
            *_seeded(nn.Embedding(7, 4), nn.Embedding(7, 4, padding_idx=2)),
        ],
    ),
    "losses": ([f32(3, 5), indices(5, 3)], [functional.cross_entropy, functional.nll_loss]),
    "batch norms in functions": (
        [_MAPS, f32(4), positive(4), f32(4)],
        [lambda x, m, v, w: functional.batch_norm(x, m, v, w, m), lambda x, m, v, w: functional.batch_norm(x, m, v)],
    ),
}
