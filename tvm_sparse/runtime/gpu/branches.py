"""Branches of a model side by side: calls that are recorded in a CUDA graph run after those alone that they depend on.

On a stream kernels follow each other. Models that `compiler.rewriting.side_by_side` has prepared say of each call what
it reads and writes; from the addresses follows after which of the others it has to run. How memory was planned does not
matter: a call that writes where another one reads waits for it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from tvm_sparse.runtime.gpu.call_order import CallOrder, Span
from tvm_sparse.runtime.gpu.cuda_driver import CudaDriver


class Branches:
    """Calls that are being recorded on `stream`: `next_call` comes before each of them, `join` behind the last."""

    def __init__(self, driver: CudaDriver, stream: int):
        self._driver, self._stream = driver, stream
        self._order = CallOrder()
        # The last nodes of each call that has been recorded.
        self._nodes: list[Sequence[int]] = []
        self._has_begun = False

    def next_call(self, outputs: int, tensors: Sequence[Any]) -> None:
        """The next call writes the first `outputs` of `tensors` and reads the others."""
        self._end()
        spans = [_span(each) for each in tensors]
        if parents := self._order.add(spans[outputs:], spans[:outputs]):
            self._run_after(parents)
        self._has_begun = True

    def join(self) -> None:
        """Whatever comes to the stream now runs after all calls."""
        self._end()
        if ends := self._order.ends():
            self._run_after(ends)

    def _end(self) -> None:
        if self._has_begun:
            self._nodes.append(self._driver.captured(self._stream))
            self._has_begun = False

    def _run_after(self, numbers: Iterable[int]) -> None:
        nodes = dict.fromkeys(node for number in numbers for node in self._nodes[number])
        self._driver.run_after(self._stream, list(nodes))


def _span(tensor: Any) -> Span:
    return tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.dtype.itemsize
