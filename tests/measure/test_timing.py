"""Timing in turns: contenders alternate, and three quarters of the rounds decide what is faster."""

from tvm_sparse.measure.quartiles import Quartiles
from tvm_sparse.measure.timing import interleave, speedup, verdict


def test_quartiles_and_verdict():
    assert Quartiles.of([3.0]) == Quartiles(3.0, 3.0, 3.0)
    assert Quartiles.of([1.0, 2.0, 3.0, 4.0, 5.0]) == Quartiles(3.0, 2.0, 4.0)
    ratio = speedup([1.0, 2.0, 4.0], [3.0, 4.0, 20.0])
    assert ratio == Quartiles(3.0, 2.5, 4.0)
    assert [verdict(Quartiles(1, *quartiles)) for quartiles in ((1.1, 2), (0.5, 0.9), (0.9, 1.1))] == [
        "faster",
        "slower",
        "undecided",
    ]


def test_contenders_take_turns():
    order = []
    times = interleave({name: lambda name=name: order.append(name) for name in "ab"}, rounds=3, min_round_ms=0.001)
    assert {name: len(values) for name, values in times.items()} == {"a": 3, "b": 3}
    turns = [name for name, before in zip(order, ["", *order], strict=False) if name != before]
    assert turns == list("abababab")
    assert all(value > 0 for values in times.values() for value in values)
