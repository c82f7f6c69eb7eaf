"""No model and no input reads or writes outside of its tensors: each lies between pages that nobody may touch.

    python -m pytest -m conformance tests/runtime/test_guard_pages.py

runs more than 1,000 hostile inputs, and the random convolutions of the CPU schedules.
"""

import re
import signal

import pytest
import without_torch
from guarded_process import SIDES, fuzz, run
from index_fuzz import CASES

# Elements of a tensor that fills whole vectors, so that what lies behind it is a guard page.
FULL = 64
# Few models, as most of the time goes by compiling them.
SAMPLE = ["Gather", "ScatterND", "torch embedding"]
# Tests of kernels whose tensors TVM allocates.
KERNELS = (
    "tests/schedules/test_random_convolutions.py",
    "tests/schedules/test_vector_cpu.py",
    "tests/schedules/test_winograd_cpu.py",
    "tests/schedules/test_linear_spaces.py",
    "tests/schedules/test_generated_cpu.py",
)
# Slower than all others together.
SLOW = ("GridSample cubic",)


def planted(side, access, index, elements=FULL):
    return run(side, without_torch.__file__, "tests/support/planted_access.py", access, index, elements)


def test_a_sample():
    found = fuzz("end", 0, 6, SAMPLE)
    assert not found["wrong"]
    assert found["counts"]["right"] >= len(SAMPLE)
    assert found["counts"]["refused"] >= 2 * len(SAMPLE)


def test_guard_pages_catch_what_is_planted():
    assert planted("end", "read", FULL).returncode == -signal.SIGSEGV


@pytest.mark.conformance
@pytest.mark.parametrize("access", ["read", "write"])
@pytest.mark.parametrize("side", SIDES)
def test_guard_pages_catch_what_is_planted_on_either_side(side, access):
    assert planted(side, access, 3).returncode == 0
    # Further back TVM's own normalisation of negative indices is in the way.
    outside = FULL if side == "end" else -1 if access == "read" else -FULL - 1
    assert planted(side, access, outside).returncode == -signal.SIGSEGV


@pytest.mark.conformance
def test_a_write_into_what_alignment_leaves_is_found():
    done = planted("end", "write", 5, elements=5)
    assert done.returncode == -signal.SIGABRT
    assert "a write behind a tensor" in done.stderr


@pytest.mark.conformance
@pytest.mark.parametrize("side", SIDES)
def test_hostile_inputs(side):
    found = fuzz(side, 1, 18, [name for name in CASES if name not in SLOW])
    assert not found["wrong"]
    assert sum(found["counts"].values()) > 1000


@pytest.mark.conformance
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("tests", KERNELS)
def test_kernels_stay_within_their_tensors(side, tests):
    done = run(side, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not conformance", tests)
    assert done.returncode == 0, done.stdout[-3000:]
    assert re.search(r"[1-9]\d* passed", done.stdout)
