"""Layers that no log of this machine knows: what is expected of them, and that it is verified."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from random_convolutions import vector_weight
from torch import nn

from tvm_sparse.compiler import build_model
from tvm_sparse.compiler.building import verify
from tvm_sparse.compiler.plan import kernel_selection
from tvm_sparse.compiler.plan.dense_fallback import default_of
from tvm_sparse.compiler.plan.kernel_selection import decide
from tvm_sparse.compiler.plan.predict import cpu_dense_us, cpu_times_us, gpu_dense_us, predicted
from tvm_sparse.compiler.plan.reasons import Kind
from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.cudnn import library
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.resolve import resolve_target, target_json

# With more threads other kernels are expected to win.
CPU = resolve_target({"kind": "llvm", "opt-level": 0, "num-cores": 1})
AVX2, AVX512 = (resolve_target({"kind": "llvm", "mcpu": f"x86-64-{each}", "num-cores": 1}) for each in ("v3", "v4"))
CUDA = resolve_target({"kind": "cuda", "arch": "sm_90"})


def guess(spec, density, target=CPU, **options):
    found = predicted(spec, SparsityPattern.of(normal_weight(spec, density, 0)), target, **options)
    return None if found is None else found.schedule


def test_no_kernel_is_chosen_that_should_be_slower_than_the_best_dense_one():
    """Winograd's is the rival of a sparse kernel, not a direct one alone."""
    spec = ConvSpec(1, 256, 14, 14, 256, 3, 3, padding=(1, 1, 1, 1))
    chosen = {density: guess(spec, density, AVX512) for density in (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)}
    assert {"csr_cpu", "winograd_cpu"} <= set(chosen.values())
    for density, schedule in chosen.items():
        times_us = cpu_times_us(spec, round(density * spec.k * spec.c * 9), AVX512)
        assert times_us[schedule or "dense"] <= cpu_dense_us(spec, AVX512)


def test_with_avx512_code_pays_on_large_maps_and_data_on_small_ones():
    padded = {"padding": (1, 1, 1, 1)}
    assert guess(ConvSpec(1, 64, 56, 56, 64, 3, 3, **padded), 0.1, AVX512) == "folded_cpu"
    assert guess(ConvSpec(1, 64, 7, 7, 64, 3, 3, **padded), 0.1, AVX512) == "csr_cpu"
    assert guess(ConvSpec(64, 64, 7, 7, 64, 3, 3, **padded), 0.1, AVX512) == "folded_cpu"


def test_thin_layers_that_mostly_store_have_weights_as_data():
    """A line's first layer, and one of few channels: by rows they took 1.5 and 1.8 times as long (AVX-512)."""
    assert guess(ConvSpec(1, 1, 1, 16000, 256, 1, 10, stride=(1, 5)), 0.1, AVX512) == "csr_cpu"
    assert guess(ConvSpec(1, 16, 112, 112, 64, 1, 1), 0.1, AVX512) == "csr_cpu"


def test_with_avx2_data_pays_where_filters_have_many_weights():
    padded = {"padding": (1, 1, 1, 1)}
    assert guess(ConvSpec(1, 256, 14, 14, 256, 3, 3, **padded), 0.1, AVX2) == "csr_cpu"
    assert guess(ConvSpec(1, 512, 7, 7, 512, 3, 3, **padded), 0.1, AVX2) == "csr_cpu"
    assert guess(ConvSpec(1, 3, 224, 224, 64, 3, 3, **padded), 0.1, AVX2) == "folded_cpu"


@pytest.mark.parametrize("target", [AVX512, AVX2])
def test_vectors_of_filters_are_seen(target):
    spec = ConvSpec(1, 64, 56, 56, 64, 3, 3, padding=(1, 1, 1, 1))
    weight = normal_weight(ConvSpec(1, 64, 56, 56, 16, 3, 3), 0.1, 0).repeat(4, axis=0)
    assert predicted(spec, SparsityPattern.of(weight), target).schedule == "vector_cpu"
    shuffled = np.random.default_rng(0).permuted(weight.reshape(64, -1), axis=1).reshape(weight.shape)
    assert predicted(spec, SparsityPattern.of(shuffled), target).schedule == "folded_cpu"


@pytest.mark.parametrize("density", [0.6, 1.0])
def test_dense_weights_stay_dense(density):
    """But for 3x3 taps, which Winograd computes with fewer products."""
    assert guess(ConvSpec(1, 64, 28, 28, 64, 3, 3, padding=(1, 1, 1, 1)), density) == "winograd_cpu"
    assert guess(ConvSpec(1, 64, 28, 28, 64, 3, 3, padding=(1, 1, 1, 1), stride=(2, 2)), density) is None
    assert guess(ConvSpec(1, 64, 28, 28, 64, 1, 1), density) is None


def test_dense_float32_is_multiplied_in_parts_on_tensor_cores_where_tf32_is_not_allowed():
    """As float32 in parts is several times as fast as cuDNN in float32; elsewhere cuDNN uses tensor cores too."""
    spec = ConvSpec(64, 256, 28, 28, 256, 3, 3, padding=(1, 1, 1, 1))
    assert guess(spec, 1.0, CUDA) in ("plane_cuda", "quad_cuda")
    assert guess(spec, 1.0, CUDA, allow_tf32=True) is None
    assert guess(replace(spec, dtype="float16"), 1.0, CUDA) is None
    assert guess(replace(spec, n=1, c=32, k=16), 1.0, CUDA) is None
    assert guess(ConvSpec(64, 4096, 1, 1, 1024, 1, 1), 1.0, CUDA) is None


def test_an_image_is_multiplied_once_where_tf32_is_allowed():
    """cuDNN fills up its three channels there; other dense layers stay cuDNN's."""
    image = ConvSpec(64, 3, 224, 224, 64, 7, 7, stride=(2, 2), padding=(3, 3, 3, 3), bias=True, relu=True)
    assert guess(image, 1.0, CUDA) == "slice_cuda"
    assert guess(image, 1.0, CUDA, allow_tf32=True) == "slice_cuda:tf32"
    assert guess(replace(image, c=4), 1.0, CUDA, allow_tf32=True) is None
    once, twice = (
        predicted(image, SparsityPattern.of(normal_weight(image, 1.0, 0)), CUDA, allow_tf32=each)
        for each in (True, False)
    )
    assert once.time_us < 0.8 * twice.time_us


def test_linear_layers():
    assert guess(ConvSpec(1, 512, 1, 1, 512, 1, 1), 0.1) == "linear_cpu"
    assert guess(ConvSpec(1, 512, 1, 1, 512, 1, 1), 0.3) is None


def test_on_a_gpu_small_batches_take_weights_as_data_and_large_ones_code():
    spec = ConvSpec(1, 512, 7, 7, 512, 3, 3, padding=(1, 1, 1, 1))
    assert guess(spec, 0.05, CUDA) == "data_cuda"
    # cuDNN has one block of few outputs add up 4,608 products in turn, unless it may use tensor cores; then ours
    # multiply once instead of three times.
    assert guess(spec, 0.5, CUDA) == "quad_cuda"
    assert guess(spec, 0.3, CUDA, allow_tf32=True) == "quad_cuda:tf32"
    assert guess(spec, 1.0, CUDA, allow_tf32=True) is None
    assert guess(ConvSpec(1, 4096, 1, 1, 4096, 1, 1), 0.1, CUDA) == "linear_cuda"
    large = ConvSpec(64, 64, 56, 56, 64, 3, 3, padding=(1, 1, 1, 1))
    assert guess(large, 0.1, CUDA).startswith("folded_cuda:")
    vectors = vector_weight(large, 32, 0.1, 0, False)
    assert predicted(large, SparsityPattern.of(vectors), CUDA).schedule == "slice_cuda"


def test_in_half_precision_slices_of_64_filters_are_planes():
    """Beside cuDNN on tensor cores, which it always uses there; other zeros pay for few images, as data."""
    spec = ConvSpec(64, 256, 14, 14, 256, 3, 3, padding=(1, 1, 1, 1), dtype="float16")
    shared = np.random.default_rng(0).random((4, 256, 1, 1)) < 0.1
    slices = (normal_weight(spec, 1.0, 0) * shared.repeat(64, axis=0)).astype(np.float32)
    found = predicted(spec, SparsityPattern.of(slices), CUDA)
    assert found.schedule == "plane_cuda:fp16" and 2 < found.speedup < 8
    assert guess(spec, 0.1, CUDA) is None
    assert guess(replace(spec, n=1), 0.05, CUDA) == "data_cuda"
    # An H200 takes 40 us, conversions included, and 493 without tensor cores in float32.
    assert 20 < gpu_dense_us(spec, CUDA) < 80
    assert gpu_dense_us(replace(spec, dtype="float32"), CUDA) > 200


def test_in_half_precision_few_non_zeros_are_code():
    """Where cuDNN converts tensors, and clips outputs in a kernel of its own, for longer than code should take."""
    spec = ConvSpec(64, 16, 112, 112, 80, 1, 1, relu=True, relu_max=6.0, dtype="float16")
    assert guess(spec, 0.1, CUDA).startswith("folded_cuda:")
    assert guess(spec, 0.9, CUDA) == "slice_cuda:fp16"
    assert gpu_dense_us(spec, CUDA) > 1.5 * gpu_dense_us(replace(spec, relu_max=math.inf), CUDA)


@pytest.mark.parametrize(("images", "schedule"), [(1, "dense_cuda"), (64, "dense_cudnn"), (1000, "dense_cuda")])
def test_linear_layers_of_several_images_in_half_precision_are_products_of_cudnn(monkeypatch, images, schedule):
    """A weight is read as fast dense as its zeros are looked up; of few images it is not."""
    monkeypatch.setattr(library, "find", lambda: "libcudnn.so.9")
    spec = ConvSpec(images, 4096, 1, 1, 4096, 1, 1, bias=True, dtype="float16")
    assert default_of(spec, CUDA, lambda _: True) == schedule
    assert (guess(spec, 0.1, CUDA) is None) == (images == 64)


def test_no_weight_at_all_is_no_reason_to_guess():
    spec = ConvSpec(1, 8, 8, 8, 8, 3, 3)
    assert predicted(spec, SparsityPattern.of(np.zeros(spec.weight_shape, np.float32)), CPU) is None


@pytest.fixture
def module():
    torch.manual_seed(0)
    found = nn.Conv2d(16, 16, 3, padding=1).eval()
    with torch.no_grad():
        found.weight *= torch.rand_like(found.weight) < 0.1
    return found


X = torch.randn(1, 16, 30, 30)


def test_a_predicted_kernel_is_right_and_says_so(module, tmp_path):
    compiled = build_model.compile(module, X, target=CPU, log=tmp_path / "none.jsonl")
    (row,) = compiled.report()
    assert row["schedule"] == "folded_cpu" and row["time_us"] is None
    assert row["reason"].startswith("predicted: folded_cpu should be about ")
    assert row["reason"].endswith("not measured here")
    torch.testing.assert_close(compiled(X), module(X).detach(), rtol=1e-4, atol=1e-5)
    (dense,) = build_model.compile(module, X, target=CPU, log=tmp_path / "none.jsonl", predict=False).report()
    assert dense["schedule"] == "dense_cpu"


def test_a_predicted_kernel_that_is_wrong_gives_way_to_dense(module, monkeypatch, tmp_path):
    monkeypatch.setattr(verify._Case, "worst_error", lambda *_: 7.0)
    monkeypatch.setenv("TVM_SPARSE_CACHE_MIB", "0")
    (row,) = build_model.compile(module, X, target=CPU, log=tmp_path / "none.jsonl").report()
    assert row["schedule"] == "dense_cpu"
    assert row["reason"] == "dense, because the transferred kernel is wrong by 7 times the error bound"


def near_record(layer, dense_us, schedule="folded_cpu"):
    return TuningRecord(
        spec=layer.spec,
        pattern=layer.pattern,
        schedule=schedule,
        decisions={},
        status="ok",
        times_us=(10.0,),
        dense_times_us=(dense_us,),
        baseline="dense_cpu",
        error=0.1,
        target=target_json(CPU),
        fingerprint={**fingerprint_of(CPU), "tvm": "0.1"},
        seed=0,
    )


def test_what_won_on_a_near_machine_comes_first(module, tmp_path):
    prepared = prepare(module, X)
    log = TuningLog(tmp_path / "log.jsonl")
    log.append(near_record(prepared.layers[0], 50.0))
    (found,) = decide(prepared.layers, CPU, log, predict=True)
    assert found.schedule == "folded_cpu" and found.transferred and found.time_us is None
    assert found.reason.kind is Kind.NEAR
    assert decide(prepared.layers, CPU, log)[0].schedule == "dense_cpu"


def test_what_won_on_a_near_machine_gives_way_to_another_schedule_that_is_predicted(module, tmp_path):
    prepared = prepare(module, X)
    log = TuningLog(tmp_path / "log.jsonl")
    log.append(near_record(prepared.layers[0], 50.0, "csr_cpu:rows2x32"))
    (found,) = decide(prepared.layers, CPU, log, predict=True)
    assert found.schedule == "folded_cpu" and found.record is None


def test_what_won_in_a_shipped_log_gives_way_to_a_schedule_that_it_did_not_try(tmp_path, monkeypatch):
    """Where that is estimated to be much faster."""
    module = nn.Conv2d(512, 512, 1, bias=False).eval()
    with torch.no_grad():
        module.weight *= torch.rand_like(module.weight) < 0.1
    (layer,) = prepare(module, torch.zeros(1, 512, 7, 7)).layers
    won = replace(near_record(layer, 50.0), fingerprint=fingerprint_of(AVX512), target=target_json(AVX512))
    log = TuningLog(tmp_path / "log.jsonl")
    log.append(won)
    assert decide([layer], AVX512, log, predict=True)[0].schedule == "folded_cpu"
    monkeypatch.setattr(kernel_selection, "is_shipped", lambda path: path == log.path)
    (found,) = decide([layer], AVX512, log, predict=True)
    assert found.schedule == "csr_cpu" and found.record is None and found.reason.kind is Kind.PREDICTED
    log.append(replace(won, schedule="csr_cpu:rows1x49", times_us=(11.0,), seed=1))
    assert decide([layer], AVX512, log, predict=True)[0].record is not None


def test_what_won_with_other_threads_is_not_taken(module, tmp_path):
    """Its work is cut for those; a search begins with it all the same."""
    prepared = prepare(module, X)
    (layer,) = prepared.layers
    record, log = near_record(layer, 50.0), TuningLog(tmp_path / "log.jsonl")
    log.append(replace(record, fingerprint={**record.fingerprint, "threads": "77"}))
    assert decide(prepared.layers, CPU, log, predict=True)[0].record is None
    assert log.near(layer.spec, layer.pattern, fingerprint_of(CPU)) is not None


def test_what_won_there_with_few_non_zeros_is_not_taken_for_many(module, tmp_path):
    """In proportion to them it would lose here."""
    prepared = prepare(module, X)
    (layer,) = prepared.layers
    sparse = layer.weight * (np.random.default_rng(0).random(layer.weight.shape) < 0.1)
    record = replace(near_record(layer, 50.0), pattern=SparsityPattern.of(sparse))
    log = TuningLog(tmp_path / "log.jsonl")
    log.append(record)
    assert layer.pattern.nnz > 5 * record.pattern.nnz
    (found,) = decide(prepared.layers, CPU, log, predict=True)
    assert found.record is None
    log.append(replace(record, dense_times_us=(500.0,), seed=1))
    (found,) = decide(prepared.layers, CPU, log, predict=True)
    assert found.record is not None and found.reason.kind is Kind.NEAR


def test_what_hardly_won_there_is_not_taken(module, tmp_path):
    prepared = prepare(module, X)
    log = TuningLog(tmp_path / "log.jsonl")
    log.append(near_record(prepared.layers[0], 10.0 * kernel_selection.NEAR_MARGIN - 0.1))
    assert decide(prepared.layers, CPU, log, predict=True)[0].schedule == "folded_cpu"


@pytest.mark.parametrize("dtype", [None, "float16"])
def test_depthwise_convolutions_take_the_compiled_kernel_on_a_gpu(monkeypatch, dtype):
    monkeypatch.setattr(library, "find", lambda: "libcudnn.so.9")
    model = nn.Sequential(nn.Conv2d(32, 32, 3), nn.Conv2d(32, 32, 3, groups=32), nn.Conv2d(32, 32, 3, groups=16))
    prepared = prepare(model.eval(), torch.zeros(1, 32, 16, 16), None, None, dtype)
    assert [each.schedule for each in decide(prepared.layers, CUDA, None)] == [
        "dense_cudnn",
        "dense_cuda",
        "dense_cudnn",
    ]


@pytest.mark.parametrize(("channels", "per_group", "size"), [(128, 4, 56), (240, 24, 14), (1024, 32, 7)])
def test_grouped_convolutions_of_a_gpu_need_no_zeros(channels, per_group, size):
    """Small weights are folded, larger ones are data; depthwise layers are others' work."""
    padded = {"padding": (1, 1, 1, 1)}
    spec = ConvSpec(1, channels, size, size, channels, 3, 3, groups=channels // per_group, **padded)
    for allow_tf32 in (False, True):
        chosen = guess(spec, 1.0, CUDA, allow_tf32=allow_tf32)
        assert chosen.startswith("folded_cuda" if per_group == 4 else "vector_cuda")
    assert guess(replace(spec, groups=channels), 1.0, CUDA) is None
    assert guess(replace(spec, dtype="float16"), 1.0, CUDA) is None
