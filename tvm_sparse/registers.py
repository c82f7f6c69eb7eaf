"""CUDA source whose accumulators are variables instead of elements of an array.

TVM declares the accumulators of a thread as one array. nvcc's front end makes registers of them in time quadratic in
the number of accesses: 7,400 multiply-adds in 128 chunks take 14 s as an array and 2 s as variables, and 29,500 in 512
chunks minutes. What it makes of both is the same, to the letter.
"""

from __future__ import annotations

import re

import tvm

_ARRAY = re.compile(r"\balignas\(\d+\) (?P<type>float|int) (?P<name>\w+)\[(?P<length>\d+)\];")
# More elements are no registers anyway.
_MAX_LENGTH = 255


def as_variables(source: str, _target: tvm.target.Target | None = None) -> str:
    """`source` with the arrays of threads that are accessed at constant indices only as that many variables.

    In the form of ``tvm_callback_cuda_postproc``, which TVM applies to the source before anything else.
    """
    arrays = {match["name"] for match in _ARRAY.finditer(source) if int(match["length"]) <= _MAX_LENGTH}
    for name in sorted(arrays):
        declaration = re.compile(rf"alignas\(\d+\) (\w+) {name}\[(\d+)\];")
        declared, count = declaration.subn(_variables, source)
        changed, accesses = re.subn(rf"\b{name}\[(\d+)\]", rf"{name}_at_\1", declared)
        # Another index, or the array itself, is used somewhere.
        if accesses + count == len(re.findall(rf"\b{name}\b", source)):
            source = changed
    return source


def _variables(declaration: re.Match[str]) -> str:
    kind, length = declaration[1], int(declaration[2])
    name = declaration[0].split()[2].partition("[")[0]
    return f"{kind} {', '.join(f'{name}_at_{index}' for index in range(length))};"
