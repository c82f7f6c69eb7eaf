"""The plot of the README: ratios and break-evens are those of the results, and the picture shows them."""

import json
import lzma
import re
import sys
from pathlib import Path

import plot_speedup
import pytest
from table2_made import SWEPT, make_document

from benchmarks.cpu_contenders import BASELINES, OURS
from benchmarks.results import Document

ROOT = Path(__file__).parents[2]


def cpu_document(operators=(6, 7)):
    """Ours takes 1000 us times the density, the fastest baseline 250 us, the others more."""
    cases = [
        {
            "operator": operator,
            "density": density,
            "times_us": {OURS: [1000 * density], **{name: [250.0 + 100 * i] for i, name in enumerate(BASELINES)}},
        }
        for operator in operators
        for density in SWEPT
    ]
    skipped = {"operator": 9, "density": 0.1, "skipped": "no record"}
    return {"fingerprint": {"arch": "made-up"}, "runs": [{"threads": 1, "cases": [*cases, skipped]}]}


def test_ratios_are_against_the_fastest_baseline():
    assert plot_speedup.cpu_ratios(cpu_document((6,))) == {6: {d: pytest.approx(0.25 / d) for d in SWEPT}}
    # Of make_document: cuDNN takes 95 us in TF32, ours 1000 us times the density.
    found = plot_speedup.gpu_ratios(make_document(), 64)
    assert found[6] == {density: pytest.approx(0.095 / density) for density in SWEPT}
    assert found[1] == {0.1: pytest.approx(0.95)}
    assert set(plot_speedup.gpu_ratios(make_document(), 1)) == {1, 6, 7}


def test_a_line_has_the_densities_that_all_its_operators_have():
    (line,) = plot_speedup.lines({6: {0.1: 4.0, 0.5: 0.5, 0.9: 0.1}, 7: {0.1: 1.0, 0.5: 0.125}}).values()
    assert line == {0.1: [4.0, 1.0], 0.5: [0.5, 0.125]}
    # From 2 to 1/4 between 0.1 and 0.5: a third of the way, with both axes logarithmic.
    assert plot_speedup.break_even(line) == pytest.approx(0.1 * 5 ** (1 / 3))
    assert plot_speedup.break_even({0.1: [4.0], 0.9: [2.0]}) is None
    assert plot_speedup.break_even({0.1: [0.5], 0.9: [0.1]}) is None


def test_it_draws_from_results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cpu.json.xz").write_bytes(lzma.compress(json.dumps(cpu_document()).encode()))
    make_document().save(tmp_path / "gpu.json.xz")
    words = ["--cpu", "cpu.json.xz", "--gpu", "gpu.json.xz", "-o", "new/plot.svg"]
    monkeypatch.setattr(sys, "argv", ["plot_speedup.py", *words])
    plot_speedup.main()
    text = (tmp_path / "new" / "plot.svg").read_text()
    assert "CPU, made-up, one thread, batch 1" in text and "GPU, NVIDIA H200, batch 64" in text
    # 250 us of 1000, and 95 of 1000 where cuDNN may use TF32; nothing was measured at several densities at batch 1.
    cpu, gpu = map(float, shown_break_evens(text))
    assert (cpu, gpu) == (0.25, pytest.approx(0.095, abs=0.006))


def test_the_picture_of_the_readme_is_that_of_the_results():
    text = plot_speedup.PLOT.read_text()
    assert len(text) < 60_000
    results = plot_speedup.command_line.RESULTS
    cpu = json.loads(lzma.decompress((results / "table2-znver3.json.xz").read_bytes()))
    gpu = Document.load(results / "table2-h200.json.xz")
    panels = [plot_speedup.cpu_ratios(cpu), *(plot_speedup.gpu_ratios(gpu, batch) for batch in (1, 64))]
    found = [plot_speedup.break_even(line) for ratios in panels for line in plot_speedup.lines(ratios).values()]
    assert shown_break_evens(text) == [f"{density:.2f}" for density in found if density is not None]


def shown_break_evens(text):
    """Numbers beside the dots; those of the axes have another size."""
    return re.findall(r"font-size: 9px[^>]*text-anchor: start[^>]*>(0\.\d\d)<", text)
