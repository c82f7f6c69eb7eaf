"""What is computed element by element is one pass of vectors, without conditions in loops, and is what it was."""

import random

import numpy as np
import pytest
import torch
import tvm
from built_function import computed
from parameters import sampled
from torch import nn
from tvm import relax, te, tirx, topi

from tvm_sparse.codegen.cpu.hoisted_conditions import hoisted_conditions
from tvm_sparse.compiler.build_plan import compiled_module
from tvm_sparse.compiler.cpu_loops.schedule_elements import schedule_elements
from tvm_sparse.compiler.cpu_loops.vector_exponentials import vector_exponentials
from tvm_sparse.frontend.model_source import ModelSource
from tvm_sparse.scheduling.annotations import HOIST
from tvm_sparse.target.resolve import resolve_target

LANES = 16


def scheduled(*tensors: te.Tensor, lanes: int = LANES) -> tirx.PrimFunc:
    """The function of placeholders and what is computed of them, after the pass."""
    func = te.create_prim_func(list(tensors)).with_attr("global_symbol", "main")
    return schedule_elements(lanes)(tvm.IRModule({"main": func}))["main"]


def is_scheduled(func: tirx.PrimFunc) -> bool:
    return "tirx.is_scheduled" in func.attrs


def agrees(module: nn.Module, *shape: int) -> None:
    """A module computes what torch does, whatever its functions' schedules."""
    module, x, target = (
        module.eval(),
        torch.randn(shape, generator=torch.Generator().manual_seed(0)),
        resolve_target({"kind": "llvm", "opt-level": 0}),
    )
    found = relax.VirtualMachine(compiled_module(ModelSource(module).relax_module(x), target), tvm.cpu())["main"]
    result = found(tvm.runtime.tensor(x.numpy()))
    result = result if isinstance(result, tvm.runtime.Tensor) else result[0]
    np.testing.assert_allclose(result.numpy(), module(x).detach().numpy(), rtol=1e-5, atol=1e-6)


SHAPES = [(1, 32, 28, 28), (2, 48, 14, 14), (1, 3, 56, 56), (1, 7, 17, 17), (1, 576, 7, 7), (3, 5), (1, 2, 9, 9, 16)]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("is_whole", [True, False])
def test_chains_are_one_pass_of_vectors(shape, is_whole, threads):
    """Of as many elements as there are, and with a number for each channel."""
    x, y = te.placeholder(shape, name="x"), te.placeholder(shape if is_whole else (*shape[:2], *[1] * len(shape[2:])))
    first = topi.add(x, y)
    func = scheduled(x, y, topi.multiply(topi.maximum(first, topi.negative(first)), x))
    assert is_scheduled(func) and "T_add" not in func.script()
    arrays = [np.random.default_rng(0).standard_normal([int(d) for d in each.shape]).astype("f4") for each in (x, y)]
    expected = np.abs(arrays[0] + arrays[1]) * arrays[0]
    np.testing.assert_allclose(computed(func, *arrays, threads=threads), expected, rtol=1e-6)


def test_what_is_computed_of_few_is_not_computed_again():
    """A sigmoid of each channel, by which its pixels are multiplied."""
    x, gate = te.placeholder((1, 64, 14, 14), name="x"), te.placeholder((1, 64, 1, 1), name="gate")
    func = scheduled(x, gate, topi.multiply(x, topi.sigmoid(gate)))
    assert is_scheduled(func) and "T_multiply" in func.script() and func.script().count("T.sblock(") == 3
    values = np.random.default_rng(0).standard_normal((1, 64, 1, 1)).astype(np.float32)
    found = computed(func, np.ones((1, 64, 14, 14), np.float32), values)
    np.testing.assert_allclose(found, np.broadcast_to(1 / (1 + np.exp(-values)), found.shape), rtol=1e-6)


def test_what_names_its_values_is_in_one_place():
    """A sigmoid between roundings, as quantised networks have it: clips read their input several times."""
    x, scale = te.placeholder((4, 64), name="x"), te.placeholder((1,), name="scale")

    def in_steps(y):
        rounded = te.compute(x.shape, lambda *at: tirx.nearbyint(y(*at) / scale(0)))
        least, most = tirx.const(1.0, "float32"), tirx.const(12.0, "float32")
        above = te.compute(x.shape, lambda *at: tirx.Select(rounded(*at) < least, least, rounded(*at)))
        codes = te.compute(x.shape, lambda *at: tirx.Select(above(*at) > most, most, above(*at)))
        return te.compute(x.shape, lambda *at: codes(*at) * scale(0))

    func = te.create_prim_func([x, scale, in_steps(topi.sigmoid(in_steps(x)))]).with_attr("global_symbol", "main")
    func = schedule_elements(LANES)(vector_exponentials(tvm.IRModule({"main": func})))["main"]
    array, step = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32), np.float32(0.07)
    inner = np.clip(np.round(array / step), 1, 12) * step
    expected = np.clip(np.round(1 / (1 + np.exp(-inner)) / step), 1, 12) * step
    np.testing.assert_allclose(computed(func, array, np.full(1, step)), expected, rtol=1e-6)


@pytest.mark.parametrize("parts", [2, 24])
def test_a_concatenation_asks_once_a_row(parts):
    """Each way has loops of its own, and there are as many as parts."""
    tensors = [te.placeholder((1, 8 + 8 * (index % 3), 20, 20), name=f"part{index}") for index in range(parts)]
    func = scheduled(*tensors, topi.nn.relu(topi.concatenate(tensors, 1)))
    assert HOIST in func.attrs
    arrays = [np.random.default_rng(0).standard_normal([int(d) for d in each.shape]).astype("f4") for each in tensors]
    assert np.array_equal(computed(func, *arrays), np.maximum(np.concatenate(arrays, 1), 0))


def test_conditions_stand_outside_the_loops_that_they_do_not_ask_for():
    """Also twice in an expression, and one among the ways of another."""
    k = tirx.Var("k", "int32")
    a, y, x = tirx.decl_buffer((40,), name="a"), tirx.Var("y", "int32"), tirx.Var("x", "int32")

    def chosen() -> tirx.Expr:
        inner = tirx.if_then_else(k < 10, a[y], a[x])
        return tirx.if_then_else(k < 20, inner, tirx.if_then_else(x < 3, a[k], a[y]))

    store = tirx.BufferStore(a, chosen() * chosen(), [x])
    loops = store
    for var in (x, y, k):
        loops = tirx.For(var, tirx.const(0), tirx.const(30), tirx.ForKind.SERIAL, loops)
    func = tirx.PrimFunc([], loops)
    assert hoisted_conditions(tvm.IRModule({"main": func}))["main"].script() == func.script()
    text = hoisted_conditions(tvm.IRModule({"main": func.with_attr(HOIST, True)}))["main"].script()
    # One loop over k; below it those over y and x for each of three ways.
    assert text.count("for k in range") == 1 or text.count("for k, y, x in") == 0
    assert text.count("for y, x in T.grid(30, 30)") == 3
    assert text.count("if k < ") == 2 and text.count("T.if_then_else(x < 3") == 2


class Rolled(nn.Module):
    """Windows put together, shifted back, padded not at all: of a Swin Transformer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, h, w, m, _, c = x.shape
        return x.permute(0, 1, 3, 2, 4, 5).reshape(n, h * m, w * m, c).roll((3, 3), (1, 2))


class Shuffled(nn.Module):
    """Of ShuffleNet: half of the channels, joined with others and shuffled."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, c, h, w = x.shape
        joined = torch.cat([x[:, : c // 2], x[:, c // 2 :].abs()], 1)
        return joined.reshape(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class Random(nn.Module):
    """Rolls, joins, transpositions, slices and reshapes one after the other."""

    def __init__(self, seed: int):
        super().__init__()
        self.seed = seed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        draw = random.Random(self.seed)
        for _ in range(4):
            step, axis, n = draw.choice("rcpswa"), draw.randrange(1, 4), x.shape[3]
            if step == "r":
                x = x.roll(draw.randrange(1, 6), axis)
            elif step == "c":
                x = torch.cat([x, x.flip(1) * 2], axis)
            elif step == "p":
                x = x.permute(0, *draw.sample([1, 2, 3], 3))
            elif step == "s" and x.shape[axis] > 4:
                x = x.narrow(axis, 2, x.shape[axis] - 3)
            elif step == "w" and n % 2 == 0:
                x = x.reshape(1, x.shape[1], x.shape[2], 2, n // 2).transpose(2, 3).reshape(1, x.shape[1], -1, n // 2)
            else:
                x = torch.where(x < 0.3, x * 0.5, x)
        return x


def test_indices_of_joined_windows_are_right():
    agrees(Rolled(), 1, 2, 2, 7, 7, 32)
    agrees(Rolled(), 2, 4, 4, 7, 7, 16)
    agrees(Shuffled(), 1, 48, 28, 28)
    agrees(Shuffled(), 2, 96, 7, 7)


@pytest.mark.parametrize("seed", sampled(range(16), range(5)))
def test_random_chains_are_right(seed):
    agrees(Random(seed), 1, 12, 14, 16)


def test_a_shuffle_of_channels_is_scheduled():
    """What chooses a channel asks for no pixel, once that is simplified."""
    x = te.placeholder((1, 24, 28, 28), name="x")
    joined = topi.reshape(topi.concatenate([x, topi.negative(x)], 1), (1, 2, 24, 28, 28))
    assert is_scheduled(scheduled(x, topi.reshape(topi.transpose(joined, (0, 2, 1, 3, 4)), (1, 48, 28, 28))))


def test_others_are_left_alone():
    """A transposition, whose neighbours are read far apart; a border, which is asked for in the row; a sum."""
    x = te.placeholder((8, 32, 32), name="x")
    for result in (topi.transpose(x, (0, 2, 1)), topi.nn.pad(x, (0, 1, 1), (0, 1, 1)), topi.sum(x, 2)):
        assert not is_scheduled(scheduled(x, result))


@pytest.mark.parametrize("size", [768, 49])
def test_a_part_of_an_axis_is_one_pass_of_vectors(size):
    """Queries, keys and values, which one linear layer computes side by side, become tensors of their own."""
    x = te.placeholder((10, 3 * size), name="x")
    parts = te.compute((3, 10, size), lambda part, row, i: x[row, part * size + i], name="parts")
    func, array = scheduled(x, parts), np.random.default_rng(0).standard_normal((10, 3 * size)).astype(np.float32)
    assert is_scheduled(func)
    assert np.array_equal(computed(func, array), array.reshape(10, 3, size).transpose(1, 0, 2))
