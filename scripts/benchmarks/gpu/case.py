"""One case of a benchmark, in the process that holds the GPU: verify all contenders, then time them in turns.

A contender that raises is reported with its cause and the others go on. One that breaks the CUDA context, or leaves a
graph half captured, ends the process by `Broken`; the case is then run again without it.
"""

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import operators
from benchmarks.baselines import NotServed
from benchmarks.gpu.code_evictor import CodeEvictor
from benchmarks.gpu.cold_code_clock import ColdCodeClock
from benchmarks.gpu.contenders import Entry, Kernels, Settings, all_entries
from benchmarks.gpu.cuda_graph_clock import CaptureError, CpuClock, GpuClock
from benchmarks.references import References
from benchmarks.results import Case, Kind
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.storage import STORAGE

# A cold replay rotates through so many bytes, more than any L2 cache, and so many inputs at least, where memory allows.
COLD_BYTES, COLD_CALLS = 128 << 20, 32
MAX_COLD_BYTES, MAX_COLD_CALLS = 2 << 30, 256
# A replay of a slow contender ends after about this time, one of a fast contender takes it at least when warm.
MAX_REPLAY_US, WARM_REPLAY_US, MAX_WARM_CALLS = 10_000, 300, 64
# Inputs and outputs up to half of a Hopper GPU's L2 cache can be warm.
WARM_BYTES = 25 << 20
PILOT_ROUNDS, MIN_ROUNDS = 3, 7
# A variant takes part in all rounds where the pilot's time is within this of its family's best.
CLOSE = 1.1


class Broken(Exception):
    """A contender left this process unusable."""

    def __init__(self, contender: str, cause: str):
        super().__init__(contender, cause)
        self.contender, self.cause = contender, cause


def bench_case(
    operator: int, batch: int, densities: Sequence[float], ours: Kernels, settings: Settings, skipped: dict[str, str]
) -> Case:
    """Verify and time all contenders of one operator and batch; `skipped` maps those left out to the cause.

    Raises
    ------
    Broken
        A contender left this process unusable.
    """
    import torch

    if settings.on_gpu:
        # What torch kept of the case before.
        torch.cuda.empty_cache()
    started = time.monotonic()
    clock = GpuClock() if settings.on_gpu else CpuClock()
    with torch.inference_mode(), clock.running():
        bench = _Bench(operators.spec(operator, batch, settings.dtype), clock, settings)
        entries = all_entries(operator, densities, ours, settings)
        for entry in entries:
            cause = skipped.get(entry.result.name)
            if cause is not None:
                entry.result = replace(entry.result, status="failed", cause=cause)
            else:
                bench.guard(entry, partial(bench.prepare, entry))
        bench.pilot(entries)
        bench.final(entries)
        if settings.cold_code:
            bench.cold_code(entries)
    results = tuple(entry.result for entry in entries)
    seconds = round(time.monotonic() - started, 1)
    return Case(
        operator=operator,
        batch=batch,
        seed=settings.seed,
        calls=bench.calls,
        contenders=results,
        seconds=seconds,
        dtype=settings.dtype,
    )


class _Bench:
    """The inputs, references and clock of one case."""

    def __init__(self, spec: ConvSpec, clock: CpuClock, settings: Settings):
        import torch

        self.spec, self.clock, self.settings = spec, clock, settings
        elements = math.prod(spec.input_shape) + math.prod(spec.output_shape)
        self.bytes = STORAGE[spec.dtype].size_bytes * elements
        wish = max(COLD_CALLS, math.ceil(COLD_BYTES / self.bytes))
        self.calls = max(1, min(wish, MAX_COLD_CALLS, MAX_COLD_BYTES // self.bytes)) if settings.on_gpu else 2
        generator = torch.Generator(clock.device).manual_seed(settings.seed)
        dtype = getattr(torch, spec.dtype)
        self.inputs = [
            torch.randn(spec.input_shape, generator=generator, device=clock.device).to(dtype).float()
            for _ in range(self.calls)
        ]
        self.references = References(self.inputs[0])
        library = settings.evictor_library
        self.code_clock = ColdCodeClock(clock, CodeEvictor(library) if library else lambda turn: None)

    def guard(self, entry: Entry, work: Callable[[], None]) -> None:
        """Do some of a contender's work; what goes wrong is its own failure."""
        name = entry.result.name
        Path(self.settings.progress).write_text(name)
        try:
            work()
            self.clock.synchronize()
        except NotServed as reason:
            entry.result = replace(entry.result, status="not served", cause=str(reason))
        except CaptureError as error:
            raise Broken(name, str(error)[-1000:]) from None
        except Exception as error:  # Of whatever kind: it is kept as the cause.
            cause = f"{type(error).__name__}: {str(error)[-1000:]}"
            entry.result = replace(entry.result, status="failed", cause=cause, final=False)
            try:
                self.clock.synchronize()
            except RuntimeError:
                raise Broken(name, cause) from None

    def prepare(self, entry: Entry) -> None:
        """Verify a contender and capture its replays."""
        import torch

        prepared = entry.method.prepare(self.spec, entry.weight, self.clock.device)
        call = prepared.bind(prepared.load(self.inputs[0]))
        # NaN in the memory that a library's output is likely to get.
        torch.full((math.prod(prepared.spec.output_shape),), float("nan"), device=self.clock.device)
        y = prepared.store(call())
        method = entry.method
        error = self.references.error(prepared.spec, prepared.weight, y, method.tolerance, method.arithmetic)
        found: dict[str, Any] = {"weight_bytes": prepared.weight_bytes, "detail": prepared.detail}
        found["error"] = float(f"{error:.3g}") if math.isfinite(error) else None
        if not error <= 1:
            cause = f"the result differs from the float64 reference by {error:.3g} times what is allowed"
            entry.result = replace(entry.result, status="wrong", cause=cause, **found)
            return
        time_us = max(0.1, min(self.clock.round_us([call] * 2, cold=False)))
        number = max(1, min(self.calls, round(MAX_REPLAY_US / time_us)))
        entry.calls = [call] + [prepared.bind(prepared.load(x)) for x in self.inputs[1:number]]
        entry.replays["cold"] = self.clock.capture(entry.calls), number
        if self.bytes <= WARM_BYTES:
            number = max(4, min(MAX_WARM_CALLS, round(WARM_REPLAY_US / time_us)))
            entry.replays["warm"] = self.clock.capture([call] * number), number
        entry.result = replace(entry.result, status="ok", **found)

    def pilot(self, entries: Sequence[Entry]) -> None:
        """A few rounds of each contender alone; the close ones of each family take part in the final."""
        for entry in entries:
            if entry.replays:
                self.guard(entry, partial(self._time, [entry] * PILOT_ROUNDS, "cold"))
        running = [entry for entry in entries if entry.result.status == "ok"]
        best: dict[tuple[str, float | None], float] = {}
        for entry in running:
            key = entry.result.family, entry.result.density
            best[key] = min(best.get(key, math.inf), statistics.median(entry.result.cold_us))
        for entry in running:
            limit = CLOSE * best[entry.result.family, entry.result.density]
            final = statistics.median(entry.result.cold_us) <= limit
            entry.result = replace(entry.result, final=final)
            if not final:
                entry.replays.clear()
                entry.calls.clear()

    def final(self, entries: Sequence[Entry]) -> None:
        """All rounds; in each, every contender once, in an order of its own."""
        order = [entry for entry in entries if entry.result.final]
        if not order:
            return
        replays_us = sum(statistics.median(entry.result.cold_us) * entry.replays["cold"][1] for entry in order)
        for entry in order:
            entry.result = replace(entry.result, cold_us=())
        Path(self.settings.progress).write_text("")
        shuffle = random.Random(self.settings.seed).shuffle
        for number in range(self._rounds(replays_us)):
            shuffle(order)
            self._time(order, "cold")
            if number % 3 == 0:
                self._time([entry for entry in order if "warm" in entry.replays], "warm")

    def cold_code(self, entries: Sequence[Entry]) -> None:
        """The same with cold code, for those that took part in all rounds."""

        def capture(entry: Entry) -> None:
            replay = self.code_clock.capture(entry.calls)
            entry.replays["cold_code"] = replay, replay.number

        for entry in entries:
            if entry.result.final:
                self.guard(entry, partial(capture, entry))
        order = [entry for entry in entries if "cold_code" in entry.replays]
        if not order:
            return
        Path(self.settings.progress).write_text("")
        # How long a round takes, evictors and all, is found by one that does not count.
        started = time.monotonic()
        self.code_clock.round_us([entry.replays["cold_code"][0] for entry in order])
        shuffle = random.Random(self.settings.seed).shuffle
        for _ in range(self._rounds((time.monotonic() - started) * 1e6)):
            shuffle(order)
            self._time(order, "cold_code")

    def _rounds(self, round_us: float) -> int:
        """How many rounds there is time for."""
        return min(self.settings.rounds, max(MIN_ROUNDS, int(self.settings.seconds * 1e6 / round_us)))

    def _time(self, entries: Sequence[Entry], kind: Kind) -> None:
        """One replay of each entry, one after the other."""
        replays = [entry.replays[kind][0] for entry in entries]
        if kind == "cold_code":
            times = self.code_clock.round_us(replays)
        else:
            times = self.clock.round_us(replays, cold=kind == "cold")
        for entry, time_us in zip(entries, times, strict=True):
            entry.add(kind, time_us)
