"""Thirty networks as people bring them, small: torchvision's, and the shapes of U-Nets, detectors and recognisers."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch_cases.case import seeded
from vision import torchvision_models as vision


def block(inputs, outputs, size=3, stride=1, groups=1, activation=nn.SiLU):
    """A convolution, its batch norm and an activation."""
    conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), activation())


class UNet(nn.Module):
    """Ronneberger et al. 2015, `up` being a layer or a mode of interpolation."""

    def __init__(self, up="transposed", width=8):
        super().__init__()
        self.up = up
        self.down = nn.ModuleList([block(3, width), block(width, 2 * width), block(2 * width, 4 * width)])
        self.rise = nn.ModuleList(
            [nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), nn.ConvTranspose2d(2 * width, width, 2, 2)]
        )
        self.thin = nn.ModuleList([nn.Conv2d(4 * width, 2 * width, 1), nn.Conv2d(2 * width, width, 1)])
        self.join = nn.ModuleList([block(4 * width, 2 * width), block(2 * width, width)])
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x):
        skips = []
        for each in self.down[:-1]:
            skips.append(x := each(x))
            x = functional.max_pool2d(x, 2)
        x = self.down[-1](x)
        for index, (join, skip) in enumerate(zip(self.join, reversed(skips), strict=True)):
            if self.up == "transposed":
                x = self.rise[index](x)
            else:
                corners = True if self.up == "bilinear" else None
                x = functional.interpolate(self.thin[index](x), skip.shape[2:], mode=self.up, align_corners=corners)
            x = functional.pad(x, (0, skip.shape[3] - x.shape[3], 0, skip.shape[2] - x.shape[2]))
            x = join(torch.cat([skip, x], 1))
        return self.head(x)


class Pyramid(nn.Module):
    """A feature pyramid (Lin et al. 2017) with a segmentation head that adds all levels."""

    def __init__(self, width=8):
        super().__init__()
        self.down = nn.ModuleList(
            [block(3, width, stride=2), block(width, width, stride=2), block(width, width, stride=2)]
        )
        self.across = nn.ModuleList([nn.Conv2d(width, width, 1) for _ in range(3)])
        self.smooth = nn.ModuleList(
            [nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU()) for _ in range(3)]
        )
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x):
        levels = []
        for down, across in zip(self.down, self.across, strict=True):
            levels.append(across(x := down(x)))
        for low in (1, 0):
            levels[low] = levels[low] + functional.interpolate(levels[low + 1], scale_factor=2)
        maps = [smooth(level) for smooth, level in zip(self.smooth, levels, strict=True)]
        size = maps[0].shape[2:]
        maps = [functional.interpolate(each, size, mode="bilinear", align_corners=False) for each in maps]
        return functional.interpolate(self.head(sum(maps)), scale_factor=2, mode="bilinear", align_corners=False)


class Linknet(nn.Module):
    """Chaurasia and Culurciello 2017: decoders of transposed convolutions, skips that are added."""

    def __init__(self, width=8):
        super().__init__()
        self.stem = block(3, width, stride=2, activation=nn.ReLU)
        self.encoders = nn.ModuleList([block(width, 2 * width, stride=2), block(2 * width, 4 * width, stride=2)])
        self.decoders = nn.ModuleList([self._decoder(4 * width, 2 * width), self._decoder(2 * width, width)])
        self.end = nn.ConvTranspose2d(width, 2, 3, 2, 1, 1)

    @staticmethod
    def _decoder(inputs, outputs):
        middle = nn.ConvTranspose2d(inputs // 4, inputs // 4, 3, 2, 1, 1)
        return nn.Sequential(
            block(inputs, inputs // 4, 1),
            middle,
            nn.BatchNorm2d(inputs // 4),
            nn.ReLU(),
            block(inputs // 4, outputs, 1),
        )

    def forward(self, x):
        first = self.stem(x)
        second = self.encoders[0](first)
        y = self.decoders[0](self.encoders[1](second)) + second
        return self.end(self.decoders[1](y) + first)


class Recogniser(nn.Module):
    """CRNN (Shi et al. 2015): convolutions, then recurrences over columns, then classes of each column."""

    def __init__(self, kind=nn.LSTM):
        super().__init__()
        self.maps = nn.Sequential(
            block(1, 8),
            nn.MaxPool2d(2),
            block(8, 16),
            nn.MaxPool2d((2, 1)),
            block(16, 16),
            nn.AdaptiveAvgPool2d((1, None)),
        )
        self.rows, self.classes = kind(16, 12, num_layers=2, bidirectional=True), nn.Linear(24, 11)

    def forward(self, x):
        columns = self.maps(x).squeeze(2).permute(2, 0, 1)
        return functional.log_softmax(self.classes(self.rows(columns)[0]), 2)


class Detector(nn.Module):
    """A YOLO: SiLU, split and concatenated bottlenecks, SPPF, upsampling, boxes as expectations over bins."""

    def __init__(self, width=8, classes=3):
        super().__init__()
        self.stem, self.low, self.split = (
            block(3, width, 3, 2),
            block(width, 2 * width, 3, 2),
            block(2 * width, 2 * width, 1),
        )
        self.inner, self.merge = block(width, width), block(3 * width, 2 * width, 1)
        self.high, self.spp_in, self.spp_out = (
            block(2 * width, 2 * width, 3, 2),
            block(2 * width, width, 1),
            block(4 * width, 2 * width, 1),
        )
        self.up, self.out = nn.Upsample(scale_factor=2), block(4 * width, 2 * width)
        self.head = nn.ModuleList([nn.Conv2d(2 * width, 4 * 8 + classes, 1) for _ in range(2)])

    def forward(self, x):
        a, b = self.split(self.low(self.stem(x))).chunk(2, 1)
        low = self.merge(torch.cat([a, b, b + self.inner(b)], 1))
        pooled = [self.spp_in(self.high(low))]
        for _ in range(3):
            pooled.append(functional.max_pool2d(pooled[-1], 5, 1, 2))
        high = self.spp_out(torch.cat(pooled, 1))
        maps = [self.out(torch.cat([self.up(high), low], 1)), high]
        found = torch.cat([head(each).flatten(2) for head, each in zip(self.head, maps, strict=True)], 2)
        bins, classes = found.split([32, found.shape[1] - 32], 1)
        bins = bins.view(len(x), 4, 8, -1).transpose(2, 1).softmax(1)
        boxes = (bins * torch.arange(8.0).view(1, 8, 1, 1)).sum(1)
        return torch.cat([boxes, classes.sigmoid()], 1)


class Generator(nn.Sequential):
    """DCGAN's (Radford et al. 2015)."""

    def __init__(self, width=8):
        def layer(inputs, outputs, *options):
            return [
                nn.ConvTranspose2d(inputs, outputs, 4, *options, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(True),
            ]

        super().__init__(
            *layer(16, 4 * width, 1, 0),
            *layer(4 * width, 2 * width, 2, 1),
            *layer(2 * width, width, 2, 1),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
            nn.Tanh(),
        )


class SuperResolution(nn.Module):
    """ESPCN (Shi et al. 2016) beside a bicubic enlargement."""

    def __init__(self):
        super().__init__()
        self.maps = nn.Sequential(
            nn.Conv2d(3, 16, 5, padding=2), nn.PReLU(16), nn.Conv2d(16, 12, 3, padding=1), nn.PixelShuffle(2)
        )

    def forward(self, x):
        return self.maps(x) + functional.interpolate(x, scale_factor=2, mode="bicubic", align_corners=False)


class Gated(nn.Module):
    """Squeeze and excitation, channel shuffles, spatial attention (CBAM)."""

    def __init__(self, width=16):
        super().__init__()
        self.stem, self.mix = block(3, width), block(width, width, groups=4)
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, 4, 1), nn.ReLU(), nn.Conv2d(4, width, 1), nn.Hardsigmoid()
        )
        self.shuffle, self.spatial, self.head = nn.ChannelShuffle(4), nn.Conv2d(2, 1, 7, padding=3), nn.Linear(width, 5)

    def forward(self, x):
        x = self.shuffle(self.mix(self.stem(x)))
        x = x * self.gate(x)
        x = x * torch.sigmoid(self.spatial(torch.cat([x.mean(1, True), x.amax(1, keepdim=True)], 1)))
        return self.head(x.flatten(2).mean(2))


class Spatial(nn.Module):
    """A spatial transformer (Jaderberg et al. 2015) before a small classifier."""

    def __init__(self):
        super().__init__()
        self.where = nn.Sequential(
            nn.Conv2d(1, 4, 5, 2), nn.ReLU(), nn.AdaptiveMaxPool2d(4), nn.Flatten(), nn.Linear(64, 6)
        )
        self.what = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.SELU(), nn.AdaptiveAvgPool2d((3, 2)), nn.Flatten(), nn.Linear(48, 5)
        )

    def forward(self, x):
        grid = functional.affine_grid(self.where(x).view(-1, 2, 3), list(x.shape), align_corners=False)
        return self.what(functional.grid_sample(x, grid, align_corners=False))


def _convnext():
    from torchvision.models.convnext import CNBlockConfig

    return vision().ConvNeXt([CNBlockConfig(16, 32, 1), CNBlockConfig(32, None, 2)], num_classes=10)


class Out(nn.Module):
    """The map of a segmentation model, which returns a dictionary."""

    def __init__(self, kind):
        super().__init__()
        self.model = getattr(vision().segmentation, kind)(weights=None, weights_backbone=None, num_classes=3)

    def forward(self, x):
        return self.model(x)["out"]


IMAGE, TEXT, FEW = (1, 3, 64, 64), (1, 1, 16, 48), (1, 3, 32, 32)
# Name -> (what makes it, shape of its input).
NETWORKS = {
    "resnet18": (lambda: vision().resnet18(num_classes=10), IMAGE),
    "resnext": (
        lambda: vision().ResNet(vision().resnet.Bottleneck, [1, 1, 1, 1], 10, groups=4, width_per_group=8),
        IMAGE,
    ),
    "vgg": (lambda: nn.Sequential(vision().vgg11_bn(num_classes=10).features[:15], nn.AdaptiveAvgPool2d(2)), IMAGE),
    "alexnet": (lambda: nn.Sequential(vision().alexnet(num_classes=10).features, nn.AdaptiveAvgPool2d((6, 6))), IMAGE),
    "squeezenet1_1": (lambda: vision().squeezenet1_1(num_classes=10), IMAGE),
    "densenet": (lambda: vision().DenseNet(8, (2, 2, 2), 16, num_classes=10), IMAGE),
    "googlenet": (lambda: vision().googlenet(num_classes=10, aux_logits=False, init_weights=False), IMAGE),
    "mobilenet_v2": (lambda: vision().mobilenet_v2(num_classes=10, width_mult=0.25), IMAGE),
    "mobilenet_v3": (lambda: vision().mobilenet_v3_small(num_classes=10), IMAGE),
    "mnasnet": (lambda: vision().mnasnet0_5(num_classes=10), IMAGE),
    "shufflenet_v2": (lambda: vision().shufflenet_v2_x0_5(num_classes=10), IMAGE),
    "efficientnet_b0": (lambda: vision().efficientnet_b0(num_classes=10), IMAGE),
    "regnet_y": (lambda: vision().regnet_y_400mf(num_classes=10), IMAGE),
    "convnext": (_convnext, IMAGE),
    "vit": (lambda: vision().VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=10), FEW),
    "swin": (lambda: vision().SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4], num_classes=10), FEW),
    "lraspp": (lambda: Out("lraspp_mobilenet_v3_large"), IMAGE),
    "deeplabv3": (lambda: Out("deeplabv3_mobilenet_v3_large"), IMAGE),
    "unet of transposed convolutions": (UNet, (1, 3, 36, 44)),
    "unet of odd sizes": (UNet, (1, 3, 33, 45)),
    "unet of nearest pixels": (lambda: UNet("nearest"), (1, 3, 35, 44)),
    "unet of bilinear pixels": (lambda: UNet("bilinear"), (1, 3, 35, 44)),
    "pyramid": (Pyramid, FEW),
    "linknet": (Linknet, FEW),
    "recogniser with an LSTM": (Recogniser, TEXT),
    "recogniser with a GRU": (lambda: Recogniser(nn.GRU), TEXT),
    "detector": (Detector, IMAGE),
    "generator": (Generator, (1, 16, 1, 1)),
    "super-resolution": (SuperResolution, (1, 3, 12, 10)),
    "gated": (Gated, FEW),
    "spatial transformer": (Spatial, (1, 1, 20, 22)),
}


def network(name):
    """The network of that name in evaluation mode, and an input."""
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    return seeded_norms(make()).eval(), torch.randn(shape)


def seeded_norms(module):
    """`module` whose batch norms have statistics that matter."""
    for each in module.modules():
        if isinstance(each, nn.BatchNorm2d | nn.GroupNorm):
            seeded(each)
            with torch.no_grad():
                each.weight.abs_().add_(0.5)
        # The last layer of a transformer is made of zeros.
        if isinstance(each, nn.Linear) and not each.weight.any():
            seeded(each)
    return module
