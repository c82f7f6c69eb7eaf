"""What a search tries first: the best start of each schedule that may win, then all others by their estimates."""

from dataclasses import dataclass

from tvm_sparse.autotune.search.strategies import promising_first


@dataclass(frozen=True)
class Space:
    """A schedule space with one start."""

    schedule: str
    name: str
    time_us: float | None
    fold: bool = True

    @property
    def starts_us(self):
        return [self.time_us]

    def starts(self):
        return [{}]


def order(*spaces):
    return [each.name for each, _ in promising_first(spaces)]


def test_each_schedule_that_may_win_leads():
    spaces = [Space("folded", f"folded{us}", us) for us in (10.0, 11.0, 12.0)]
    assert order(*spaces, Space("other", "other", 14.0)) == ["folded10.0", "other", "folded11.0", "folded12.0"]
    assert order(*spaces, Space("other", "slow", 16.0))[-1] == "slow"


def test_what_needs_no_compiler_leads_sooner():
    """Else 13 folded kernels that nvcc did not build in time left no trial for tensor cores, four times faster."""
    folded = [Space("folded", f"folded{us}", us) for us in (10.0, 11.0)]
    assert order(*folded, Space("data", "data", 39.0, fold=False))[:2] == ["folded10.0", "data"]
    assert order(*folded, Space("data", "data", 41.0, fold=False))[-1] == "data"


def test_what_nothing_estimates_comes_last():
    assert order(Space("generated", "generated", None), Space("folded", "folded", 10.0)) == ["folded", "generated"]
