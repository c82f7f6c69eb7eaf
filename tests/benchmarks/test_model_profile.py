"""Kernels that a profiler saw, by layer: overlap is not counted twice, and sums are of what both sides know."""

import json
import math
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.model_profile import KernelEvent, LoggedLayer, compare, spans_us
from tvm_sparse.errors import BuildError

SCRIPT = Path(__file__).parents[2] / "scripts" / "models" / "compare_log_with_model.py"
LAYERS = [
    LoggedLayer("conv", "folded_cuda", ("tvm_sparse_0_conv",), 10.0, 4.0),
    LoggedLayer("conv1", "csr_cuda", ("tvm_sparse_1_conv1", "tvm_sparse_1_pad"), 6.0, 5.0),
    LoggedLayer("conv2", "dense_cuda", ("tvm_sparse_2_conv2",), None, 50.0),
    LoggedLayer("conv3", "folded_cuda", ("tvm_sparse_3_conv3",), 8.0, 7.0),
]
# Kernel -> start and end in a run of 100 us. The second is launched while the first runs.
RUN = {
    "tvm_sparse_0_conv_kernel": (0.0, 9.0),
    "tvm_sparse_1_pad": (8.0, 10.0),
    "tvm_sparse_1_conv1_kernel_1": (10.0, 14.0),
    "pool_kernel": (14.0, 16.0),
    "Memcpy DtoD": (17.0, 18.0),
    "tvm_sparse_2_conv2_kernel": (18.0, 58.0),
}


def events(runs=3, slow=0.0):
    """The last run is slower."""
    return [
        KernelEvent(name, 100.0 * run + start, 100.0 * run + end + (slow if run == runs - 1 else 0))
        for run in range(runs)
        for name, (start, end) in RUN.items()
    ]


def test_a_kernel_that_waits_for_the_one_ahead_is_charged_for_its_own_time_only():
    found = [("a", 0.0, 9.0), ("b", 3.0, 14.0), ("inside", 4.0, 8.0), ("late", 20.0, 21.0)]
    spans = spans_us(KernelEvent(*each) for each in reversed(found))
    assert spans == [("a", 9.0), ("b", 5.0), ("inside", 0.0), ("late", 1.0)]


def test_layers_get_their_kernels_and_sums_what_both_sides_know():
    found = compare(LAYERS, events(), 3)
    assert [each.in_model_us for each in found.layers] == [9.0, 5.0, 40.0, None]
    assert [each.layer for each in found.compared] == ["conv", "conv1"]
    assert (found.total_us("cold_us"), found.total_us("in_model_us")) == (16.0, 14.0)
    assert found.ratio == 16 / 14
    assert found.others_us == {"pool": 2.0, "Memcpy DtoD": 1.0}
    document = json.loads(json.dumps(found.to_json()))
    assert document["compared"] == 2 and document["sums"]["warm_us"] == 9.0
    lines = [line.split() for line in found.text().splitlines()]
    assert ["conv2", "dense_cuda", "-", "50.00", "40.00", "-"] in lines
    assert ["sum", "of", "2", "of", "4", "16.0", "9.0", "14.0", "1.14"] in lines
    assert ["other", "kernels:", "3.0", "us"] in lines


def test_one_disturbed_run_changes_nothing():
    assert compare(LAYERS, events(slow=30.0), 3).ratio == 16 / 14


def test_layers_that_share_a_kernel_have_the_times_of_its_calls_in_their_order():
    """Called more often than there are layers that have it, each has the mean."""
    calls = [KernelEvent("tvm_sparse_0_conv_kernel", at, at + 4 + at % 2) for at in (0, 11, 20, 31)]
    twin = replace(LAYERS[0], layer="twin")
    assert [each.in_model_us for each in compare([LAYERS[0], twin], calls, 2).layers] == [4.0, 5.0]
    assert compare(LAYERS[:1], calls, 2).layers[0].in_model_us == 4.5


def test_runs_that_differ_are_not_compared():
    with pytest.raises(BuildError, match="kernel pool: is not executed alike in every run, found 2; allowed"):
        compare(LAYERS, [each for each in events() if each.start_us != 214.0], 3)


def test_nothing_to_compare_is_no_ratio():
    found = compare(LAYERS[2:], events(), 3)
    assert found.ratio is None and math.isclose(sum(found.others_us.values()), 17.0)
    assert "sum of 0 of 2" in found.text()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_script_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [SCRIPT.name, "resnet50", "--log", str(tmp_path / "log.jsonl")])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    said = capsys.readouterr()
    assert (end.value.code, said.out) == (2, "")
    assert said.err.strip().endswith("torch finds no GPU; allowed: an NVIDIA GPU and torch for CUDA")
