"""Calls that are recorded side by side: each runs after those that it depends on, and after no others."""

import random

import numpy as np
import pytest
import tvm
from fake_cuda import FakeCuda, array_at

from tvm_sparse.runtime.gpu.branches import Branches
from tvm_sparse.runtime.gpu.cuda_driver import CudaDriver

SIZE = 16
# What a call writes, then what it reads, by numbers of tensors; kernels that it launches.
Program = list[tuple[int, list[int], int]]
X, A, B, C, D = range(5)
DIAMOND: Program = [(A, [X], 1), (B, [A], 1), (C, [A], 2), (D, [B, C], 1)]


class Recorded:
    """A program that was recorded: `work` are its kernels, in the least usual order that the graph allows."""

    def __init__(self, program: Program, count: int):
        self.cuda = FakeCuda()
        self.tensors = [tvm.runtime.tensor(np.full(SIZE, i + 1, np.float32)) for i in range(count)]
        driver, self.order = CudaDriver(self.cuda), []
        with driver.use_device(0), driver.relaxed_capture():
            stream = driver.create_stream()
            driver.begin_capture(stream)
            branches = Branches(driver, stream)
            for number, (output, inputs, kernels) in enumerate(program):
                branches.next_call(1, [self.tensors[each] for each in (output, *inputs)])
                for step in range(kernels):
                    self.cuda.enqueue(stream, lambda number=number, step=step: self.run(program, number, step))
            branches.join()
            self.parents = list(self.cuda.parents(stream))
            self.work = self.cuda.end_capture(stream)

    def run(self, program: Program, number: int, step: int) -> None:
        """A kernel: the first of a call computes a new value, others change it."""
        self.order.append((number, step))
        output, inputs, _ = program[number]
        arrays = [array_at(self.tensors[each].data_ptr(), (SIZE,)) for each in inputs]
        to = array_at(self.tensors[output].data_ptr(), (SIZE,))
        to[:] = (sum(arrays) + number if step == 0 else to * 3) % 1009


def values(recorded: Recorded) -> list[list[float]]:
    return [each.numpy().tolist() for each in recorded.tensors]


@pytest.mark.parametrize("seed", range(30))
def test_any_program_computes_what_it_computes_in_order(seed):
    """Where memory is used again, and calls launch several kernels or none."""
    rng = random.Random(seed)
    count = rng.randint(3, 9)
    program = [
        (output, [each for each in rng.choices(range(count), k=rng.randint(0, 3)) if each != output], rng.randint(0, 2))
        for output in rng.choices(range(count), k=20)
    ]
    recorded, in_order = (Recorded(program, count) for _ in range(2))
    for work in recorded.work:
        work()
    for number, (_, _, kernels) in enumerate(program):
        for step in range(kernels):
            in_order.run(program, number, step)
    assert values(recorded) == values(in_order)


def test_branches_do_not_wait_for_each_other():
    """The second branch, two kernels, runs after the first call alone, the last call after both."""
    recorded = Recorded(DIAMOND, 5)
    assert recorded.parents == [[], [0], [0], [2], [3, 1]]
    for work in recorded.work:
        work()
    assert recorded.order == [(0, 0), (2, 0), (2, 1), (1, 0), (3, 0)]


def test_a_call_runs_after_the_last_of_a_chain_alone():
    program: Program = [(A, [X], 1), (B, [A], 1), (C, [B, A, X], 1)]
    assert Recorded(program, 5).parents == [[], [0], [1]]
