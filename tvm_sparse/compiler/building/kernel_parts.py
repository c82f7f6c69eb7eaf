"""Several kernels in the place of a folded one whose code is too long, each of which adds some channels' products."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from tvm.target import Target

from tvm_sparse.compiler.building.kernel_store import KernelRequest
from tvm_sparse.compiler.plan.decision import Decision
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.volumes import Volumes
from tvm_sparse.errors import TvmSparseError
from tvm_sparse.schedules import folded_cuda
from tvm_sparse.schedules.lookup import spaces_of
from tvm_sparse.scheduling.cuda.folded.kernel_counts import INSTRUCTION_BYTES
from tvm_sparse.scheduling.family import schedule_of
from tvm_sparse.scheduling.kernel import Kernel

# A folded kernel whose code is longer takes 1.4 to 1.8 times as long as estimated, on maps of so many pixels and more
# (an H200: 301 us for 128->64 on eight maps of 224x224, two of 64 channels 88 and 108). Parts, at most.
PART_BYTES, PART_PIXELS, MOST_PARTS = 80 << 10, 1 << 15, 4


def in_parts(request: KernelRequest, decision: Decision, target: Target) -> list[KernelRequest]:
    """The kernels that compute what `decision` chose `request` for, one after the other; often it alone."""
    spec, parts = request.spec, _parts(request, decision)
    weights = np.split(request.weight, parts, axis=1)
    if parts == 1 or not all(each.any() for each in weights):
        return [request]
    # Channels of a part are a map of their own, or those of a tap in depth.
    volumes, found = spec.volumes or Volumes(parts, 1, parts), []
    for number, weight in enumerate(map(np.ascontiguousarray, weights)):
        own = replace(spec, c=spec.c // parts, volumes=volumes.tap(number), residual=spec.residual or number > 0)
        if number < parts - 1:
            own = replace(own, bias=False, relu=False, relu_max=math.inf)
        pattern = SparsityPattern.of(weight, 1)
        space, *_ = spaces_of(own, pattern, target, [folded_cuda.NAME])[0]
        found.append(KernelRequest(space.name, space.starts()[0], own, weight, pattern))
    return found


def as_one(parts: Sequence[Kernel | TvmSparseError]) -> Kernel | TvmSparseError:
    """The kernel that those `in_parts` are together; the first error of any."""
    kernels = [each for each in parts if isinstance(each, Kernel)]
    *before, last = parts
    if len(kernels) < len(parts) or not before or not isinstance(last, Kernel):
        return next((each for each in parts if isinstance(each, TvmSparseError)), last)
    return replace(last, before=tuple(kernels[:-1]))


def _parts(request: KernelRequest, decision: Decision) -> int:
    """How many kernels: as many as there are taps in depth, or as keep the code of each short; 1 of what was timed."""
    spec, code_bytes = request.spec, INSTRUCTION_BYTES * request.pattern.nnz
    is_folded = schedule_of(decision.schedule) == folded_cuda.NAME
    may_part = is_folded and decision.record is None and spec.groups == 1 and spec.dtype == FLOAT32
    if not may_part or code_bytes <= PART_BYTES or spec.pixels < PART_PIXELS:
        return 1
    count = -(-code_bytes // PART_BYTES) if spec.volumes is None else spec.volumes.taps
    return count if count <= MOST_PARTS and spec.c % count == 0 else 1
