"""Operators on maps: pads, pools, interpolation, sampling, shuffles."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn import functional

from torch_cases.case import f32, seeded, special

_MAPS = f32(2, 4, 7, 9)
_SMALL = f32(1, 2, 5, 6)


def _interpolations(mode, sizes, scales, flags=({},)):
    by_size = [{"size": size, **flag} for size in sizes for flag in flags]
    by_scale = [
        {"scale_factor": scale, "recompute_scale_factor": recompute, **flag}
        for scale in scales
        for flag in flags
        for recompute in (None, True)
    ]
    return [lambda x, o=options: functional.interpolate(x, mode=mode, **o) for options in (*by_size, *by_scale)]


_CORNERS = ({"align_corners": False}, {"align_corners": True})
_SIZES = ((10, 12), (7, 9), (3, 4), (13, 5), (1, 1), (15, 18))
_SCALES = (2, (2, 3), 1.5, 0.5, (0.7, 1.3))


CASES = {
    "pads": (
        [_MAPS],
        [
            lambda x: functional.pad(x, (1, 2)),
            lambda x: functional.pad(x, (1, 2, 3, 0), value=1.5),
            lambda x: functional.pad(x, (0, 0, 1, 1, 0, 2)),
            lambda x: functional.pad(x, (-1, 2, 1, -2)),
            lambda x: functional.pad(x, (1, 1, 1, 1), value=float("-inf")),
            nn.ZeroPad2d(2),
            nn.ConstantPad2d((1, 0, 2, 1), 3),
            nn.ReflectionPad2d(2),
            nn.ReflectionPad2d((1, 3, 0, 2)),
            nn.ReplicationPad2d(2),
            nn.ReplicationPad2d((1, 3, 0, 2)),
            nn.CircularPad2d((1, 2, 3, 0)),
            nn.ReplicationPad2d((-1, 2, 0, -1)),
        ],
    ),
    "pads of rows": (
        [f32(2, 3, 7)],
        [
            nn.ReflectionPad1d((2, 1)),
            nn.ReplicationPad1d(2),
            nn.CircularPad1d(2),
            nn.ConstantPad1d((1, 2), 0.5),
            nn.ZeroPad1d(1),
        ],
    ),
    "pads of volumes": (
        [f32(1, 2, 4, 5, 3)],
        [
            nn.ReflectionPad3d(1),
            nn.ReplicationPad3d((1, 0, 2, 1, 0, 3)),
            nn.CircularPad3d(1),
            nn.ConstantPad3d(1, 2.0),
        ],
    ),
    "max pools": (
        [_MAPS],
        [
            nn.MaxPool2d(2),
            nn.MaxPool2d(3, 2, 1),
            nn.MaxPool2d(3, 1, 1),
            nn.MaxPool2d((3, 2), (2, 1), (1, 0)),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            nn.MaxPool2d(2, 2, 1, ceil_mode=True),
            nn.MaxPool2d(2, 3, 1, ceil_mode=True),
            nn.MaxPool2d(3, 1, dilation=2),
            nn.MaxPool2d(2, 2, 1, dilation=3, ceil_mode=True),
            nn.MaxPool2d(3, 1, 1, dilation=(1, 2)),
            lambda x: nn.MaxPool2d(2)(x[0]),
        ],
    ),
    "max pools of specials": ([special(1, 1, 6, 6, nan=False)], [nn.MaxPool2d(2), nn.MaxPool2d(3, 1, 1)]),
    "average pools": (
        [_MAPS],
        [
            nn.AvgPool2d(2),
            nn.AvgPool2d(3, 2, 1),
            nn.AvgPool2d(3, 1, 1, count_include_pad=False),
            nn.AvgPool2d((3, 2), (2, 1), (1, 0)),
            nn.AvgPool2d(3, 2, ceil_mode=True),
            nn.AvgPool2d(3, 2, 1, ceil_mode=True),
            nn.AvgPool2d(2, 2, 1, ceil_mode=True, count_include_pad=False),
            nn.AvgPool2d(3, 3, 1, ceil_mode=True),
            nn.AvgPool2d(2, divisor_override=3),
            lambda x: nn.AvgPool2d(2)(x[0]),
            nn.LPPool2d(2, 2),
            nn.LPPool2d(3, (2, 3), 2),
        ],
    ),
    "pools of rows": (
        [f32(2, 3, 11)],
        [
            nn.MaxPool1d(2),
            nn.MaxPool1d(3, 2, 1),
            nn.MaxPool1d(3, 2, ceil_mode=True),
            nn.MaxPool1d(3, 1, dilation=2),
            nn.AvgPool1d(2),
            nn.AvgPool1d(3, 2, 1),
            nn.AvgPool1d(3, 2, 1, count_include_pad=False),
            nn.AvgPool1d(3, 3, ceil_mode=True),
            nn.LPPool1d(2, 3),
        ],
    ),
    "pools of volumes": (
        [f32(1, 2, 5, 6, 7)],
        [
            nn.MaxPool3d(2),
            nn.MaxPool3d(3, 2, 1),
            nn.MaxPool3d(2, 2, ceil_mode=True),
            nn.MaxPool3d(2, 1, dilation=2),
            nn.AvgPool3d(2),
            nn.AvgPool3d(3, 2, 1),
            nn.AvgPool3d(3, 2, 1, count_include_pad=False),
            nn.AvgPool3d(2, 2, ceil_mode=True),
            nn.AvgPool3d((1, 2, 3), (1, 2, 1)),
            nn.AvgPool3d(2, divisor_override=3),
        ],
    ),
    "adaptive pools": (
        [_MAPS],
        [
            nn.AdaptiveAvgPool2d(1),
            lambda x: functional.adaptive_avg_pool2d(x.contiguous(memory_format=torch.channels_last), 1),
            nn.AdaptiveAvgPool2d((7, 9)),
            nn.AdaptiveAvgPool2d((3, 4)),
            nn.AdaptiveAvgPool2d((None, 3)),
            nn.AdaptiveAvgPool2d((10, 2)),
            nn.AdaptiveMaxPool2d(1),
            nn.AdaptiveMaxPool2d((3, 4)),
            nn.AdaptiveMaxPool2d((None, 3)),
            nn.AdaptiveMaxPool2d((10, 2)),
            lambda x: nn.AdaptiveAvgPool2d((3, 4))(x[0]),
        ],
    ),
    "adaptive pools of rows": (
        [f32(2, 3, 11)],
        [nn.AdaptiveAvgPool1d(1), nn.AdaptiveAvgPool1d(4), nn.AdaptiveMaxPool1d(1), nn.AdaptiveMaxPool1d(4)],
    ),
    "adaptive pools of volumes": (
        [f32(1, 2, 5, 6, 7)],
        [
            nn.AdaptiveAvgPool3d(1),
            nn.AdaptiveAvgPool3d((2, 3, 4)),
            nn.AdaptiveAvgPool3d((5, 3, 7)),
            nn.AdaptiveMaxPool3d(1),
            nn.AdaptiveMaxPool3d((2, 3, 4)),
        ],
    ),
    "nearest": ([_MAPS], _interpolations("nearest", _SIZES, _SCALES)),
    "nearest-exact": ([_MAPS], _interpolations("nearest-exact", _SIZES, _SCALES)),
    "bilinear": ([_MAPS], _interpolations("bilinear", _SIZES, _SCALES, _CORNERS)),
    "bicubic": ([_MAPS], _interpolations("bicubic", _SIZES, _SCALES, _CORNERS)),
    "area": ([_MAPS], _interpolations("area", _SIZES, _SCALES)),
    "antialiased bilinear": (
        [_MAPS],
        _interpolations("bilinear", _SIZES, _SCALES, [{"antialias": True, **flag} for flag in _CORNERS]),
    ),
    "antialiased bicubic": (
        [_MAPS],
        _interpolations("bicubic", _SIZES, _SCALES, [{"antialias": True, **flag} for flag in _CORNERS]),
    ),
    "interpolation of rows": (
        [f32(2, 3, 7)],
        [
            *_interpolations("nearest", (14, 5), (2, 0.6)),
            *_interpolations("nearest-exact", (14, 5), (2,)),
            *_interpolations("linear", (14, 5), (2, 0.6), _CORNERS),
            *_interpolations("area", (3,), ()),
        ],
    ),
    "interpolation of volumes": (
        [f32(1, 2, 3, 4, 5)],
        [
            *_interpolations("nearest", ((6, 8, 10), (2, 5, 7)), (2,)),
            *_interpolations("nearest-exact", ((2, 5, 7),), (2,)),
            *_interpolations("trilinear", ((6, 8, 10), (2, 5, 7)), (2,), _CORNERS),
            *_interpolations("area", ((2, 2, 3),), ()),
        ],
    ),
    "upsampling layers": (
        [_SMALL],
        [
            nn.Upsample(scale_factor=2),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.UpsamplingNearest2d(scale_factor=2),
            nn.UpsamplingBilinear2d(scale_factor=2),
        ],
    ),
    "grid samples": (
        [_SMALL, torch.cat([f32(1, 3, 4, 2), torch.tensor([[[[-1.0, -1.0]] * 4, [[1.0, 1.0]] * 4]])], 1)],
        [
            lambda x, g, o=options: functional.grid_sample(x, g, *o)
            for options in itertools.product(
                ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection"), (False, True)
            )
        ],
    ),
    "affine grids": (
        [f32(2, 2, 3), f32(2, 2, 5, 6)],
        [
            lambda t, x: functional.affine_grid(t, list(x.shape), align_corners=False),
            lambda t, x: functional.affine_grid(t, [2, 2, 3, 4], align_corners=True),
            lambda t, x: functional.grid_sample(
                x, functional.affine_grid(t, list(x.shape), False), align_corners=False
            ),
        ],
    ),
    "shuffles": (
        [f32(2, 8, 4, 6)],
        [
            nn.PixelShuffle(2),
            nn.PixelUnshuffle(2),
            nn.ChannelShuffle(4),
            nn.ChannelShuffle(2),
            lambda x: functional.pixel_shuffle(x[0], 2),
        ],
    ),
    "fold": (
        [f32(2, 8, 6, 8)],
        [
            nn.Unfold(3),
            nn.Unfold((2, 3), (1, 2), (1, 0), (2, 1)),
            lambda x: functional.fold(functional.unfold(x, 2, stride=2), (6, 8), 2, stride=2),
            lambda x: functional.fold(functional.unfold(x, 3, padding=1), (6, 8), 3, padding=1),
            lambda x: functional.fold(functional.unfold(x, (2, 3), 2, 1, (1, 2)), (6, 8), (2, 3), 2, 1, (1, 2)),
        ],
    ),
    "local response norms": ([_MAPS], [nn.LocalResponseNorm(3), nn.LocalResponseNorm(2, 1e-2, 0.5, 2.0)]),
    "local response norms of rows": ([f32(2, 4, 7)], [nn.LocalResponseNorm(3)]),
    "shuffles after convolutions": ([_MAPS], [seeded(nn.Sequential(nn.Conv2d(4, 16, 3), nn.PixelShuffle(2)))]),
}
