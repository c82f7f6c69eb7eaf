"""Branches of a model side by side: calls that are recorded in a CUDA graph run after those alone that they depend on.

On a stream kernels follow each other. Models that `compiler.rewriting.side_by_side` has prepared say of each call what
it reads and writes; from the addresses follows after which of the others it has to run. How memory was planned does not
matter: a call that writes where another one reads waits for it.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tvm_sparse.runtime.gpu.cuda_driver import CudaDriver

# Addresses of memory, from the first to behind the last.
Span = tuple[int, int]


class _Call(NamedTuple):
    """The last nodes of a recorded call, the numbers of all calls that it runs after, and what it reads and writes."""

    nodes: Sequence[int]
    earlier: frozenset[int]
    reads: Sequence[Span]
    writes: Sequence[Span]

    def conflicts(self, reads: Sequence[Span], writes: Sequence[Span]) -> bool:
        """Whether a call that reads and writes these has to run after this one."""
        return _meet(self.writes, reads) or _meet(self.writes, writes) or _meet(self.reads, writes)


class Branches:
    """Calls that are being recorded on `stream`: `next_call` comes before each of them, `join` behind the last."""

    def __init__(self, driver: CudaDriver, stream: int):
        self._driver, self._stream = driver, stream
        self._calls: list[_Call] = []
        # Of the call that is being recorded: all but its nodes.
        self._begun: _Call | None = None

    def next_call(self, outputs: int, tensors: Sequence[Any]) -> None:
        """The next call writes the first `outputs` of `tensors` and reads the others."""
        self._end()
        spans = [_span(each) for each in tensors]
        writes, reads = spans[:outputs], spans[outputs:]
        parents, earlier = self._after(reads, writes)
        if parents:
            self._run_after(parents)
        elif self._calls:
            # Where it could be the first, it stays behind the one before it.
            earlier = self._calls[-1].earlier | {len(self._calls) - 1}
        self._begun = _Call((), earlier, reads, writes)

    def join(self) -> None:
        """Whatever comes to the stream now runs after all calls."""
        self._end()
        followed = frozenset[int]().union(*(each.earlier for each in self._calls))
        if ends := [number for number in range(len(self._calls)) if number not in followed]:
            self._run_after(ends)

    def _end(self) -> None:
        if self._begun is not None:
            self._calls.append(self._begun._replace(nodes=self._driver.captured(self._stream)))
            self._begun = None

    def _after(self, reads: Sequence[Span], writes: Sequence[Span]) -> tuple[list[int], frozenset[int]]:
        """Numbers of the calls to run after, without those that another one of them runs after, and of all of these."""
        parents, earlier = list[int](), frozenset[int]()
        for number, call in reversed(list(enumerate(self._calls))):
            if number not in earlier and call.conflicts(reads, writes):
                parents.append(number)
                earlier |= call.earlier | {number}
        return parents, earlier

    def _run_after(self, numbers: Iterable[int]) -> None:
        nodes = dict.fromkeys(node for number in numbers for node in self._calls[number].nodes)
        self._driver.run_after(self._stream, list(nodes))


def _span(tensor: Any) -> Span:
    return tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.dtype.itemsize


def _meet(some: Sequence[Span], others: Sequence[Span]) -> bool:
    return any(start < other_end and other_start < end for start, end in some for other_start, other_end in others)
