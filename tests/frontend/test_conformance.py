"""ONNX's node tests, all of them and a sample, and a case for each value of the table of operators."""

import os

import pytest
from conformance import KNOWN, OTHERS, SAMPLED, outcomes
from made_cases import made_name
from more_cases import more_cases
from node_tests import onnx_cases

from tvm_sparse.frontend.onnx.rules.operator_table import FREE, OPERATORS
from tvm_sparse.frontend.onnx.rules.operators import versions

CORES = len(os.sched_getaffinity(0))
# Seen right beside NumPy, in test_onnx_pooling.py, as neither evaluator computes it.
BESIDE_NUMPY = [("LRN", "rank", 3)]
# What may become of a case: of the others there are none.
FINE = ("right", "refused")


def unlike(found, kinds):
    return {each.name: (each.kind, each.reason) for each in found if each.kind not in kinds}


def test_a_sample_of_the_node_tests_is_right_or_refused(tmp_path):
    found = outcomes([SAMPLED], tmp_path)
    assert unlike(found, FINE) == {}
    assert len(found) == len(KNOWN) + len(OTHERS)
    assert sum(each.kind == "right" for each in found) > 0.8 * len(KNOWN)


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """What became of every node test."""
    return outcomes(
        [case.name for case in onnx_cases()],
        tmp_path_factory.mktemp("everything"),
        processes=len(os.sched_getaffinity(0)),
    )


@pytest.mark.conformance
def test_every_node_test_is_right_or_refused(everything):
    assert unlike(everything, FINE) == {}
    assert len(everything) == len(onnx_cases())


@pytest.mark.conformance
def test_every_value_of_the_table_has_a_case(everything, tmp_path):
    """So the table claims no more than was seen."""
    seen = {tuple(trait[:2]) + (str(trait[2]),) for each in everything for trait in each.evidence}
    missing = [trait for trait in claims() if trait[:2] + (str(trait[2]),) not in seen]
    names = [made_name(*trait) for trait in missing] + [case.name for case in more_cases()]
    found = outcomes(names, tmp_path, CORES)
    assert unlike(found, FINE) == {}
    seen |= {tuple(trait[:2]) + (str(trait[2]),) for each in found for trait in each.evidence}
    # A model in half precision is given to TVM in float32, so of some values the case itself is the evidence.
    right = {each.name for each in found if each.kind == "right"}
    unseen = [trait for trait in missing if trait[:2] + (str(trait[2]),) not in seen]
    assert [trait for trait in unseen if made_name(*trait) not in right] == BESIDE_NUMPY


def claims():
    """Operator, key and value of all that the table of operators allows."""
    for operator, choices in OPERATORS.items():
        for rules in choices:
            for key, values in ({"version": versions(operator)} | rules).items():
                if values is not FREE:
                    yield from ((operator, key, value) for value in values)
