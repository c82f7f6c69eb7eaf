"""An index out of range in an input is one sentence, whatever the library, the batch, the thread or the device."""

import json
import threading

import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
import zoo
from fake_cuda import DEVICE, FakeCuda
from torch import nn

import tvm_sparse
from tvm_sparse.conv.index_check import IndexCheck
from tvm_sparse.errors import ArtifactError, InputError
from tvm_sparse.runtime import compiled_model
from tvm_sparse.runtime.artifacts import manifest
from tvm_sparse.runtime.compiled_model import CompiledModel
from tvm_sparse.runtime.gpu.cuda_driver import CudaDriver
from tvm_sparse.runtime.gpu.gpu_runner import GpuRunner
from tvm_sparse.runtime.index_checks import require_in_range, with_bounds
from tvm_sparse.runtime.signature import Signature, TensorSpec
from tvm_sparse.runtime.tensors import DLPack

MESSAGE = r"operator index_select, index_select: an index is out of range, found 9; allowed: -8 to 7"


class Lookup(nn.Module):
    """Some columns of each sample of x, (N, 3, 8), which those of i, (N, 4), say, and their sum."""

    def forward(self, x, i):
        taken = x[:, :, i[0]]
        return taken, taken.sum((1, 2))


def arrays(batch, index=3):
    x = np.random.default_rng(0).standard_normal((batch, 3, 8)).astype(np.float32)
    return x, np.full((batch, 4), index)


@pytest.fixture(scope="module")
def model():
    inputs = tuple(map(torch.from_numpy, arrays(2)))
    return tvm_sparse.compile(Lookup().eval(), inputs, target=zoo.UNOPTIMISED)


def check(model):
    """Right inputs give right results, also after wrong ones."""
    x, i = arrays(2)
    for given in (arrays(2), tuple(map(torch.from_numpy, arrays(2)))):
        taken, total = model(*given)
        np.testing.assert_allclose(taken, x[:, :, i[0]])
        np.testing.assert_allclose(total, x[:, :, i[0]].sum((1, 2)), rtol=1e-5)
        with pytest.raises(InputError, match=MESSAGE):
            model(given[0], given[1] * 3)


def test_a_call(model):
    assert len(model.signature.outputs) == 2
    check(model)


def test_a_saved_model(model, tmp_path):
    folder = tvm_sparse.save(model, tmp_path / "model")
    check(tvm_sparse.load(folder))


def changed(folder, **fields):
    content = json.loads((folder / manifest.NAME).read_text())
    content["variants"][0] |= fields
    content.pop("digest")
    (folder / manifest.NAME).write_text(json.dumps({**content, "digest": manifest.digest(content)}))


def test_an_artifact_without_checks_is_as_before(tmp_path):
    module, shapes = zoo.TORCH["relu"]
    given = zoo.inputs_of(shapes)
    compiled = tvm_sparse.compile(module, tuple(map(torch.from_numpy, given)), target=zoo.UNOPTIMISED)
    assert not compiled.checks
    folder = tvm_sparse.save(compiled, tmp_path / "model")
    assert manifest.read(folder)["variants"][0]["checks"] == []
    np.testing.assert_array_equal(tvm_sparse.load(folder)(*given), compiled(*given))


@pytest.mark.parametrize("checks", [[3], [{"where": "x"}], [{"where": "x", "ranges": [[1]]}]])
def test_checks_that_are_none_are_damage(model, checks, tmp_path):
    folder = tvm_sparse.save(model, tmp_path / "model")
    changed(folder, checks=checks)
    with pytest.raises(ArtifactError, match="checks or verdict are not usable"):
        tvm_sparse.load(folder)


def test_batches(tmp_path):
    class Rows(nn.Module):
        def forward(self, x, i):
            return x.gather(1, i)

    inputs = torch.zeros(2, 8), torch.zeros(2, 3, dtype=torch.int64)
    compiled = tvm_sparse.compile(Rows().eval(), inputs, target=zoo.UNOPTIMISED, batch=[1, 4])
    for model in (compiled, tvm_sparse.load(tvm_sparse.save(compiled, tmp_path / "model"))):
        for count in (1, 3, 6):
            x, i = np.random.rand(count, 8).astype(np.float32), np.random.randint(0, 8, (count, 3))
            np.testing.assert_array_equal(model(x, i), np.take_along_axis(x, i, 1))
            i[-1, 1] = 8
            with pytest.raises(InputError, match="operator gather, gather: an index is out of range, found 8"):
                model(x, i)


def test_threads(model):
    found = []

    def call(index):
        for _ in range(20):
            try:
                model(*arrays(2, index))
                found.append(index == 3)
            except InputError as error:
                found.append(f"found {index};" in str(error))

    threads = [threading.Thread(target=call, args=(index,)) for index in (3, 9, -9, 2**40)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(found) == 80
    assert all(found)


def test_an_assertion_of_the_model_is_a_sentence():
    class Small(nn.Module):
        def forward(self, i):
            torch._assert_async((i < 5).all(), "classes must be smaller than 5")
            return i.float()

    model = tvm_sparse.compile(Small().eval(), (torch.zeros(3, dtype=torch.int64),), target=zoo.UNOPTIMISED)
    assert model(np.array([0, 4, 2])).tolist() == [0, 4, 2]
    with pytest.raises(InputError, match=r"an assertion of the model fails: .*smaller than 5"):
        model(np.array([0, 5, 2]))


def test_the_first_wrong_one_of_several_checks():
    checks = [IndexCheck("a", ((0, 3),)), IndexCheck("b", ((-2, 1), (0, 5)))]
    require_in_range(checks, np.array([0, 3, -2, 0, 1, 5]))
    for bounds, text in (
        ([-1, 3, 0, 0, 0, 0], "a: .*found -1; allowed: 0 to 3"),
        ([0, 4, 0, 0, 0, 0], "a: .*found 4; allowed: 0 to 3"),
        ([0, 0, -3, 0, 0, 0], "b: .*found -3; allowed: -2 to 1"),
        ([0, 0, 0, 0, 0, 6], "b: .*found 6; allowed: 0 to 5"),
    ):
        with pytest.raises(InputError, match=text):
            require_in_range(checks, np.array(bounds))


SOURCE = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((4,), "int64")):
        with R.dataflow():
            y = R.call_dps_packed("tests.twice", (x,), out_ty=R.Tensor((4,), "int64"))
            b = R.call_dps_packed("tests.bounds", (x,), out_ty=R.Tensor((2,), "int64"))
            R.output(y, b)
        return y, b
"""
TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 1})


class OnGpu:
    """A model whose input are indices from 0 to 7, on a GPU that the CPU stands for."""

    def __init__(self, monkeypatch):
        self.cuda, self.waits = FakeCuda(), 0
        self._register("tests.twice", lambda x, out: np.multiply(x, 2, out=out))
        self._register("tests.bounds", lambda x, out: np.copyto(out, (x.min(), x.max())))
        executable = tvm.compile(tvm.script.from_source(SOURCE), TARGET)
        signature = Signature((TensorSpec("x", (4,), "int64"),), (TensorSpec("y", (4,), "int64"),), True)
        checks = [IndexCheck("operator index", ((0, 7),))]
        self.model = CompiledModel(executable, TARGET, signature, [], checks=checks)
        self.model._runner = GpuRunner(executable, tvm.cpu(0), with_bounds(signature, checks), CudaDriver(self.cuda))
        monkeypatch.setattr(compiled_model, "on_host", self._on_host)
        monkeypatch.setattr(DLPack, "allocates_in_graphs", True)

    def _register(self, name, body):
        def launch(*tensors):
            views = [np.from_dlpack(tensor) for tensor in tensors]
            self.cuda.enqueue(tvm_ffi.get_raw_stream(DEVICE), lambda: body(*views))

        tvm_ffi.register_global_func(name, launch, override=True)

    def _on_host(self, tensor, _device, _stream):
        self.waits += 1
        self.cuda.run()
        return tensor.numpy()

    def __call__(self, *values):
        x = tvm.runtime.tensor(np.array(values))
        self.cuda.kept.append(x)
        found = self.model(x)
        self.cuda.kept.append(found)
        return found


@pytest.mark.parametrize("cuda_graph", [True, False])
def test_a_call_on_a_gpu_waits_for_its_bounds(cuda_graph, monkeypatch):
    gpu = OnGpu(monkeypatch)
    gpu.model.cuda_graph = cuda_graph
    for turn in range(3):
        assert gpu(0, 7, 3, turn).numpy().tolist() == [0, 14, 6, 2 * turn]
        with pytest.raises(InputError, match="operator index: an index is out of range, found 8; allowed: 0 to 7"):
            gpu(0, 8, 3, 4)
    assert gpu.waits == 6
    assert (gpu.cuda.calls["cuGraphLaunch"] > 0) == cuda_graph


def test_a_captured_call_does_not_wait(monkeypatch):
    gpu = OnGpu(monkeypatch)
    gpu(0, 1, 2, 3)
    waits, stream = gpu.waits, gpu.cuda.new_stream()
    gpu.cuda.begin_capture(stream)
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cpu", 0), stream):
        found = gpu(0, 99, 2, 3)
    for work in gpu.cuda.end_capture(stream):
        gpu.cuda.enqueue(stream, work)
    gpu.cuda.run()
    assert gpu.waits == waits
    assert found.numpy().tolist() == [0, 198, 4, 6], "this model does not clamp"


class Put(nn.Module):
    """Sets elements of x, (4, 5), at the rows i and the columns j."""

    def forward(self, x, i, j, values):
        x = x.clone()
        x[i, j] = values
        return x


def test_each_of_several_indices_has_its_own_range():
    """Column 7 of a row is an element of the next one."""
    x, i, j = torch.randn(4, 5), torch.tensor([0, -1, 2]), torch.tensor([1, 2, -5])
    module, values = Put().eval(), torch.randn(3)
    model = tvm_sparse.compile(module, (x, i, j, values), target=zoo.UNOPTIMISED)
    torch.testing.assert_close(model(x, i, j, values), module(x, i, j, values))
    with pytest.raises(InputError, match="found 7; allowed: -5 to 4"):
        model(x, i, torch.tensor([1, 2, 7]), values)
