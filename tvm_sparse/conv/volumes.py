"""How a 2-D convolution reads maps of volumes in place: neighbours in depth, which are more channels of it."""

from typing import Any, NamedTuple

import numpy as np


class Volumes(NamedTuple):
    """The input is maps of volumes, `size` of each; the convolution has `outputs` images of each volume.

    Image o reads the channels of maps ``o * stride + tap * dilation - before`` for `taps` taps, in each of its groups
    one tap behind the other; of maps that there are none of, zeros. `before` is less than 0 where the first maps are
    not read.
    """

    size: int
    outputs: int
    taps: int
    stride: int = 1
    dilation: int = 1
    before: int = 0

    @property
    def last(self) -> int:
        """The map that the last tap of the last image reads."""
        return (self.outputs - 1) * self.stride + (self.taps - 1) * self.dilation - self.before

    @property
    def is_symmetric(self) -> bool:
        """Whether there are as many images where both ends have so many zeros as are before the first map."""
        reach = self.size + 2 * self.before - (self.taps - 1) * self.dilation - 1
        return reach >= 0 and reach // self.stride + 1 == self.outputs

    @property
    def within(self) -> "Volumes":
        """The same of volumes that have zeros where there was no map."""
        before = max(self.before, 0)
        return self._replace(size=before + max(self.size, self.last + 1), before=self.before - before)

    def tap(self, number: int) -> "Volumes":
        """What one of its taps reads."""
        return self._replace(taps=1, dilation=1, before=self.before - number * self.dilation)

    def shape(self, n: int, c: int, h: int, w: int) -> tuple[int, int, int, int]:
        """Of the maps, for a convolution that has the input (N, C, H, W)."""
        return n // self.outputs * self.size, c // self.taps, h, w

    def source(self, image: Any, channel: Any, channels: int) -> tuple[Any, Any, Any]:
        """(map, channel, place of the map in its volume, which may be outside) of what an image reads as a channel.

        Of expressions, where maps have so many `channels`, in one group.
        """
        place = image % self.outputs * self.stride + channel // channels * self.dilation - self.before
        return image // self.outputs * self.size + place, channel % channels, place

    def expanded(self, maps: np.ndarray, groups: int) -> np.ndarray:
        """What the convolution has of `maps` as its input (N, C, H, W)."""
        count, channels, h, w = maps.shape
        ends = (self.before, max(0, self.last + 1 - self.size))
        volumes = maps.reshape(-1, self.size, groups, channels // groups, h, w)
        volumes = np.pad(volumes, ((0, 0), ends, *[(0, 0)] * 4))
        places = np.arange(self.outputs)[:, None] * self.stride + np.arange(self.taps) * self.dilation
        # (volume, image, tap, group, channel, ..) with the taps of each group behind each other.
        found = volumes[:, places].transpose(0, 1, 3, 2, 4, 5, 6)
        return np.ascontiguousarray(found).reshape(count // self.size * self.outputs, self.taps * channels, h, w)
