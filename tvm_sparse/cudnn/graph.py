"""A convolution with its epilogue as a graph of operations, for which cuDNN suggests kernels.

What the older functions take is cuDNN's first suggestion for a description without the epilogue; of a graph it lists
all, each for another kernel or its tiling, by what its heuristics expect ("cudnn_graph" in cuDNN 9's reference, whose
numbers these are). Descriptors live as long as the process.
"""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

from tvm_sparse.cudnn.api import Cudnn, CudnnError

# Kinds of descriptors, and of elements of attributes.
_POINTWISE, _CONVOLUTION, _ENGINE, _CONFIG, _HEURISTICS, _PLAN = range(6)
_CONVOLVE, _COMPUTE_POINTWISE, _GRAPH, _PACK, _TENSOR = 10, 13, 15, 16, 17
_HANDLE, _DTYPE, _BOOL, _INT64, _FLOAT = range(5)
_ADDRESS, _MODE, _HEURISTIC, _NOTE, _OPERATION, _DESCRIPTOR = 6, 7, 8, 11, 14, 15
_ELEMENTS = {
    _HANDLE: ctypes.c_void_p,
    _BOOL: ctypes.c_bool,
    _INT64: ctypes.c_int64,
    _FLOAT: ctypes.c_float,
    _ADDRESS: ctypes.c_void_p,
    _DESCRIPTOR: ctypes.c_void_p,
}
# Values: float32 sums, taps in their order, addition and ReLU, the heuristics that rank by expected time.
_FLOAT32, _CROSS_CORRELATION, _ADD, _RELU, _RANKED = 0, 1, 0, 100, 3
# Notes on arithmetic that is not taken: sums in half precision, FFTs, sums in any order, Winograd's of any size.
_REFUSED, _MOST_NOTES, _MOST_SUGGESTIONS = {2, 3, 4, 5, 6, 7, 8}, 10, 64
# What arrays are aligned to at least.
_ALIGNMENT = 16
# Packs of arrays that are kept: a model's memory is planned, so there are few.
_MOST_PACKS = 64


class Tensor:
    """What a graph is told of an array: (N, C, H, W), or of a weight (K, C / groups, R, S), and where elements lie."""

    def __init__(self, shape: Sequence[int], strides: Sequence[int]):
        self.shape, self.strides = shape, strides


class ConvolutionGraph:
    """The convolution of ``x`` and ``weight``, to which ``residual`` and ``bias`` are added, with a ReLU or without.

    `tensors` are those that there are, by name, ``y`` among them; their type is cuDNN's number `dtype`.
    """

    def __init__(
        self, cudnn: Cudnn, handle: int, tensors: Mapping[str, Tensor], dtype: int, relu: bool, **sizes: Sequence[int]
    ):
        self._cudnn, self._handle, self._dtype = cudnn, handle, dtype
        self._uids = {name: number for number, name in enumerate(tensors, 1)}
        self._made = {name: self._tensor(each, self._uids[name], dtype) for name, each in tensors.items()}
        self._y = tensors["y"]
        self._packs: dict[tuple[int, ...], int] = {}
        self._graph = self._described([name for name in ("residual", "bias") if name in tensors], relu, **sizes)

    def suggestions(self, most: int) -> list[int]:
        """Up to `most` kernels whose errors are bounded element by element, the one expected to be fastest first."""
        heuristics = self._new(_HEURISTICS)
        self._set(heuristics, 201, _DESCRIPTOR, [self._graph])
        self._set(heuristics, 200, _HEURISTIC, [_RANKED])
        self._finalize(heuristics)
        configs = [self._new(_CONFIG) for _ in range(_MOST_SUGGESTIONS)]
        count = self._get(heuristics, 202, _DESCRIPTOR, configs)
        return [each for each in configs[:count] if not _REFUSED & set(self._notes(each))][:most]

    def planned(self, suggestion: int) -> tuple[int, int]:
        """A suggestion made ready, and how many bytes of workspace it needs."""
        plan = self._new(_PLAN)
        self._set(plan, 400, _HANDLE, [self._handle])
        self._set(plan, 401, _DESCRIPTOR, [suggestion])
        self._finalize(plan)
        size = [0]
        self._get(plan, 402, _INT64, size)
        return plan, size[0]

    def run(self, plan: int, addresses: Mapping[str, int], workspace: int) -> None:
        """Put a plan on the handle's stream, for arrays by name."""
        key = (*(addresses[name] for name in self._uids), workspace)
        if key not in self._packs:
            while len(self._packs) >= _MOST_PACKS:
                self._cudnn.call("cudnnBackendDestroyDescriptor", self._packs.pop(next(iter(self._packs))))
            pack = self._packs[key] = self._new(_PACK)
            self._set(pack, 1000, _INT64, list(self._uids.values()))
            self._set(pack, 1001, _ADDRESS, key[:-1])
            self._set(pack, 1003, _ADDRESS, [workspace])
            self._finalize(pack)
        self._cudnn.call("cudnnBackendExecute", self._handle, plan, self._packs[key])

    def _notes(self, config: int) -> list[int]:
        """What cuDNN says of a suggestion's arithmetic."""
        engine, notes = [self._new(_ENGINE)], [0] * _MOST_NOTES
        self._get(config, 300, _DESCRIPTOR, engine)
        return notes[: self._get(engine[0], 1303, _NOTE, notes)]

    def _described(self, added: Sequence[str], relu: bool, **sizes: Sequence[int]) -> int:
        steps = len(added) + relu
        results = [*(self._between(number) for number in range(steps)), self._made["y"]]
        operations = [self._convolve(results[0], **sizes)]
        for name, before, after in zip((*added, *["relu"] * relu), results, results[1:], strict=False):
            mode = _ADD if name in self._made else _RELU
            operations.append(self._pointwise(mode, before, after, self._made.get(name)))
        graph = self._new(_GRAPH)
        self._set(graph, 800, _HANDLE, [self._handle])
        self._set(graph, 801, _DESCRIPTOR, operations)
        return self._finalize(graph)

    def _tensor(self, tensor: Tensor, uid: int, dtype: int, is_between: bool = False) -> int:
        made = self._new(_TENSOR)
        self._set(made, 901, _DTYPE, [dtype])
        self._set(made, 902, _INT64, tensor.shape)
        self._set(made, 903, _INT64, tensor.strides)
        self._set(made, 906, _INT64, [uid])
        self._set(made, 900, _INT64, [_ALIGNMENT])
        if is_between:
            self._set(made, 907, _BOOL, [True])
        return self._finalize(made)

    def _between(self, number: int) -> int:
        """A result in float32 that is not written to memory."""
        return self._tensor(self._y, len(self._uids) + 1 + number, _FLOAT32, is_between=True)

    def _convolve(self, result: int, padding: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> int:
        convolution = self._new(_CONVOLUTION)
        self._set(convolution, 100, _DTYPE, [_FLOAT32])
        self._set(convolution, 101, _MODE, [_CROSS_CORRELATION])
        for attribute, values in ((102, dilation), (103, stride), (104, padding), (105, padding)):
            self._set(convolution, attribute, _INT64, values)
        self._set(convolution, 106, _INT64, [len(padding)])
        operation = self._new(_CONVOLVE)
        self._set(operation, 700, _FLOAT, [1.0])
        self._set(operation, 701, _FLOAT, [0.0])
        made = (self._finalize(convolution), self._made["weight"], self._made["x"], result)
        for attribute, value in zip((702, 703, 704, 705), made, strict=True):
            self._set(operation, attribute, _DESCRIPTOR, [value])
        return self._finalize(operation)

    def _pointwise(self, mode: int, before: int, after: int, added: int | None) -> int:
        kind = self._new(_POINTWISE)
        self._set(kind, 0, _OPERATION, [mode])
        self._set(kind, 1, _DTYPE, [_FLOAT32])
        operation = self._new(_COMPUTE_POINTWISE)
        self._set(operation, 750, _DESCRIPTOR, [self._finalize(kind)])
        self._set(operation, 751, _DESCRIPTOR, [before])
        if added is not None:
            self._set(operation, 752, _DESCRIPTOR, [added])
        self._set(operation, 753, _DESCRIPTOR, [after])
        return self._finalize(operation)

    def _new(self, kind: int) -> int:
        made = ctypes.c_void_p()
        self._cudnn.call("cudnnBackendCreateDescriptor", kind, ctypes.byref(made))
        if not made.value:
            raise CudnnError("cudnnBackendCreateDescriptor gives nothing")
        return made.value

    def _finalize(self, descriptor: int) -> int:
        self._cudnn.call("cudnnBackendFinalize", descriptor)
        return descriptor

    def _set(self, descriptor: int, attribute: int, kind: int, values: Sequence[float]) -> None:
        array = _array(kind, values)
        self._cudnn.call("cudnnBackendSetAttribute", descriptor, attribute, kind, len(values), array)

    def _get(self, descriptor: int, attribute: int, kind: int, values: list[int]) -> int:
        """Read into `values`, which descriptors must be made for before; how many there are of them."""
        array, count = _array(kind, values), ctypes.c_int64()
        place = ctypes.byref(count)
        self._cudnn.call("cudnnBackendGetAttribute", descriptor, attribute, kind, len(values), place, array)
        values[:] = array
        return min(count.value, len(values))


def _array(kind: int, values: Sequence[float]) -> Any:
    element: Any = _ELEMENTS.get(kind, ctypes.c_int)
    return (element * len(values))(*values)
