"""Check a compiled model layer by layer: ours against the float64 reference and, where there is one, a baseline.

A convolution's own error is that of its kernel alone: the reference is given what our kernel was given. It must lie
within the bound of `conv.reference`. The baseline ran the whole network on its own, so rounding has spread through all
layers before; there only agreement can be asked for.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

import numpy as np

from tvm_sparse.compiler.checking.expose_layers import Places, expose
from tvm_sparse.compiler.checking.onnx_runtime import Trace
from tvm_sparse.conv.error_bounds import EXACT
from tvm_sparse.conv.reference import AGREEMENT, AGREEMENTS, TF32_AGREEMENT, reference, relative_difference
from tvm_sparse.conv.storage import is_half
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer
from tvm_sparse.frontend.prepare import PreparedModel
from tvm_sparse.schedules.lookup import arithmetic_of, is_exact

OK, WRONG, DIFFERS = "ok", "wrong", "differs"


@dataclass(frozen=True)
class LayerCheck:
    """One convolution, or one output of the model.

    `error` is ours and `baseline_error` the baseline's, each on its own input, as a fraction of the bound; `difference`
    the largest between the two, as a fraction of the largest value. None where that cannot be said. `verdict` is
    ``ok``, ``wrong`` (`error` is more than 1) or ``differs`` (`difference` is more than `agreement`).
    """

    name: str
    schedule: str | None
    error: float | None
    baseline_error: float | None
    difference: float | None
    agreement: float = AGREEMENT

    @property
    def verdict(self) -> str:
        if self.error is not None and not self.error <= 1:
            return WRONG
        return DIFFERS if self.difference is not None and not self.difference <= self.agreement else OK

    def to_json(self) -> dict[str, Any]:
        """As JSON values; what is infinite is None, with a verdict that says so."""
        values = {**asdict(self), "verdict": self.verdict}
        return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in values.items()}


@dataclass(frozen=True)
class Exposed:
    """A model that also returns the inputs and outputs of its convolutions, and where among its outputs they are.

    Of a model that runs in turns the layers are those of a turn, and the first turn's tensors are looked at.
    """

    prepared: PreparedModel
    places: list[Places]

    @classmethod
    def of(cls, prepared: PreparedModel) -> "Exposed":
        """`prepared` with more outputs; its layers are the same, in the same order."""
        module, places = expose(prepared.mod)
        return cls(prepared.in_turns(prepared.turns, module), places)

    def check_layers(
        self, tensors: Sequence[np.ndarray], schedules: Sequence[str], trace: Trace | None
    ) -> list[LayerCheck]:
        """Every convolution in program order.

        * `tensors`: what the compiled `prepared` returned, all outputs.
        * `schedules`: what computed each convolution.
        * `trace`: what the baseline made of the same inputs.
        """
        lost_filters = self.prepared.whole is not None
        found, agreement = [], agreement_of(schedules, {layer.spec.dtype for layer in self.prepared.layers})
        for layer, place, schedule in zip(self.prepared.layers, self.places, schedules, strict=True):
            ours = [self._first_turn(tensors[i]) if i is not None else None for i in astuple(place)]
            baseline = trace.layers.get(layer.name) if trace is not None else None
            baseline_error = difference = None
            # Layers that have lost filters have no equal there.
            if baseline is not None and baseline[2].shape == tensors[place.result].shape:
                # The bound knows nothing of what another runtime computes of other weights than these: those of a cast
                # model are not rounded, and those of a smaller one are all there.
                is_other = lost_filters or is_half(layer.spec.dtype)
                own = [self._first_turn(each) if each is not None else None for each in baseline]
                baseline_error = None if is_other else _own_error(layer, own)
                pair = tensors[place.result], baseline[2]
                difference = relative_difference(*(_left(layer, each) if lost_filters else each for each in pair))
            error = _own_error(layer, ours, arithmetic_of(schedule))
            found.append(LayerCheck(layer.name, schedule, error, baseline_error, difference, agreement))
        return found

    def _first_turn(self, tensor: np.ndarray) -> np.ndarray:
        turns = self.prepared.turns
        return tensor[: len(tensor) // turns] if turns > 1 else tensor


def check_outputs(
    names: Sequence[str],
    outputs: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    agreement: float = AGREEMENT,
) -> list[LayerCheck]:
    """Every output of the model against what it should be."""
    pairs = zip(names, outputs, expected, strict=True)
    differences = ((name, relative_difference(found, want)) for name, found, want in pairs)
    return [LayerCheck(name, None, None, None, difference, agreement) for name, difference in differences]


def agreement_of(schedules: Iterable[str], dtypes: Iterable[str] = ()) -> float:
    """By what fraction of the largest value a model may differ from another in float32.

    Its convolutions are computed by `schedules`, its tensors stored in `dtypes`, of which `INT8` says that it is
    quantised.
    """
    coarse = (AGREEMENTS[dtype] for dtype in dtypes if dtype in AGREEMENTS)
    return max(TF32_AGREEMENT if not all(map(is_exact, schedules)) else AGREEMENT, *coarse, 0.0)


def first_divergence(checks: Sequence[LayerCheck]) -> LayerCheck | None:
    """The first layer or output that is not ok."""
    return next((each for each in checks if each.verdict != OK), None)


def _own_error(layer: ConvLayer, tensors: Sequence[np.ndarray | None], arithmetic: str = EXACT) -> float | None:
    """Error of a layer on what it was given, as a fraction of its bound; None for data that is not finite."""
    spec = layer.spec
    data, residual, result = (_as_maps(each) if layer.is_linear else each for each in tensors)
    if data is None or result is None or data.shape != spec.input_shape:
        return None
    if not np.isfinite(data).all() or (residual is not None and not np.isfinite(residual).all()):
        return None
    expected = reference(spec, data, layer.weight, layer.bias, residual)
    return expected.within(arithmetic, layer.weight).worst(result)


def _left(layer: ConvLayer, result: np.ndarray) -> np.ndarray:
    """The channels of a result that have weights: a filter of zeros may stand for one that nothing reads."""
    return result.compress(layer.weight.any(axis=(1, 2, 3)), axis=-1 if layer.is_linear else 1)


def _as_maps(array: np.ndarray | None) -> np.ndarray | None:
    """A linear layer's (..., C) as (N, C, 1, 1)."""
    return array.reshape(-1, array.shape[-1], 1, 1) if array is not None else None
