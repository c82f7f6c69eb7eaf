"""Integers that kernels in CUDA C++ take: Python passes what C++ declares, in one order."""

from types import SimpleNamespace

import pytest

from tvm_sparse.scheduling.cuda.library.parameters import Parameter, arguments, declaration, multiplier

PARAMETERS = (
    Parameter("stride", "Of weights."),
    Parameter("rows columns", "Of a tile.", lambda tiling: tiling.size),
    Parameter("groups", "Of channels.", divides=True),
)


def test_cpp_declares_what_python_passes() -> None:
    tiling = SimpleNamespace(size=(3, 5), groups=7)
    assert arguments(PARAMETERS, tiling, stride="given") == ["given", 3, 5, 7, multiplier(7)]
    assert declaration(PARAMETERS) == (
        "#define FIELDS(X) X(stride) X(rows) X(columns) X(groups) X(groups_m)\n"
        "struct Geometry {\n"
        "  // Of weights.\n  int stride;\n"
        "  // Of a tile.\n  int rows, columns;\n"
        "  // Of channels.\n  FastDivmod groups;\n"
        "};\n"
    )


def test_what_nobody_gives_is_no_zero() -> None:
    tiling = SimpleNamespace(size=(3,), groups=7)
    with pytest.raises(AttributeError, match="stride"):
        arguments(PARAMETERS, tiling)
    with pytest.raises(ValueError, match="shorter"):
        arguments(PARAMETERS, tiling, stride=1)


@pytest.mark.parametrize("divisor", [2, 3, 7, 100, 65537])
def test_a_multiplication_divides(divisor: int) -> None:
    largest = (2**32 - 1) // divisor
    for n in (0, 1, min(divisor - 1, largest), min(divisor, largest), largest):
        assert (n * (multiplier(divisor) % 2**32)) >> 32 == n // divisor
