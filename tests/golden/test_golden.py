"""Generated code, as it was when someone last read it: whatever changes it shows as a diff of files beside this one."""

import difflib
from pathlib import Path

import pytest
from golden_cases import CASES, device_functions, kernels

FOLDER = Path(__file__).parent
COMMAND = "python -m pytest tests/golden --update-golden"
DEVICE_FUNCTIONS = "device_functions.cu"
MAX_BYTES = 102_000


def compare(name, text, config):
    """Hold `text` against the golden file `name`, or write it there."""
    path = FOLDER / name
    # The option is not known where this folder is not asked for by name.
    if config.getoption("--update-golden", default=False):
        path.write_text(text)
    if not path.is_file():
        pytest.fail(f"{name} is missing; make it with: {COMMAND}")
    lines = difflib.unified_diff(path.read_text().splitlines(), text.splitlines(), "golden", "now", lineterm="", n=1)
    diff = "\n".join(lines)
    if diff:
        pytest.fail(
            f"{name} is out of date; where the change is meant, renew it with: {COMMAND}\n{diff}", pytrace=False
        )


def file_name(name):
    return f"{name}.{'cu' if CASES[name].kind == 'cuda' else 'tir'}"


@pytest.mark.parametrize("name", CASES)
def test_generated_code_is_the_golden_one(name, pytestconfig):
    case = CASES[name]
    code = kernels(case.code) if case.kind == "cuda" else case.code
    compare(file_name(name), case.head + code, pytestconfig)


def test_device_functions_are_the_golden_ones(pytestconfig):
    """What the kernels call, once."""
    found = {each for case in CASES.values() if case.kind == "cuda" for each in device_functions(case.code)}
    assert any("tvm_sparse_cp_async_16" in each for each in found)
    compare(DEVICE_FUNCTIONS, "\n".join(sorted(found)) + "\n", pytestconfig)


def test_every_golden_file_is_of_a_case_and_they_stay_small():
    files = [path for path in FOLDER.iterdir() if path.suffix in (".cu", ".tir")]
    assert {path.name for path in files} == {DEVICE_FUNCTIONS, *map(file_name, CASES)}
    assert sum(path.stat().st_size for path in files) < MAX_BYTES
