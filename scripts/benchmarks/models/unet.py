"""U-Net, which neither torchvision nor timm has."""

from typing import Any

import torch
from torch import nn

WIDTHS = (64, 128, 256, 512, 1024)


class UNet(nn.Module):
    """That of Ronneberger et al. 2015, with padding, so that maps keep their size, and batch norm; 31 million weights.

    Images (N, 3, H, W), multiples of 16, become scores of two classes (N, 2, H, W).
    """

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(_two(before, after) for before, after in zip((3, *WIDTHS), WIDTHS, strict=False))
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * width, width, 2, 2) for width in WIDTHS[-2::-1])
        self.joined = nn.ModuleList(_two(2 * width, width) for width in WIDTHS[-2::-1])
        self.last = nn.Conv2d(WIDTHS[0], 2, 1)

    def forward(self, x: Any) -> Any:
        """The scores."""
        y, skipped = self.down[0](x), []
        for layers in self.down[1:]:
            skipped.append(y)
            y = layers(self.pool(y))
        for up, layers in zip(self.up, self.joined, strict=True):
            y = layers(torch.cat([skipped.pop(), up(y)], 1))
        return self.last(y)


def _two(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(
        *(
            layer
            for channels in (before, after)
            for layer in (nn.Conv2d(channels, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU())
        )
    )
