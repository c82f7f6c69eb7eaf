"""A plan as a file: what `sources/plan.c` reads.

Numbers are little-endian, text is its length and UTF-8 and a zero byte. A header (magic, version, size of the file,
SHA-256 of what follows), then, in this order: the library, its size and SHA-256; architecture, processor, and flags of
`/proc/cpuinfo` that it needs; architecture of a GPU, or nothing; threads; size of the workspace; inputs and outputs
with names; index checks; steps, each with the numbers of those that it runs after, and those that none runs after. For
a GPU: constants, code, kernels, and work of cuDNN's.
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import tvm_ffi

from tvm_sparse.conv.index_check import IndexCheck
from tvm_sparse.exporter.cudnn_work import Call, Work
from tvm_sparse.exporter.gpu import GpuPart
from tvm_sparse.exporter.plan import Plan, Tensor
from tvm_sparse.runtime.signature import Signature

MAGIC, VERSION = b"TVMSPLAN", 3
# TVM's type indices of arguments.
_INT, _FLOAT, _TENSOR = 1, 3, 7


def encoded(
    plan: Plan,
    signature: Signature,
    checks: Sequence[IndexCheck],
    library: tuple[str, bytes],
    machine: tuple[str, str, Sequence[str]],
    threads: int,
    gpu: GpuPart | None = None,
) -> bytes:
    """The file.

    * `library`: its name, beside the file, and its content.
    * `machine`: architecture, processor, flags.
    """
    name, content = library
    architecture, processor, flags = machine
    inputs = [each.name for each in signature.inputs]
    outputs = [each.name for each in signature.outputs]
    body = b"".join(
        (
            _text(name),
            struct.pack("<Q", len(content)) + hashlib.sha256(content).digest(),
            _text(architecture) + _text(processor) + _listed(map(_text, flags)),
            _text(gpu.arch if gpu else ""),
            struct.pack("<IQ", threads, plan.workspace_bytes),
            _listed(_text(each) + _tensor(tensor) for each, tensor in zip(inputs, plan.inputs, strict=True)),
            # Behind the outputs is what index checks have found.
            _listed(_text(each) + _tensor(tensor) for each, tensor in zip(outputs, plan.outputs, strict=False)),
            _listed(map(_check, checks)),
            _listed(map(_tensor, plan.outputs[len(outputs) :])),
            _listed(
                _text(each.kernel) + _listed(map(_argument, each.arguments)) + _numbers(each.after)
                for each in plan.steps
            ),
            _numbers(plan.ends),
            _gpu(gpu) if gpu else b"",
        )
    )
    return MAGIC + struct.pack("<IIQ", VERSION, 0, 56 + len(body)) + hashlib.sha256(body).digest() + body


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<I", len(data)) + data + b"\0"


def _listed(items: Iterable[bytes]) -> bytes:
    found = list(items)
    return struct.pack("<I", len(found)) + b"".join(found)


def _numbers(numbers: Sequence[int]) -> bytes:
    return _listed(struct.pack("<I", each) for each in numbers)


def _tensor(tensor: Tensor) -> bytes:
    """What it lies in and where, its type, and its shape."""
    dtype = tvm_ffi.dtype(tensor.dtype)
    head = struct.pack("<IIQ", tensor.base, tensor.number, tensor.offset)
    return head + struct.pack(
        f"<BBHI{len(tensor.shape)}q", dtype.type_code, dtype.bits, 1, len(tensor.shape), *tensor.shape
    )


def _argument(value: Any) -> bytes:
    if isinstance(value, Tensor):
        return struct.pack("<I", _TENSOR) + _tensor(value)
    return struct.pack("<Iq", _INT, value) if isinstance(value, int) else struct.pack("<Id", _FLOAT, value)


def _check(check: IndexCheck) -> bytes:
    return _text(check.where) + _listed(struct.pack("<qq", *each) for each in check.ranges)


def _gpu(gpu: GpuPart) -> bytes:
    def kernel(name: str, module: int, arguments: str, launch: str) -> bytes:
        return _text(name) + struct.pack("<I", module) + _text(arguments) + _text(launch)

    return b"".join(
        (
            struct.pack("<Q", gpu.constant_bytes),
            _listed(struct.pack("<3Q", *each) for each in gpu.constants),
            _listed(struct.pack("<2Q", *each) for each in gpu.modules),
            _listed(kernel(*each) for each in gpu.kernels),
            _listed(map(_work, gpu.works)),
        )
    )


def _work(work: Work) -> bytes:
    def call(each: Call) -> bytes:
        arguments = (struct.pack("<II", *head) + value for *head, value in each.arguments)
        return _text(each.function) + _listed(arguments)

    head = _text(work.text) + struct.pack("<I", work.arrays) + _listed(map(_text, work.descriptors))
    return head + _listed(map(call, work.setup)) + _listed(map(call, work.calls))
