"""Plots of the report on whole models, as SVG texts; matplotlib draws them (extra ``report``)."""

import math
from collections.abc import Sequence

from benchmarks.report.drawing import speed_bars
from benchmarks.report.model_rows import Network, ratio, sections, speed

# Most ratios lie between 0.5 and 4.
TICKS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)


def plots(networks: Sequence[Network]) -> list[tuple[str, str]]:
    """(title, SVG) of a plot for each pattern and density."""
    return [(f"Speed against torch's TF32, {title}", _bars(shown)) for title, shown in sections(networks).items()]


def _bars(networks: Sequence[Network]) -> str:
    """One group a network and batch. Each bar is a ratio of times of the same row."""
    speeds = {
        "ours, exact float32": [_ours(each, "exact") for each in networks],
        "ours, TF32 allowed": [_ours(each, "TF32 allowed") for each in networks],
        "torch fp16": [_torch(each, "fp16") for each in networks],
        "torch.compile, TF32": [_torch(each, "compile_tf32") for each in networks],
    }
    groups = [f"{each.model}\nbatch {each.batch}" for each in networks]
    return speed_bars(groups, speeds, "times as fast as torch's TF32", TICKS)


def _ours(network: Network, way: str) -> float:
    found = speed(network.rows[way], "tf32") if way in network.rows else None
    return math.nan if found is None else found


def _torch(network: Network, kind: str) -> float:
    found = ratio(network.first["torch_tf32_us"], network.first[f"torch_{kind}_us"])
    return math.nan if found is None else found
