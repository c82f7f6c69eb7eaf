"""Choose which layers cuDNN computes in NHWC, for the fastest model instead of the fastest layers.

On tensor cores cuDNN computes in NHWC. A layer alone pays for its tensors' way there and back, which is often as long
as its arithmetic; next to others like it, it does not (`keep_nhwc`). Which layers are worth it together is a minimum
cut: each layer pays its time on the side it is on, each tensor that is read on the other side a conversion, once. It is
exact, as no layer gains by standing apart from its neighbours (Kolmogorov and Zabih, "What energy functions can be
minimized via graph cuts?", 2004).
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvm.ir import Expr
from tvm.target import Target

from tvm_sparse.compiler.kernel_selection import Decision, decide
from tvm_sparse.compiler.minimum_cut import first_side
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.storage import STORAGE, is_half
from tvm_sparse.cudnn.layout_change import LayoutChange
from tvm_sparse.cudnn.plan import PRECOMP
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer, find_groups
from tvm_sparse.frontend.passes.relax_graph import Graph, is_call, static_shape
from tvm_sparse.frontend.prepare import PreparedModel
from tvm_sparse.logs.ranking import fastest
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.schedules import title_of, why_not_here
from tvm_sparse.scheduling.cuda.cost_model import cudnn_us, layout_change_us, tensor_core_floor_us
from tvm_sparse.scheduling.schedule_names import CUDNN, HALF_VARIANTS, TF32
from tvm_sparse.scheduling.space import Decisions
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.gpu import gpu_info

NHWC: Decisions = {"layout": "nhwc", "algorithm": PRECOMP, "epilogue": "fused"}
# Tensor cores take channels in groups of 16 bytes.
_GROUP_BYTES = 16


def decide_together(
    prepared: PreparedModel, target: Target, log: TuningLog | None, allow_tf32: bool = False, predict: bool = False
) -> list[Decision]:
    """As `decide`, for the layers of a model, whose layouts suit each other."""
    decisions = decide(prepared.layers, target, log, allow_tf32, predict)
    if target.kind.name != "cuda" or why_not_here(CUDNN):
        return decisions
    options = [_option(*each, target, log, allow_tf32) for each in zip(prepared.layers, decisions, strict=True)]
    if not any(options):
        return decisions
    chosen = _Cut(prepared, options, target).nhwc()
    return [
        option.decision if option is not None and index in chosen else decision
        for index, (option, decision) in enumerate(zip(options, decisions, strict=True))
    ]


@dataclass(frozen=True)
class _Option:
    """A layer in NHWC, `nhwc_us` without conversions, instead of `nchw_us` as it was decided."""

    decision: Decision
    nhwc_us: float
    nchw_us: float


def _option(
    layer: ConvLayer, decision: Decision, target: Target, log: TuningLog | None, allow_tf32: bool
) -> _Option | None:
    """None where cuDNN is not allowed to use tensor cores, cannot, or nothing says how long it takes."""
    spec, gpu = layer.spec, gpu_info(target)
    if not (allow_tf32 or is_half(spec.dtype)) or gpu.compute_capability < 80 or not _suits_tensor_cores(spec):
        return None
    schedule = f"{CUDNN}:{HALF_VARIANTS.get(spec.dtype, TF32)}"
    conversions_us = sum(layout_change_us(change, gpu) for change in _conversions(spec))
    record = _record(spec, schedule, target, log)
    if record is not None:
        nhwc_us = max(record.time_us - conversions_us, tensor_core_floor_us(spec, gpu))
    elif decision.record is None:
        nhwc_us = max(cudnn_us(spec, gpu) - conversions_us, tensor_core_floor_us(spec, gpu))
    else:
        return None
    nchw_us = decision.time_us or decision.expected_us
    if nchw_us is None and decision.schedule.startswith(CUDNN):
        nchw_us = cudnn_us(spec, gpu)
    if nchw_us is None:
        return None
    how = "measured" if record is not None else "estimated"
    reason = f"{title_of(schedule)} in NHWC, like its neighbours: about {nhwc_us:.4g} us without conversions ({how}),"
    reason += f" against {nchw_us:.4g} us of {title_of(decision.schedule)}"
    changed = replace(
        decision,
        schedule=schedule,
        time_us=nhwc_us,
        reason=reason,
        record=record,
        transferred=record is None or record.error is None,
        predicted=None if record is not None else NHWC,
    )
    return _Option(changed, nhwc_us, nchw_us)


def _suits_tensor_cores(spec: ConvSpec) -> bool:
    group = _GROUP_BYTES // STORAGE[spec.dtype].size_bytes
    return spec.groups == 1 and not spec.c % group and not spec.k % group and spec.h * spec.w > 1


def _conversions(spec: ConvSpec) -> list[LayoutChange]:
    """What a kernel that converts for itself converts."""
    tensors = [(spec.input_shape, "nhwc"), (spec.output_shape, "nchw")]
    tensors += [(spec.output_shape, "nhwc")] * spec.residual
    return [LayoutChange(shape, spec.dtype, "nhwc" if to == "nhwc" else "nchw") for shape, to in tensors]


def _record(spec: ConvSpec, schedule: str, target: Target, log: TuningLog | None) -> TuningRecord | None:
    """The fastest in NHWC."""
    records = log.of_schedule(spec, fingerprint_of(target), schedule) if log is not None else []
    in_nhwc = [each for each in records if each.decisions.get("layout") == "nhwc"]
    return fastest(in_nhwc) if in_nhwc else None


class _Cut:
    """The graph whose minimum cut separates layers in NHWC, with the source, from the others, with the sink."""

    def __init__(self, prepared: PreparedModel, options: Sequence[_Option | None], target: Target):
        self._module, self._gpu, self._options = prepared.mod, gpu_info(target), options
        self._groups = find_groups(prepared.mod)
        self._results = {group.result: index for index, group in enumerate(self._groups)}
        self._costs_us: dict[tuple[int, int], float] = defaultdict(float)
        self._source, self._sink, self._nodes = 0, 1, 2 + len(options)

    def nhwc(self) -> set[int]:
        """Positions of the layers that are in NHWC in the fastest model."""
        for index, option in enumerate(self._options):
            if option is not None:
                self._costs_us[self._source, self._node(index)] = option.nchw_us
                self._costs_us[self._node(index), self._sink] = option.nhwc_us
        for tensor, (readers, others) in self._tensors().items():
            self._add_tensor(tensor, readers, others)
        chosen = first_side(self._costs_us, self._source, self._sink)
        return {index for index in range(len(self._options)) if self._node(index) in chosen}

    def _tensors(self) -> dict[Expr, tuple[set[int], bool]]:
        """Tensor -> positions of the layers with an option that read it, and whether anything else does.

        Of all tensors that a layer reads or makes.
        """
        graph = Graph.of(self._module)
        owners = {var: i for i, group in enumerate(self._groups) for var in (*group.absorbed, group.result)}
        readers: dict[Expr, set[int]] = {result: set() for result in self._results}
        for index, group in enumerate(self._groups):
            for tensor in (group.data, group.residual):
                if tensor is not None:
                    readers.setdefault(tensor, set()).add(index)

        def is_read_elsewhere(var: Expr, known: set[int]) -> bool:
            """By what is not of the layers in `known`; a half-precision layer widens what it reads first."""
            if var in graph.returned:
                return True
            for user in graph.users.get(var, ()):
                is_widened = is_call(graph.definitions[user], "relax.astype") and user not in owners
                if is_read_elsewhere(user, known) if is_widened else owners.get(user) not in known:
                    return True
            return False

        optional = {index for index, option in enumerate(self._options) if option is not None}
        return {
            tensor: (some & optional, is_read_elsewhere(tensor, some & optional)) for tensor, some in readers.items()
        }

    def _add_tensor(self, tensor: Expr, readers: set[int], is_read_elsewhere: bool) -> None:
        """Charge its conversions: one for all who read it on the other side than that where it is made."""
        made = self._results.get(tensor)
        maker = self._sink if made is None or self._options[made] is None else self._node(made)
        shape, dtype = static_shape(tensor), str(tensor.ty.dtype)
        if shape is None or len(shape) != 4 or (not readers and maker == self._sink):
            return
        n, c, h, w = shape
        cost_us = layout_change_us(LayoutChange((n, c, h, w), dtype, "nhwc"), self._gpu)
        wants_nhwc, wants_nchw = self._nodes, self._nodes + 1
        self._nodes += 2
        self._costs_us[wants_nhwc, maker] = cost_us
        for reader in readers:
            self._costs_us[self._node(reader), wants_nhwc] = math.inf
        if maker != self._sink:
            self._costs_us[maker, wants_nchw] = cost_us
            for reader in {self._sink} if is_read_elsewhere else map(self._node, readers):
                self._costs_us[wants_nchw, reader] = math.inf

    def _node(self, index: int) -> int:
        return index + 2
