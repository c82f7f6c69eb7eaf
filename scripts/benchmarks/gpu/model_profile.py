"""What kernels take in a model, as the profiler sees them, beside what the tuning log says of them."""

import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.gpu.cuda_graph_clock import CpuClock, GpuClock
from tvm_sparse.errors import BuildError

# Runs before the profiler starts: the first ones load kernels and allocate.
WARM_UP = 5


@dataclass(frozen=True)
class KernelEvent:
    """One execution of a kernel on the GPU, microseconds."""

    name: str
    start_us: float
    end_us: float


@dataclass(frozen=True)
class LoggedLayer:
    """A layer of a compiled model: its name, its schedule, the names of its kernels, and its times in the log.

    A kernel called ``NAME_kernel`` may be named ``NAME``. Medians in microseconds; None where the log has none of the
    kernel that the model got.
    """

    layer: str
    schedule: str
    kernels: tuple[str, ...]
    cold_us: float | None
    warm_us: float | None


@dataclass(frozen=True)
class ComparedLayer:
    """Times of a layer, microseconds; `in_model_us` is None where the profiler saw no kernel of its name."""

    layer: str
    schedule: str
    cold_us: float | None
    warm_us: float | None
    in_model_us: float | None


@dataclass(frozen=True)
class Comparison:
    """All layers of a model, and the kernels that are no layer's (pooling, copies), microseconds a run by name."""

    layers: tuple[ComparedLayer, ...]
    others_us: dict[str, float]

    @property
    def compared(self) -> list[ComparedLayer]:
        """Layers with a time in the model and one with cold code in the log."""
        return [each for each in self.layers if each.in_model_us is not None and each.cold_us is not None]

    def total_us(self, name: str) -> float:
        """Sum of a time over `compared`."""
        return sum(getattr(each, name) or 0.0 for each in self.compared)

    @property
    def ratio(self) -> float | None:
        """Sum of the log's times with cold code over that of the times in the model; None where nothing compares."""
        return self.total_us("cold_us") / self.total_us("in_model_us") if self.compared else None

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        sums = {name: self.total_us(name) for name in ("cold_us", "warm_us", "in_model_us")}
        rows = [asdict(each) for each in self.layers]
        return {"ratio": self.ratio, "compared": len(self.compared), "sums": sums, "layers": rows} | {
            "others_us": self.others_us
        }

    def text(self) -> str:
        """One line a layer, the sums, and what else the model's time goes to."""
        head = ("layer", "schedule", "log cold us", "log warm us", "in model us", "cold / model")
        rows = [(*_cells(each), _ratio(each)) for each in self.layers]
        sums = [f"{self.total_us(name):.1f}" for name in ("cold_us", "warm_us", "in_model_us")]
        total = (f"sum of {len(self.compared)} of {len(self.layers)}", "", *sums, _number(self.ratio))
        table = [head, *rows, total]
        widths = [max(len(row[i]) for row in table) for i in range(len(head))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
        others = sorted(self.others_us.items(), key=lambda item: -item[1])
        return "\n".join([*lines, f"other kernels: {sum(self.others_us.values()):.1f} us", *map(_other, others)])


def spans_us(events: Iterable[KernelEvent]) -> list[tuple[str, float]]:
    """Name and time of each execution, in order: from its start, or from the end of those before it if that is later.

    A kernel that is launched early waits on the GPU for the one ahead of it, which the profiler takes for its own time.
    """
    spans, ended = [], float("-inf")
    for event in sorted(events, key=lambda each: (each.start_us, each.end_us)):
        spans.append((event.name, max(event.end_us - max(event.start_us, ended), 0.0)))
        ended = max(ended, event.end_us)
    return spans


def compare(layers: Sequence[LoggedLayer], events: Iterable[KernelEvent], runs: int) -> Comparison:
    """Times in the log beside those of `events`, of `runs` runs of the model; medians over runs.

    Layers share kernels. Where one is executed once for each layer that has it, these are their times, in the order of
    the layers; otherwise each has the mean.

    Raises
    ------
    BuildError
        Not every run executed the same kernels.
    """
    by_name: dict[str, list[float]] = defaultdict(list)
    for name, span_us in spans_us(events):
        by_name[re.sub(r"_kernel(_\d+)?$", "", name)].append(span_us)
    owners: dict[str, list[str]] = defaultdict(list)
    for each in layers:
        for kernel in dict.fromkeys(each.kernels):
            owners[kernel].append(each.layer)
    in_model_us: dict[str, float] = defaultdict(float)
    others_us: dict[str, float] = {}
    for name, found in by_name.items():
        if len(found) % runs:
            raise BuildError(
                f"kernel {name}", "is not executed alike in every run", len(found), f"a multiple of {runs}"
            )
        count, shared = len(found) // runs, owners.get(name, [])
        if len(shared) == count:
            for index, layer in enumerate(shared):
                in_model_us[layer] += statistics.median(found[index::count])
            continue
        run_us = statistics.median(sum(found[run * count : (run + 1) * count]) for run in range(runs))
        for layer in shared:
            in_model_us[layer] += run_us / count
        if not shared:
            others_us[name] = run_us
    return Comparison(
        tuple(
            ComparedLayer(each.layer, each.schedule, each.cold_us, each.warm_us, in_model_us.get(each.layer))
            for each in layers
        ),
        others_us,
    )


def profile(call: Callable[[], Any], runs: int, as_graph: bool = True) -> list[KernelEvent]:
    """Every kernel of `runs` calls that follow each other, from a CUDA graph or as they come; needs torch."""
    import torch

    clock = GpuClock()
    with clock.running():
        for _ in range(WARM_UP):
            call()
        clock.synchronize()
        run = clock.capture([call]) if as_graph else CpuClock.capture(clock, [call])
        for _ in range(WARM_UP):
            run()
        clock.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            for _ in range(runs):
                run()
            clock.synchronize()
    return [
        KernelEvent(event.name, event.time_range.start, event.time_range.end)
        for event in profiler.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]


def _cells(each: ComparedLayer) -> tuple[str, ...]:
    return (each.layer, each.schedule, _number(each.cold_us), _number(each.warm_us), _number(each.in_model_us))


def _ratio(each: ComparedLayer) -> str:
    return _number(each.cold_us / each.in_model_us if each.cold_us and each.in_model_us else None)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _other(item: tuple[str, float]) -> str:
    name, time_us = item
    return f"  {time_us:.2f}  {name[:100]}"
