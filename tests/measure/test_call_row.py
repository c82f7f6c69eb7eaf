"""A row of calls has as many copies of the code, weights and tensors as a model has layers like this one."""

import platform
import shutil
from pathlib import Path

import numpy as np
import pytest
import tvm
from code_library import write_library

from tvm_sparse.measure import call_row
from tvm_sparse.measure.call_row import Sharing, call_count, cold_row, copy_of, is_timed_cold, modules

CPU = tvm.cpu(0)
needs_gcc = pytest.mark.skipif(
    shutil.which("gcc") is None or platform.machine() != "x86_64", reason="needs gcc and an x86-64 processor"
)


@pytest.fixture
def library(tmp_path):
    return write_library(tmp_path / "kernel.so", 3000)


def tensor(*shape):
    return tvm.runtime.tensor(np.random.default_rng(0).random(shape, np.float32), CPU)


@needs_gcc
def test_each_copy_of_the_code_has_its_own_address(library):
    """Loaded twice by its name a library is one image: the row would be warm."""
    twice = {tvm.runtime.load_module(library)["main"]() for _ in range(2)}
    assert len(twice) == 1
    assert len({module["main"]() for module in modules(library, 5)} | twice) == 6


@needs_gcc
def test_a_row_leaves_no_library_behind(library):
    """A process cannot have more than some ten thousand."""

    def mapped():
        row = cold_row(library, Sharing.NONE, [], [tensor(4), tensor(4)], time_us=3, row_us=5000)
        del row
        return len(Path("/proc/self/maps").read_text().splitlines())

    assert mapped() + 20 > max(mapped() for _ in range(3))


@pytest.mark.parametrize(
    ("own_bytes", "time_us", "count"),
    [(10_000, 3, 48), (700_000, 8, 42), (4 << 20, 20, 6), (10_000, 600, 6), (10_000, 300, 12), (0, 0, 48)],
)
def test_a_row_is_as_long_as_a_model_s_bytes_and_a_measurement(own_bytes, time_us, count):
    assert call_count(own_bytes, time_us, row_us=5000, model_bytes=32 << 20) == count


def test_who_shares_code_shares_a_copy():
    copies = {each: [copy_of(call, each) for call in range(12)] for each in Sharing}
    assert copies[Sharing.NONE] == list(range(12))
    assert copies[Sharing.SHAPE] == [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]
    assert copies[Sharing.MODEL] == [0] * 12


@needs_gcc
def test_folded_code_is_never_shared_and_tensors_alternate(library):
    tensors = [tensor(1, 4, 8, 8), tensor(4), tensor(1, 4, 8, 8)]
    row = cold_row(library, Sharing.NONE, [], tensors, time_us=3, row_us=5000)
    assert len(row.calls) == 48
    assert len({call() for call in row.calls}) == 48
    first, second = (call.args for call in row.calls[:2])
    assert all(one.same_as(other) for one, other in zip(first, tensors, strict=True))
    assert not any(one.same_as(other) for one, other in zip(first, second, strict=True))
    for number, call in enumerate(row.calls):
        assert call.args[0].same_as((first, second)[number % 2][0])
    np.testing.assert_array_equal(second[0].numpy(), tensors[0].numpy())


@needs_gcc
@pytest.mark.parametrize(("sharing", "copies"), [(Sharing.SHAPE, 24), (Sharing.MODEL, 1)])
def test_weights_as_data_are_each_call_s_own(library, sharing, copies):
    values, tensors = tensor(100), [tensor(1, 4, 8, 8), tensor(1, 4, 8, 8)]
    row = cold_row(library, sharing, [values], tensors, time_us=3, row_us=5000)
    assert len({call() for call in row.calls}) == copies
    assert len({call.args[1].data_ptr() for call in row.calls}) == 48
    for call in row.calls:
        np.testing.assert_array_equal(call.args[1].numpy(), values.numpy())


@needs_gcc
def test_what_lies_between_two_runs_is_a_model_s_bytes_and_inputs_come_last(library):
    tensors = [tensor(1, 4, 8, 8), tensor(4), tensor(1, 4, 8, 8)]
    size = 48 * Path(library).stat().st_size
    row = cold_row(library, Sharing.NONE, [], tensors, 3, 5000, model_bytes=size + 8000)
    (displacing, *_), *inputs = row.copies
    assert 2 * call_row.size_bytes(displacing) == 8000
    # The input and the epilogue's, not the output.
    other = row.calls[1].args
    assert [(source.data_ptr(), to.data_ptr()) for source, to in inputs] == [
        (source.data_ptr(), to.data_ptr()) for source, to in zip(tensors[:2], other[:2], strict=True)
    ]
    assert len(cold_row(library, Sharing.NONE, [], tensors, 3, 5000, model_bytes=size).copies) == 2


@needs_gcc
def test_tensors_that_no_cache_holds_are_not_made_twice(library, monkeypatch):
    monkeypatch.setattr(call_row, "LARGE_BYTES", 2000)
    tensors = [tensor(1, 4, 8, 8), tensor(1, 4, 8, 8)]
    row = cold_row(library, Sharing.NONE, [], tensors, 3, 5000)
    assert all(call.args[0].same_as(tensors[0]) and call.args[1].same_as(tensors[1]) for call in row.calls)
    assert len(row.copies) == 1


def test_which_kernels_are_timed_with_cold_code():
    assert is_timed_cold("cuda", 0)
    assert [is_timed_cold("llvm", non_zeros) for non_zeros in (3_999, 4_000)] == [False, True]
    assert not is_timed_cold("c", 10**6)
