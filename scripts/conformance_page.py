"""Write docs/conformance.md: what becomes of ONNX's node tests here, refused ones by operator.

    python scripts/conformance_page.py

takes some minutes. `tests/frontend/test_conformance.py` asserts that none is wrong.
"""

import argparse
import collections
import sys
import tempfile
from pathlib import Path

import onnx

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "conformance.md"
sys.path.insert(0, str(ROOT / "tests" / "support"))
HEAD = """\
# ONNX conformance

The package `onnx` {version} comes with node tests: models of one operator, or of what the specification defines one as,
with inputs and outputs. {total} of them were compiled for a CPU and called; an input that is a shape, an axis or a
weight in networks may be a constant of the model.

| outcome | tests | of those of one operator |
|---|---|---|
{rows}

Right means: every output is as the test has it, within 1e-3 of it in float32, two steps of the type in half precision
(or one of the largest output), exactly in integers. Refused means: one sentence names the node, what it asks for and a
way out; see [Error messages](errors.md).

What is imported is a table, `tvm_sparse/frontend/onnx/rules/operator_table.py`: operators, values of attributes,
element types, optional inputs and outputs. `pytest -m conformance` asserts that each entry has a case that is right,
one of these tests or one made from them. Nodes that are not in the table are replaced by their definition in the
specification where they have one.

This page is made by `python scripts/conformance_page.py`.

## Refused tests by operator

{refused}
"""


def main() -> None:
    """Run all tests and write the page."""
    from conformance import outcomes
    from node_tests import onnx_cases

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2, help="that run tests side by side (default: 2)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = outcomes([case.name for case in onnx_cases()], Path(folder), options.processes)
    PAGE.write_text(page(found))
    print(f"written: {PAGE}")


def page(found: list) -> str:
    """The text of the page, of what became of the node tests."""
    single = [each for each in found if "_expanded" not in each.name]
    counts, singles = (collections.Counter(each.kind for each in some) for some in (found, single))
    rows = "\n".join(f"| {kind} | {counts[kind]} | {singles[kind]} |" for kind in sorted(counts, key=counts.get)[::-1])
    tests = collections.Counter("/".join(each.operators) for each in single)
    refused = collections.Counter("/".join(each.operators) for each in single if each.kind == "refused")
    lines = [f"| {name} | {count} | {tests[name]} |" for name, count in sorted(refused.items())]
    table = "\n".join(["| operator | refused | of |", "|---|---|---|", *lines])
    return HEAD.format(version=onnx.__version__, total=len(found), rows=rows, refused=table)


if __name__ == "__main__":
    main()
