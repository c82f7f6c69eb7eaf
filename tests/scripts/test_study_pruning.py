"""The study of patterns: a tiny one runs and is resumed, and its report counts right."""

import importlib.util
import json
import sys

import pytest
import study_pruning
import study_report
import torch

from tvm_sparse import prune
from tvm_sparse.conv.structure import Structure


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a tiny study with some words, and gives what it says."""
    threads = torch.get_num_threads()

    def study(*words):
        monkeypatch.setattr(sys, "argv", ["study_pruning", "--tiny", *map(str, words)])
        study_pruning.main()
        return capsys.readouterr().out

    yield study
    torch.set_num_threads(threads)


@pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None, reason="needs scikit-learn: pip install 'tvm-sparse[dev]'"
)
def test_a_tiny_study_runs_and_goes_on(tmp_path, run):
    output, times = tmp_path / "study", tmp_path / "times.json"
    times.write_text(json.dumps({"net": {"dense": 100, "vector4": {"0.5": 60, "0.9": 20}}}))
    said = run("-o", output, "--seeds", 1, "--int8")
    assert said.count("seed 0: ") == 5
    lines = output.with_suffix(".jsonl").read_text().splitlines()
    assert [json.loads(line)["pattern"] for line in lines] == ["dense", "vector4", "slice16c", "2:4"]
    assert all(0 <= point["int8"] <= 1 for line in lines for point in json.loads(line)["points"])
    # As if it had been stopped, then with times.
    output.with_suffix(".jsonl").write_text("\n".join(lines[:3]) + "\n")
    assert run("-o", output, "--seeds", 1, "--int8", "--times", times).count("seed 0: ") == 2
    found = json.loads(output.with_suffix(".json").read_text())
    assert [run["pattern"] for run in found["runs"]] == ["dense", "vector4", "slice16c", "2:4"]
    assert {each["pattern"] for each in found["fronts"]["net"]} <= {"dense", "vector4"}
    assert "| vector4 |" in output.with_suffix(".md").read_text()
    assert output.with_suffix(".svg").stat().st_size > 1000
    # The same seed trains the same.
    again = output.with_suffix(".jsonl").read_text().splitlines()[3]
    assert json.loads(again)["points"] == json.loads(lines[3])["points"]
    # The report suffices to add times.
    output.with_suffix(".jsonl").unlink()
    assert "seed 0: " not in run("-o", output, "--seeds", 1, "--times", times)
    later = json.loads(output.with_suffix(".json").read_text())
    assert all(later[each] == found[each] for each in ("losses", "int8_losses", "fronts"))


@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param(each, marks=() if each in ("dense", "2:4", "slice16cr+vector4") else pytest.mark.exhaustive)
        for each in study_pruning.PATTERNS
    ],
)
def test_every_pattern_is_reached_by_the_network(pattern):
    torch.manual_seed(0)
    net = study_pruning.network((8, 16, 64, 0))
    options = study_pruning.Options(amounts=(0.5, 0.9), epochs=1)
    x, y = torch.randn(64, 1, 8, 8), torch.randint(10, (64,))
    points = study_pruning.trajectory(net, pattern, options, study_pruning.Batches(x, y, 0), [x, y])
    zeros = [each["zeros"] for each in points]
    assert zeros == pytest.approx({"dense": [0, 0], "2:4": [0.5]}.get(pattern, [0.5, 0.9]), abs=0.06)
    assert (net[6].weight != 0).all(), "it works on a copy"


def test_the_widest_layers_get_the_whole_pattern():
    layer = torch.nn.Conv2d(64, 64, 3)
    for name in (*study_pruning.VECTORS, *study_pruning.SLICES):
        assert Structure.named(name).fitted(64).name == name
        assert prune.report(prune.pattern(torch.nn.Conv2d(64, 64, 3), name, 0.9))[0]["pattern"] == name
    assert layer.weight.shape[0] == study_pruning.WIDTHS[-2]


def made(seed, pattern, *accuracies):
    points = [{"amount": a, "accuracy": v} for a, v in zip((0.5, 0.9), accuracies, strict=True)]
    return {"seed": seed, "pattern": pattern, "points": points}


def test_losses_are_against_the_dense_network_of_the_seed():
    runs = [made(0, "dense", 0.95, 0.97), made(1, "dense", 0.9, 0.9), made(0, "vector4", 0.95, 0.9)]
    runs.append(made(1, "vector4", 0.9, 0.85))
    options = study_pruning.Options(patterns=("dense", "vector4"), amounts=(0.5, 0.9))
    found = study_report.document(runs, options, {"net": {"dense": 10, "vector4": {"0.9": 4}}})
    first, second = found["losses"]["vector4"]
    assert (first["points"], first["least"], first["most"], first["seeds"]) == (0.5, 0.0, 1.0, 2)
    assert second["points"] == 5.5
    assert [each["time_us"] for each in found["fronts"]["net"]] == [4, 10]
    text = study_report.page(found)
    assert "| vector4 | 0.5 (0.0 to 1.0) | 5.5 (5.0 to 6.0) |" in text
    assert "| vector4 | 50% | 50% |" in text


def test_losses_in_eight_bits_are_against_the_network_in_float32():
    runs = [made(0, "dense", 0.95, 0.97), made(0, "vector4", 0.95, 0.9)]
    for run in runs:
        for point in run["points"]:
            point["int8"] = point["accuracy"] - 0.02
    options = study_pruning.Options(patterns=("dense", "vector4"), amounts=(0.5, 0.9))
    found = study_report.document(runs, options, {})
    assert [row["points"] for row in found["int8_losses"]["vector4"]] == [3.0, 8.0]
    assert "| dense | 3.0 (3.0 to 3.0) | 1.0 (1.0 to 1.0) |" in study_report.page(found)
    # A report has what a restart goes on with.
    again = study_report.document(study_report.runs_of(found), options, {})
    assert (again["losses"], again["int8_losses"]) == (found["losses"], found["int8_losses"])


def test_the_front_has_what_no_other_beats():
    points = [{"time_us": t, "points": p} for t, p in ((1, 9), (2, 5), (3, 6), (4, 5), (5, 0), (2, 7))]
    assert [(each["time_us"], each["points"]) for each in study_report.front(points)] == [(1, 9), (2, 5), (5, 0)]


def test_images_are_made_harder_and_stay_the_same_for_a_seed():
    x = torch.zeros(2, 1, 32, 32)
    x[:, :, 12:20, 12:20] = 1
    one, same = (study_pruning.harder(x, torch.Generator().manual_seed(0)) for _ in range(2))
    assert torch.equal(one, same) and not torch.equal(one[0], one[1])
    assert (one - x).std() > study_pruning.NOISE * 0.9
