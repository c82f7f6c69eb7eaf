"""Plots of the report on whole models, as SVG texts; matplotlib draws them (extra ``report``)."""

import math
from collections.abc import Sequence

from benchmarks.report.drawing import speed_bars
from benchmarks.report.model_rows import Network, fastest_us, ratio, sections, speed

# Most ratios lie between 0.5 and 4.
TICKS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)


def plots(networks: Sequence[Network]) -> list[tuple[str, str]]:
    """(title, SVG) of a plot for each pattern and density."""
    title = "Speed against torch's fastest in TF32"
    return [(f"{title}, {section}", _bars(shown)) for section, shown in sections(networks).items()]


def _bars(networks: Sequence[Network]) -> str:
    """One group a network and batch. Each bar is a ratio of times of the same row."""
    speeds = {
        "ours, exact float32": [_ours(each, "exact") for each in networks],
        "ours, TF32 allowed": [_ours(each, "TF32 allowed") for each in networks],
        "torch, CUDA graph, TF32": [_torch(each, each.first["torch_tf32_us"]) for each in networks],
        "torch's fastest in fp16": [_torch(each, fastest_us(each.first, "fp16")) for each in networks],
    }
    groups = [f"{each.model}\nbatch {each.batch}" for each in networks]
    return speed_bars(groups, speeds, "times as fast as torch's fastest in TF32", TICKS)


def _ours(network: Network, way: str) -> float:
    found = speed(network.rows[way], "tf32") if way in network.rows else None
    return math.nan if found is None else found


def _torch(network: Network, time_us: float | None) -> float:
    found = ratio(fastest_us(network.first, "tf32"), time_us)
    return math.nan if found is None else found
