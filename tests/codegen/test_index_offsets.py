"""`split_index` against evaluating the index at every point."""

import itertools

import pytest
import tvm_ffi
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import tirx
from tvm.tirx import IntImm, Var

from tvm_sparse.codegen.tir.index_offsets import split_index, variables

LOOPS = [Var("i", "int32"), Var("j", "int32")]
EXTENTS = [3, 4]
OUTER = [Var("n", "int32"), Var("m", "int32")]
# Binary nodes and what they compute.
OPERATIONS = {
    tirx.Add: lambda a, b: a + b,
    tirx.Sub: lambda a, b: a - b,
    tirx.Mul: lambda a, b: a * b,
    tirx.FloorDiv: lambda a, b: a // b,
    tirx.FloorMod: lambda a, b: a % b,
    tirx.Min: min,
    tirx.Max: max,
}


def value(e, environment):
    """The integer that an expression has where variables have the values of `environment`."""
    if isinstance(e, IntImm):
        return int(e)
    if isinstance(e, Var):
        return environment[e]
    if isinstance(e, tirx.Cast):
        return value(e.value, environment)
    return OPERATIONS[type(e)](value(e.a, environment), value(e.b, environment))


def constants():
    return st.integers(-3, 5).map(lambda number: IntImm("int32", number))


def expressions(leaves, depth=3):
    """Trees of `OPERATIONS` over `leaves`; divisors are positive constants."""
    if depth == 0:
        return leaves
    below = expressions(leaves, depth - 1)
    divisor = st.integers(1, 5).map(lambda number: IntImm("int32", number))
    free = st.sampled_from([tirx.Add, tirx.Sub, tirx.Mul, tirx.Min, tirx.Max])
    return st.one_of(
        below,
        st.builds(lambda node, a, b: node(a, b), free, below, below),
        st.builds(lambda node, a, b: node(a, b), st.sampled_from([tirx.FloorDiv, tirx.FloorMod]), below, divisor),
    )


def is_mixture(e):
    """Whether loops and outer variables meet in a node that is not linear in them."""
    found = variables([e])
    inner = {any(v.same_as(u) for u in LOOPS) for v in found}
    if len(inner) < 2:
        return False
    if isinstance(e, tirx.Mul) and not all(variables([side]) for side in (e.a, e.b)):
        return is_mixture(e.a) or is_mixture(e.b)
    return not isinstance(e, (tirx.Add, tirx.Sub)) or is_mixture(e.a) or is_mixture(e.b)


def check(index):
    """Whether `index` was split; it must then agree with brute force everywhere."""
    form = split_index(index, LOOPS, EXTENTS)
    if form is None:
        return False
    assert not any(v.same_as(u) for v in variables([form.base]) for u in LOOPS)
    for point in itertools.product(*map(range, EXTENTS)):
        offset = form.offsets[tuple(min(p, size - 1) for p, size in zip(point, form.offsets.shape, strict=True))]
        for outer in ((0, 0), (2, 5), (7, 1)):
            environment = dict(zip(LOOPS + OUTER, (*point, *outer), strict=True))
            assert value(form.at(int(offset)), environment) == value(index, environment), (index, environment)
    return True


@settings(max_examples=300, derandomize=True)
@given(expressions(st.one_of(st.sampled_from(LOOPS), constants())))
def test_any_expression_of_the_loops_alone_is_split(index):
    assert check(index)


@settings(max_examples=300, derandomize=True)
@given(expressions(st.one_of(st.sampled_from(LOOPS + OUTER), constants())))
def test_all_but_irreducible_mixtures_are_split_and_agree_with_brute_force(index):
    assert check(index) == (not is_mixture(index))


@settings(max_examples=100, derandomize=True)
@given(
    expressions(st.one_of(st.sampled_from(LOOPS), constants()), 2),
    expressions(st.one_of(st.sampled_from(OUTER), constants()), 2),
)
def test_sums_of_loops_and_outer_terms_are_split(inner, outer):
    assert check(tirx.Add(inner, outer))
    assert check(tirx.Sub(inner, outer))
    assert check(tirx.Add(tirx.Mul(outer, IntImm("int32", 3)), tirx.Mul(IntImm("int32", 2), inner)))


@pytest.mark.parametrize(
    "mix",
    [
        tirx.Mul,
        lambda i, n: tirx.FloorDiv(tirx.Add(i, n), IntImm("int32", 3)),
        tirx.Min,
        lambda i, n: tirx.Select(i < 2, i, IntImm("int32", 0)),
    ],
)
def test_irreducible_mixtures_are_refused(mix):
    assert split_index(mix(LOOPS[0], OUTER[0]), LOOPS, EXTENTS) is None


def test_casts_are_looked_through():
    index = tirx.Cast("int64", tirx.Add(tirx.Mul(LOOPS[0], IntImm("int32", 2)), OUTER[0]))
    form = split_index(index, LOOPS, EXTENTS)
    assert form.offsets.ravel().tolist() == [0, 2, 4]
    assert tvm_ffi.structural_equal(form.base, tirx.Cast("int64", OUTER[0]))
    assert str(form.at(2).ty.dtype) == "int64"


def test_variables_are_found_once_in_order():
    i, j = LOOPS
    n = OUTER[0]
    found = variables([tirx.Add(n, tirx.Mul(i, n)), tirx.Sub(j, i)])
    assert [v.name for v in found] == ["n", "i", "j"]
