"""Times calls without the host in the way: CUDA graphs between events, with the L2 cache emptied before them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from tvm_sparse.measure.timing import time_us

# Read before a cold replay: ten times the L2 cache of a Hopper GPU, and longer than the host needs to launch a graph.
EVICTION_BYTES = 512 << 20
Call = Callable[[], Any]
Replay = Callable[[], Any]


class CaptureError(RuntimeError):
    """Calls cannot be captured; torch's allocator is left in disorder, so the process must end."""


class CpuClock:
    """Runs calls on the CPU as they come, to try a benchmark where there is no GPU; the caches are left alone."""

    def __init__(self, device: str = "cpu") -> None:
        import torch

        self.device = torch.device(device)

    def running(self) -> AbstractContextManager[None]:
        """A context in which torch's and TVM's work goes to the clock's stream."""
        return nullcontext()

    def capture(self, calls: Sequence[Call]) -> Replay:
        """All calls, one after the other, as one replay."""
        return lambda: [call() for call in calls]

    def round_us(self, replays: Sequence[Replay], cold: bool) -> list[float]:
        """Time of each replay, microseconds, one after the other: with nothing in the cache, or run once before."""
        del cold
        return self.times_us(replays)

    def times_us(self, replays: Sequence[Replay]) -> list[float]:
        """Time of each replay, microseconds, one right after the other."""
        return [time_us(replay, 1) for replay in replays]

    def displace_data(self) -> None:
        """Leave no data of calls in the L2 cache of a GPU."""

    def synchronize(self) -> None:
        """Wait for all work; raises what went wrong in it."""


class GpuClock(CpuClock):
    """Replays CUDA graphs on a stream of its own.

    Torch records them, not `measure.cuda_graph_timer`, which does without torch: libraries allocate while they are
    recorded, and only torch's own recording takes that from a pool that outlives it. All graphs share one pool, so they
    must not be replayed for their results.
    """

    def __init__(self) -> None:
        import torch

        super().__init__("cuda")
        self._stream = torch.cuda.Stream()
        self._pool = torch.cuda.graph_pool_handle()
        self._eviction: Any = None

    @contextmanager
    def running(self) -> Iterator[None]:
        import torch
        import tvm_ffi

        self._stream.wait_stream(torch.cuda.current_stream())
        with tvm_ffi.use_torch_stream(torch.cuda.stream(self._stream)):
            yield
        torch.cuda.current_stream().wait_stream(self._stream)

    def capture(self, calls: Sequence[Call]) -> Replay:
        import torch

        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        if free < total / 4:
            # What torch keeps for reuse is out of a graph's reach.
            torch.cuda.empty_cache()
        try:
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            # Held until the end, so that every call writes to memory of its own.
            results = [call() for call in calls]
            graph.capture_end()
        except RuntimeError as error:
            raise CaptureError(f"cannot be captured in a CUDA graph: {error}") from None
        del results

        def replay(_held: Sequence[Call] = calls) -> None:
            # The calls hold the memory that the graph works on.
            graph.replay()

        return replay

    def round_us(self, replays: Sequence[Replay], cold: bool) -> list[float]:
        spans = []
        for replay in replays:
            if cold:
                self.displace_data()
            else:
                replay()
            spans.append(_span(replay))
        return _lengths_us(spans)

    def times_us(self, replays: Sequence[Replay]) -> list[float]:
        return _lengths_us([_span(replay) for replay in replays])

    def displace_data(self) -> None:
        import torch

        if self._eviction is None:
            self._eviction = torch.zeros(EVICTION_BYTES // 4, device=self.device)
        self._eviction.sum()

    def synchronize(self) -> None:
        import torch

        torch.cuda.synchronize()


def _span(replay: Replay) -> tuple[Any, Any]:
    """Events before and behind a replay."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    replay()
    end.record()
    return start, end


def _lengths_us(spans: Sequence[tuple[Any, Any]]) -> list[float]:
    """Time between two events each, microseconds, when all have come."""
    import torch

    torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1e3 for start, end in spans]
