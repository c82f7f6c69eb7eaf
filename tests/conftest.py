"""What tests need that not every machine has."""

from __future__ import annotations

import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked ``gpu`` where TVM finds no NVIDIA GPU."""
    if item.get_closest_marker("gpu") is None:
        return
    import tvm

    if not tvm.cuda(0).exist:
        pytest.skip("needs an NVIDIA GPU that TVM can use, but tvm.cuda(0) does not exist")
