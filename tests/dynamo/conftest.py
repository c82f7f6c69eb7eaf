"""Each test of `torch.compile` begins as if nothing had been compiled and nothing been said."""

import pytest
import torch

from tvm_sparse.dynamo.piece import say


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch.compiler.reset()
    say.cache_clear()
    yield
    torch.compiler.reset()
