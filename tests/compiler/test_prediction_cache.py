"""Predictions of GPU kernels: of tensors in half precision, and remembered on disk."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tvm.target import Target

from tvm_sparse.codegen.kernel_cache import LIMIT
from tvm_sparse.compiler.plan import prediction_cache
from tvm_sparse.compiler.plan.predict import Prediction, predicted
from tvm_sparse.compiler.plan.prediction_cache import remembered
from tvm_sparse.conv.dtypes import FLOAT16
from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.conv.structure import Structure
from tvm_sparse.conv.structured_mask import structured_mask
from tvm_sparse.schedules.lookup import make_kernel

GPU = Target({"kind": "cuda", "arch": "sm_90"}, host={"kind": "llvm"})
CPU = Target({"kind": "llvm", "opt-level": 0, "num-cores": 1})
LAYER = ConvSpec(64, 64, 56, 56, 64, 3, 3, padding=(1, 1, 1, 1), bias=True, relu=True)


def sliced(spec: ConvSpec) -> np.ndarray:
    """A weight of which a tenth of the input channels is left."""
    weight = normal_weight(spec, 1.0, 0)
    return weight * structured_mask(np.abs(weight), Structure.named("slice64c").fitted(spec.k), 0.9, 1)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[ConvSpec]:
    """The layers of which nothing was remembered; what is said of them has a time of their number."""
    found: list[ConvSpec] = []

    def predicted(spec: ConvSpec, *_: object) -> Prediction | None:
        found.append(spec)
        return Prediction("slice_cuda", 2.0, {"stages": 1}, float(len(found))) if spec.relu else None

    monkeypatch.setattr(prediction_cache, "predicted", predicted)
    monkeypatch.setenv("TVM_SPARSE_HOME", str(tmp_path))
    monkeypatch.setenv(LIMIT, "16")
    return found


def test_a_layer_is_predicted_once(asked: list[ConvSpec], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where dense is as fast; another layer, number of zeros, precision or card is another question."""
    pattern, other = (SparsityPattern.of(normal_weight(LAYER, each, 0)) for each in (0.1, 0.2))
    dense = replace(LAYER, relu=False)
    first = [remembered(each, pattern, GPU, False) for each in (LAYER, dense)]
    assert [remembered(each, pattern, GPU, False) for each in (LAYER, dense)] == first
    assert first == [Prediction("slice_cuda", 2.0, {"stages": 1}, 1.0), None] and len(asked) == 2
    remembered(LAYER, other, GPU, False)
    remembered(LAYER, pattern, GPU, True)
    remembered(LAYER, pattern, Target({"kind": "cuda", "arch": "sm_80"}, host={"kind": "llvm"}), False)
    assert len(asked) == 5
    # A CPU's are quick, and somebody may want nothing kept.
    remembered(LAYER, pattern, CPU, False)
    remembered(LAYER, pattern, CPU, False)
    assert len(asked) == 7
    monkeypatch.setenv(LIMIT, "0")
    remembered(LAYER, pattern, GPU, False)
    assert len(asked) == 8


def test_half_precision_is_predicted_where_filters_share_zeros() -> None:
    """On tensor cores, with decisions that make a kernel; in deep layers unstructured zeros lose to cuDNN."""
    spec = replace(LAYER, dtype=FLOAT16)
    found = predicted(spec, SparsityPattern.of(sliced(spec)), GPU)
    assert found is not None and found.schedule == "plane_cuda:fp16" and found.speedup > 1.5
    make_kernel(found.schedule, spec, sliced(spec), GPU, found.decisions)
    deep = ConvSpec(64, 256, 14, 14, 256, 3, 3, padding=(1, 1, 1, 1), bias=True, relu=True, dtype=FLOAT16)
    assert predicted(deep, SparsityPattern.of(normal_weight(deep, 0.1, 0)), GPU) is None


def test_maps_whose_pixels_lie_in_no_pairs_take_longer() -> None:
    """Of 7x7 outputs each is written alone."""
    spec = ConvSpec(64, 512, 7, 7, 2048, 1, 1, bias=True, residual=True, relu=True, dtype=FLOAT16)
    odd, even = (predicted(each, SparsityPattern.of(sliced(each)), GPU) for each in (spec, replace(spec, h=8, w=8)))
    assert odd is not None and even is not None and odd.time_us is not None and even.time_us is not None
    assert odd.time_us > 1.3 * even.time_us and odd.speedup < 1.5 < even.speedup
