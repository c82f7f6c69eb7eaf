"""``inspect --patterns``: what each pattern keeps and weighs is counted, and times are those of the estimates."""

import json

import numpy as np
import onnx
import pytest

from benchmarks.onnx_graph import GraphBuilder
from tvm_sparse.cli import main
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.display.consoles import plain_text
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer
from tvm_sparse.prune import layer_times
from tvm_sparse.reports.pattern_table import PATTERNS, pattern_document, pattern_parts
from tvm_sparse.target.resolve import resolve_target

TARGET = resolve_target("llvm")
SPEC = ConvSpec(1, 32, 8, 8, 128, 3, 3, padding=(1, 1, 1, 1))


def layer(spec=SPEC, name="conv"):
    values = np.random.default_rng(0).standard_normal(spec.weight_shape).astype(np.float32)
    return ConvLayer(name, spec, values, None)


def test_rows_are_counted_by_hand():
    values = np.zeros(SPEC.weight_shape, np.float32)
    # Half of all magnitude in one vector of 16, half in one weight.
    values[16:32, 3, 1, 1], values[70, 5, 0, 0] = 1, 16
    found = pattern_document([ConvLayer("conv", SPEC, values, None)], 1 - 2 * 16 / values.size, TARGET)
    (row,) = found["layers"]
    assert row["kept"]["unstructured"] == row["kept"]["vector16"] == 1
    assert row["magnitude"] == 32
    assert row["bytes"]["vector16"] == 2 * (16 * 4 + 4) + 9 * 4
    assert row["dense_bytes"] == values.nbytes


def test_coarser_patterns_keep_less_and_weigh_less():
    (row,) = pattern_document([layer()], 0.9, TARGET)["layers"]
    kept = [row["kept"][name] for name in PATTERNS[:6]]
    assert kept == sorted(kept, reverse=True) and 0.1 < kept[-1] < kept[0] < 1
    sizes = [row["bytes"][name] for name in PATTERNS[:6]]
    assert sizes == sorted(sizes, reverse=True)


def test_what_does_not_fit_has_no_number():
    few = layer(ConvSpec(1, 3, 8, 8, 24, 3, 3), "few")
    found = pattern_document([few, layer()], 0.5, TARGET)
    kept = found["layers"][0]["kept"]
    assert [kept[name] for name in ("vector16", "vector64", "2:4")] == [None] * 3
    assert kept["vector8"] > 0.5
    by_name = {each["pattern"]: each for each in found["patterns"]}
    assert (by_name["vector16"]["layers"], by_name["vector8"]["layers"]) == (1, 2)
    assert by_name["vector16"]["dense_bytes"] == layer().weight.nbytes
    assert "2:4" in by_name and "2:4" not in pattern_document([layer()], 0.9, TARGET)["layers"][0]["kept"]


@pytest.mark.parametrize("target", ["llvm", {"kind": "cuda", "arch": "sm_90"}])
def test_times_are_the_estimates(target):
    resolved = resolve_target(target)
    (row,) = pattern_document([layer()], 0.9, resolved)["layers"]
    clock = layer_times.estimated(SPEC, resolved)
    assert (row["dense_time_us"], row["time_us"]) == (clock(1.0), pytest.approx(clock(0.1)))
    assert row["time_us"] < row["dense_time_us"]


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    graph = GraphBuilder("tiny", SPEC.input_shape)
    graph.conv("conv", "x", layer().weight, stride=1, padding=1)
    onnx.save(graph.model("conv", SPEC.output_shape, "y"), "tiny.onnx")
    assert main.main(["inspect", "tiny.onnx", "--patterns", "0.9", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["patterns"] == json.loads(json.dumps(pattern_document([layer()], 0.9, TARGET)))
    with pytest.raises(SystemExit, match="2"):
        main.main(["inspect", "tiny.onnx", "--patterns", "1.5"])
    assert "found 1.5; allowed: a number above 0 and below 1" in capsys.readouterr().err


def test_the_tables():
    text = plain_text(*pattern_parts(pattern_document([layer()], 0.9, TARGET)))
    assert "share of 0.9 zeros" in text and "slice64cr+vector8" in text
    assert "all layers, us" in text and "all dense: " in text


@pytest.mark.parametrize(
    ("target", "spec", "gains"),
    [
        ("llvm", SPEC, "vector16"),
        ({"kind": "cuda", "arch": "sm_90"}, ConvSpec(64, 64, 56, 56, 64, 1, 1), "slice64c"),
    ],
)
def test_patterns_that_kernels_make_use_of_take_less_time(target, spec, gains):
    found = pattern_document([layer(spec), layer(ConvSpec(1, 3, 8, 8, 24, 3, 3), "few")], 0.9, resolve_target(target))
    times, few = (row["times_us"] for row in found["layers"])
    assert times[gains] < 0.9 * times["unstructured"] and "vector64" not in few
    assert times["filters"] == times["unstructured"] == pytest.approx(found["layers"][0]["time_us"])
    by_name = {each["pattern"]: each for each in found["patterns"]}
    assert by_name["vector64"]["time_us"] == times["vector64"] + found["layers"][1]["dense_time_us"]
