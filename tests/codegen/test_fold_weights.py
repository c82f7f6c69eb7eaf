"""What folding leaves of a kernel: straight-line code for the non-zeros, each weight an immediate, nothing else."""

import re
from collections import Counter

import numpy as np
import pytest
import tvm
import tvm_ffi
from random_convolutions import run
from tvm import s_tir, tirx
from tvm.ir import Call, TensorLoad

from tvm_sparse.codegen import lowering
from tvm_sparse.codegen.folding import fold_weights
from tvm_sparse.codegen.folding.fold_weights import fold_weights_pass
from tvm_sparse.conv import reference
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import BuildError
from tvm_sparse.schedules.lookup import find_space, make_kernel, spaces_of
from tvm_sparse.scheduling import code_size
from tvm_sparse.scheduling.annotations import FOLD
from tvm_sparse.scheduling.kernel import apply_decisions, bind_weight
from tvm_sparse.target.resolve import resolve_target

TARGET = resolve_target('{"kind":"llvm","num-cores":1}')
SPEC = ConvSpec(1, 6, 9, 9, 8, 3, 3, padding=(1, 1, 1, 1), bias=True, relu=True)


def pruned(spec, density, seed=0):
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal(spec.weight_shape).astype(np.float32)
    return np.where(rng.random(weight.shape) < density, weight, 0).astype(np.float32)


def folded_ir(kernel):
    """The function right after FoldWeights."""
    module = tvm.IRModule({"main": kernel.func.with_attr("global_symbol", "main")})
    with TARGET:
        module = tirx.transform.BindTarget(TARGET)(module)
        return tvm.ir.transform.Sequential(lowering.folding_passes())(module)["main"]


def products(func):
    """The constant factors of all multiplications in a function."""
    constants = []

    def visit(node):
        for factor in (node.a, node.b):
            value = factor.value if isinstance(factor, tirx.Broadcast) else factor
            if isinstance(value, tirx.FloatImm):
                constants.append(np.float32(float(value.value)))

    tvm_ffi.structural_walk(func.body, (tirx.Mul, visit))
    return constants


@pytest.mark.parametrize("density", [0.1, 0.5, 1.0])
def test_every_nonzero_is_an_immediate_and_no_zero_is_left(density):
    weight = pruned(SPEC, density)
    func = folded_ir(make_kernel("folded_cpu", SPEC, weight, TARGET))
    constants = products(func)
    assert 0 not in constants
    # Each weight occurs once for every vector of the register tile, the same number of times for all.
    counts = Counter(constants)
    assert set(counts) == set(weight[weight != 0])
    expected = Counter(weight[weight != 0].tolist())
    ratios = {counts[value] / expected[float(value)] for value in counts}
    assert len(ratios) == 1


def test_no_weight_argument_and_no_index_array():
    func = folded_ir(make_kernel("folded_cpu", SPEC, pruned(SPEC, 0.2), TARGET))
    assert [p.name for p in func.params] == ["x", "bias", "out"]
    dtypes = set()
    tvm_ffi.structural_walk(func.body, (TensorLoad, lambda load: dtypes.add(str(load.source.ty.dtype))))
    assert all("int" not in dtype for dtype in dtypes)
    calls = []
    tvm_ffi.structural_walk(func.body, (Call, lambda call: calls.append(str(call.op))))
    assert not [call for call in calls if "extern" in call]


def test_empty_weight_leaves_the_bias():
    weight = np.zeros(SPEC.weight_shape, np.float32)
    arguments = reference.random_arguments(SPEC, 1)
    y = run(make_kernel("folded_cpu", SPEC, weight, TARGET), SPEC, arguments, TARGET)
    expected = np.broadcast_to(np.maximum(arguments["bias"], 0)[None, :, None, None], SPEC.output_shape)
    assert np.array_equal(y, expected)


def test_dead_filters_are_their_bias():
    weight = pruned(SPEC, 0.5)
    weight[::2] = 0
    arguments = reference.random_arguments(SPEC, 1)
    y = run(make_kernel("folded_cpu", SPEC, weight, TARGET), SPEC, arguments, TARGET)
    bias = np.maximum(arguments["bias"], 0)
    for k in range(0, SPEC.k, 2):
        assert (y[0, k] == bias[k]).all()


def test_permuted_filters_permute_the_output():
    weight, order = pruned(SPEC, 0.3), np.random.default_rng(3).permutation(SPEC.k)
    arguments = reference.random_arguments(SPEC, 2)
    plain = run(make_kernel("folded_cpu", SPEC, weight, TARGET), SPEC, arguments, TARGET)
    permuted = {**arguments, "bias": arguments["bias"][order]}
    other = run(make_kernel("folded_cpu", SPEC, weight[order], TARGET), SPEC, permuted, TARGET)
    assert np.array_equal(other, plain[:, order])


def test_skipped_multiplications_do_not_spread_nan():
    spec = ConvSpec(1, 2, 4, 4, 1, 1, 1)
    weight = np.array([1.0, 0.0], np.float32).reshape(spec.weight_shape)
    x = np.ones(spec.input_shape, np.float32)
    x[0, 1] = np.nan
    y = run(make_kernel("folded_cpu", spec, weight, TARGET), spec, {"x": x}, TARGET)
    assert (y == 1).all()


def test_same_trace_gives_the_same_assembly():
    weight = pruned(SPEC, 0.2)
    sources = []
    for _ in range(2):
        kernel = make_kernel("folded_cpu", SPEC, weight, TARGET)
        sources.append(lowering.build(kernel.func, TARGET).inspect_source("asm"))
    assert sources[0] == sources[1]


def test_tiles_fused_into_one_loop_are_told_apart_by_their_filters():
    """A loop fused of channels and rows must not multiply the code by its rows."""
    spec = ConvSpec(1, 4, 32, 32, 16, 3, 3, padding=(1, 1, 1, 1))
    weight = pruned(spec, 0.2)
    spaces, _ = spaces_of(spec, SparsityPattern.of(weight), TARGET, ["folded_cpu"])
    root = next(each for each in spaces if each.variant.endswith("root"))
    nnz = np.count_nonzero(weight)
    constants = products(folded_ir(apply_decisions(root, weight)))
    assert len(constants) % nnz == 0
    assert len(constants) <= 4 * nnz


def test_unsuitable_nests_are_refused():
    spec = ConvSpec(1, 2, 4, 4, 2, 1, 1)
    weight = pruned(spec, 1.0)
    schedule = s_tir.Schedule(find_space("dense_cpu", spec, SparsityPattern.of(weight), TARGET).func)
    block = schedule.get_sblock("out")
    schedule.annotate(schedule.get_loops(block)[0], FOLD, 1)
    func = bind_weight(schedule.mod["main"], 1, weight)
    with pytest.raises(BuildError, match="marked nest is not a multiply-add") as caught:
        lowering.build(func, TARGET)
    assert "\n" not in str(caught.value)


def test_functions_without_a_weight_are_left_alone():
    func = make_kernel("dense_cpu", SPEC, pruned(SPEC, 0.5), TARGET).func
    module = tvm.IRModule({"main": func})
    assert tvm_ffi.structural_equal(fold_weights_pass()(module), module)


def test_too_much_code_is_refused_before_it_is_written(monkeypatch):
    weight = pruned(SPEC, 0.2)
    func = make_kernel("folded_cpu", SPEC, weight, TARGET).func
    written = len(products(folded_ir(make_kernel("folded_cpu", SPEC, weight, TARGET))))
    # What the host's own code is limited to, and that of others.
    for limit in ("MAX_MULTIPLY_ADDS", "MAX_ASSEMBLED"):
        monkeypatch.setattr(code_size, limit, written)
    lowering.build(func, TARGET)
    for limit in ("MAX_MULTIPLY_ADDS", "MAX_ASSEMBLED"):
        monkeypatch.setattr(code_size, limit, written - 1)
    monkeypatch.setattr(fold_weights.Chain, "of", None)
    with pytest.raises(BuildError, match=f"found {written} multiply-adds; allowed: up to {written - 1}; use a smaller"):
        lowering.build(func, TARGET)


def test_too_many_nonzeros_fall_to_another_schedule_with_the_reason():
    spec = ConvSpec(1, 512, 14, 14, 512, 3, 3, padding=(1, 1, 1, 1))
    weight = pruned(spec, 0.2)
    for level, most in (("x86-64-v3", 300_000), ("x86-64-v2", 40_000)):
        target = resolve_target({"kind": "llvm", "mcpu": level, "num-cores": 1})
        found, reasons = spaces_of(spec, SparsityPattern.of(weight), target)
        assert "csr_cpu" in {each.schedule for each in found}
        assert re.search(rf"\d+ non-zeros .* at most {most} are folded", reasons["folded_cpu"])
