"""Which machines share vectors, so that decisions made for one fit the other."""

import pytest
from factories import FINGERPRINT

from tvm_sparse.logs.matching import is_near


def machine(arch, architecture="x86_64"):
    return FINGERPRINT | {"arch": arch, "system": f"Linux-{architecture}"}


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (machine("znver4"), machine("skylake-avx512"), True),
        (machine("znver4"), machine("znver3"), False),
        (machine("haswell"), machine("znver3"), True),
        (machine("neoverse-n1", "aarch64"), machine("cortex-a76", "aarch64"), True),
        # As long, but half as many, and no assembly.
        (machine("neoverse-n1", "aarch64"), machine("x86-64-v2"), False),
        # LLVM does not know them there; two that nobody knows share nothing.
        (machine("znver4", "aarch64"), machine("cortex-a76", "aarch64"), False),
        (machine("unheard-of"), machine("unheard-of-too"), False),
        (FINGERPRINT | {"kind": "cuda"}, machine("znver4"), False),
    ],
)
def test_machines_that_share_vectors_are_near(one, other, expected):
    for here, there in ((one, other), (other, one)):
        assert is_near(there, here) == expected
