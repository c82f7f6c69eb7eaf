"""Products of two tensors are tiles of registers, of any size, with what follows them."""

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_sparse.compiler.build_plan import compiled_module
from tvm_sparse.compiler.cpu_loops.schedule_batch_matmul import tile_of
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.resolve import resolve_target


def product(x: tuple[int, ...], y: tuple[int, ...], added: tuple[int, ...] = (), threads: int = 1) -> float:
    """Largest error of the product, and of a tensor added to it and the ReLU, as a share of the largest value."""
    shapes = [each for each in (x, y, added) if each]
    variables = [relax.Var(f"v{index}", relax.TensorType(shape, "float32")) for index, shape in enumerate(shapes)]
    builder = relax.BlockBuilder()
    with builder.function("main", variables):
        with builder.dataflow():
            found = builder.emit(relax.op.matmul(*variables[:2]))
            if added:
                found = builder.emit(relax.op.nn.relu(builder.emit(relax.op.add(found, variables[2]))))
            result = builder.emit_output(found)
        builder.emit_func_output(result)
    executable = compiled_module(builder.get(), resolve_target({"kind": "llvm", "num-cores": threads}))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    ours = relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, arrays)).numpy()
    expected = arrays[0].astype(np.float64) @ arrays[1]
    expected = np.maximum(expected + arrays[2], 0) if added else expected
    assert ours.shape == expected.shape
    return float(np.abs(ours - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("x", "y", "added"),
    [
        ((4, 3, 49, 32), (4, 3, 32, 49), (1, 3, 49, 49)),
        ((4, 3, 49, 49), (4, 3, 49, 32), ()),
        ((1, 2, 197, 64), (1, 2, 64, 197), ()),
        ((50, 30), (30, 70), (70,)),
        ((2, 7, 5), (2, 5, 3), ()),
        ((64, 48), (48, 64), (64, 64)),
        ((3, 1, 16, 8), (5, 8, 16), ()),
        ((1, 24), (24, 40), ()),
    ],
)
def test_products_are_right(x, y, added, threads):
    assert product(x, y, added, threads) < 1e-5


@pytest.mark.parametrize(
    "cpu", [CpuInfo(16, "", True), CpuInfo(8, "ymm"), CpuInfo(4, "")], ids=lambda cpu: str(cpu.lanes)
)
@pytest.mark.parametrize(("rows", "columns"), [(49, 49), (197, 64), (2, 1000), (500, 3)])
def test_sums_fit_the_registers(cpu, rows, columns):
    tile, vectors = tile_of(rows, columns, cpu)
    assert tile * vectors + vectors < cpu.registers and tile <= rows
