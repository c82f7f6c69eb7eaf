"""The estimate of a folded CUDA kernel's time: against shipped records, and fitted again."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import fields, replace
from pathlib import Path

import command_line
import fit_cost_model
import numpy as np
import pytest
from fit_cost_model import Sample, descend, factors, leaving, log_error, samples, written

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.schedules.lookup import find_space
from tvm_sparse.scheduling.annotations import DependentLaunch, Order
from tvm_sparse.scheduling.cuda.cudnn_time import cudnn_us
from tvm_sparse.scheduling.cuda.folded import cost_model_fit
from tvm_sparse.scheduling.cuda.folded.cost_model import features, floor_us, time_us
from tvm_sparse.scheduling.cuda.folded.cost_model_fit import DEFAULT, FITS, FITTED, Fit, fitted_on
from tvm_sparse.scheduling.cuda.folded.kernel_counts import KernelCounts, Pipeline
from tvm_sparse.scheduling.cuda.folded.occupancy import BLOCKS, DEPTHS
from tvm_sparse.target.gpu import CARDS, GpuInfo, card
from tvm_sparse.target.resolve import resolve_target

LOGS = sorted((Path(__file__).parents[2] / "tuning_logs" / "nvidia-h200").glob("*.jsonl*"))
H200 = card(90)


@pytest.fixture(scope="module")
def logs() -> dict[Path, list[TuningRecord]]:
    """The records of the shipped logs."""
    return {path: TuningLog(path).records for path in LOGS}


@pytest.fixture(scope="module")
def shipped(logs: dict[Path, list[TuningRecord]]) -> list[Sample]:
    """The timed folded kernels of the shipped logs."""
    return samples(itertools.chain(*logs.values()))


def test_estimates_are_near_the_shipped_times(shipped: list[Sample], logs: dict[Path, list[TuningRecord]]) -> None:
    """Within these factors in the median and for nine of ten: of Table 2 and ResNet-50, and of all tuned since.

    The constants were fitted to the former; of the latter many are of batch 8, densities or shapes unlike them.
    """
    fitted = [path for path in LOGS if path.name.partition(".")[0] in ("table2", "networks")]
    first = samples(record for path in fitted for record in logs[path])
    for found, least, median, ninth in ((first, 100, 1.15, 1.5), (shipped, 500, 1.2, 1.8)):
        off = factors(FITS[DEFAULT], found)
        assert len(off) >= least
        assert statistics.median(off) < median
        assert off[int(0.9 * len(off))] < ninth


def test_kernels_are_estimated_together_as_one_by_one(shipped: list[Sample]) -> None:
    """Tiles with several pipelines each, as a space estimates all of its kernels at once."""
    pipelines = [Pipeline(*each) for each in itertools.product(DEPTHS, list(Order), BLOCKS, list(DependentLaunch))]
    for splits in (1, 4):
        found = [each for each in shipped if each.counts.splits == splits and each.gpu == H200]
        tiles = [each.counts for each in found if not each.counts.halves][:8]
        assert len(tiles) == 8
        one_by_one = [[time_us(replace(tile, pipeline=each), H200) for each in pipelines] for tile in tiles]
        assert time_us(KernelCounts.together(tiles, pipelines), H200) == pytest.approx(np.array(one_by_one))


def test_a_fit_finds_constants_again(shipped: list[Sample]) -> None:
    """From times that the estimate itself gives with other constants; those that are not fitted stay."""
    true = replace(FITS[DEFAULT], cold_cycles=9.0, barrier_cycles=300.0, launch_us=0.8)
    made = [each._replace(measured_us=time_us(each.counts, each.gpu, true)) for each in shipped[::25]]
    found = descend(FITS[DEFAULT], lambda fit: log_error(fit, made))
    assert log_error(found, made) < 0.25 * log_error(FITS[DEFAULT], made)
    assert found.launch_us == pytest.approx(0.8, rel=0.1)
    kept = [each.name for each in fields(Fit) if each.name not in FITTED]
    assert [getattr(found, name) for name in kept] == [getattr(true, name) for name in kept]


def test_a_constant_stays_where_times_do_not_insist() -> None:
    """Leaving costs nothing at the old constants, and as much up as down."""
    base = FITS[DEFAULT]
    assert leaving(base, base) == 0
    up, down = (replace(base, launch_us=base.launch_us * factor) for factor in (2, 0.5))
    assert leaving(base, up) > 0
    assert leaving(base, up) == pytest.approx(leaving(base, down))


def test_each_convolution_weighs_alike(shipped: list[Sample], logs: dict[Path, list[TuningRecord]]) -> None:
    """However many of its kernels were timed."""
    records = itertools.chain(*logs.values())
    convolutions = {each.spec for each in records if each.status == "ok" and each.schedule.startswith("folded_cuda")}
    assert sum(each.weight for each in shipped) == pytest.approx(len(convolutions))
    assert len(convolutions) < len(shipped)


def test_what_is_written_is_the_module_again() -> None:
    """With the same constants the same text, and with another card's that card's too."""
    text = Path(cost_model_fit.__file__).read_text()
    assert written(text, FITS) == text
    other = replace(FITS[DEFAULT], drift=0.25)
    scope = {"__name__": cost_model_fit.__name__}
    exec(compile(written(text, {**FITS, "NVIDIA A40": other}), "written", "exec", dont_inherit=True), scope)
    assert [each.drift for each in scope["FITS"].values()] == [FITS[DEFAULT].drift, 0.25]
    assert scope["fitted_on"](next(each for each in CARDS if each.name == "NVIDIA A40")) == "NVIDIA A40"


def test_the_script_shows_and_writes_nothing_unasked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Errors before and after; a log without folded CUDA kernels is refused in a sentence."""
    before = Path(cost_model_fit.__file__).read_bytes()
    monkeypatch.setattr("sys.argv", ["fit_cost_model.py", str(next(each for each in LOGS if "networks" in each.name))])
    fit_cost_model.main()
    assert "before: off by" in (shown := capsys.readouterr().out) and "after: off by" in shown
    assert Path(cost_model_fit.__file__).read_bytes() == before
    monkeypatch.setattr("sys.argv", ["fit_cost_model.py", str(LOGS[0].parents[1] / "znver5" / "demo.jsonl.xz")])
    with pytest.raises(SystemExit) as ended:
        command_line.end_as(fit_cost_model.main)
    assert ended.value.code == 3
    assert "not folded CUDA kernels of one card" in capsys.readouterr().err


@pytest.mark.parametrize("gpu", CARDS, ids=lambda each: each.name)
def test_every_card_has_estimates(gpu: GpuInfo) -> None:
    """Above the roof, with as many features; with the H200's constants, and longer where the card is slower."""
    spec = ConvSpec(64, 64, 28, 28, 64, 3, 3, padding=(1, 1, 1, 1))
    rng = np.random.default_rng(0)
    pattern = SparsityPattern.of((rng.random(spec.weight_shape) < 0.1).astype(np.float32))
    target = resolve_target({"kind": "cuda", "arch": f"sm_{gpu.compute_capability}", "model": gpu.name})
    space = find_space("folded_cuda:npq384", spec, pattern, target)
    counts = space.counts_of(space.scheduled())
    assert floor_us(spec, pattern, gpu) < time_us(counts, gpu) == pytest.approx(space.estimate_us)
    assert all(np.isfinite(features(counts, gpu))) and len(features(counts, gpu)) == len(features(counts, H200))
    assert fitted_on(gpu) == DEFAULT
    if gpu.multiprocessors * gpu.clock_hz < 0.9 * H200.multiprocessors * H200.clock_hz:
        assert time_us(counts, gpu) > time_us(counts, H200)
    if gpu.dram_bytes_s < H200.dram_bytes_s and gpu.tf32_flops_s <= H200.tf32_flops_s:
        assert cudnn_us(spec, gpu) > cudnn_us(spec, H200)
