"""A compiled model is compared with its source: what differs is named, what cannot be compared is said."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import quantised
import torch
import zoo
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

import tvm_sparse
from tvm_sparse.cli import main
from tvm_sparse.compiler.comparison import onnx_reference
from tvm_sparse.compiler.comparison.differences import differences, worst_difference
from tvm_sparse.compiler.comparison.onnx_nodes import are_a_step_apart
from tvm_sparse.compiler.comparison.onnx_process import OnnxProcess
from tvm_sparse.compiler.comparison.settle import moves_as_far
from tvm_sparse.errors import VerificationError
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.measure import memory
from tvm_sparse.request import request
from tvm_sparse.runtime.comparison import Comparison
from tvm_sparse.runtime.model_file import ModelFile

pytestmark = pytest.mark.usefixtures("unoptimised")

FAULTY = Path(__file__).parents[1] / "support" / "faulty_onnx_worker.py"
SHAPE = (1, 3, 8, 8)
FLOAT = TensorProto.FLOAT


@pytest.fixture(autouse=True)
def no_log(monkeypatch):
    """Nothing is known of any layer."""
    monkeypatch.setattr(request, "known_log", lambda _target: TuningLog(os.devnull))


def saved(tmp_path, *nodes, constants=(), outputs=("y",), inputs=None, **options):
    """A file with an ONNX model of `nodes` on inputs by name: shape and element type."""
    inputs = {"x": (SHAPE, FLOAT)} if inputs is None else inputs
    values = [helper.make_tensor_value_info(name, kind, shape) for name, (shape, kind) in inputs.items()]
    tensors = [numpy_helper.from_array(array, name) for name, array in dict(constants).items()]
    results = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph([helper.make_node(*n[:3], **n[3]) for n in nodes], "g", values, results, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path = tmp_path / "m.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


def node(operator, inputs, output, **attributes):
    return operator, inputs.split(), output.split(), attributes


def compiled(source, inputs=None, **options):
    return tvm_sparse.compile(source, inputs, target=zoo.UNOPTIMISED, compare=True, **options)


@pytest.fixture
def wrong_softsign(monkeypatch):
    """TVM's ONNX importer with a softsign that is twice as large."""

    def impl(_cls, builder, inputs, _attributes, _parameters):
        x = inputs[0]
        y = relax.op.divide(x, relax.op.add(relax.const(1.0, "float32"), relax.op.abs(x)))
        return builder.normalize(relax.op.multiply(y, relax.const(2.0, "float32")))

    (name,) = [name for name in vars(onnx_frontend.Softsign) if name.startswith("_impl")]
    monkeypatch.setattr(onnx_frontend.Softsign, name, classmethod(impl))


def test_a_right_model_agrees_with_onnx_runtime(tmp_path):
    onnx.save(zoo.ONNX["block"], tmp_path / "m.onnx")
    found = compiled(tmp_path / "m.onnx").comparison
    assert found.reference == "ONNX Runtime" and found.difference < 1e-5 and found.note == ""
    assert found.text().startswith("compared with ONNX Runtime: largest difference ")
    assert found.text().endswith(" s; --no-compare leaves it out)")


def test_a_wrong_node_is_named(tmp_path, wrong_softsign):
    path = saved(tmp_path, node("Relu", "x", "a"), node("Softsign", "a", "b", name="odd"), node("Neg", "b", "y"))
    with pytest.raises(
        VerificationError, match=r"m\.onnx, node odd \(Softsign\): compiled alone .* found 1 of the lar"
    ):
        compiled(path)
    assert tvm_sparse.compile(path, target=zoo.UNOPTIMISED, compare=False).comparison is None


def test_nothing_is_compared_by_default_where_the_environment_says_so(tmp_path, wrong_softsign, monkeypatch):
    path = saved(tmp_path, node("Softsign", "x", "y"))
    assert tvm_sparse.compile(path, target=zoo.UNOPTIMISED).comparison is None
    monkeypatch.delenv("TVM_SPARSE_COMPARE")
    with pytest.raises(VerificationError, match="Softsign"):
        tvm_sparse.compile(path, target=zoo.UNOPTIMISED)


def test_what_only_the_whole_network_gets_wrong_is_refused_by_its_outputs(tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    path = saved(tmp_path, node("Neg", "x", "y"), node("Exp", "x", "z"), outputs=("y", "z"))
    false = saved(other, node("Neg", "x", "y"), node("Abs", "x", "z"), outputs=("y", "z"))
    monkeypatch.setattr(request, "prepare", lambda source, *rest: prepare(false if source == path else source, *rest))
    with pytest.raises(VerificationError, match="output 1 is not what ONNX Runtime computes, and no operator that can"):
        compiled(path)


def test_a_node_that_onnx_runtime_gets_wrong_is_its_affair(tmp_path, monkeypatch):
    monkeypatch.setattr(OnnxProcess, "command", (sys.executable, str(FAULTY), "wrong_abs"))
    path = saved(tmp_path, node("Abs", "x", "a", name="first"), node("Exp", "a", "b"), node("Abs", "b", "y"))
    found = compiled(path).comparison
    assert found.difference < 1e-5
    assert found.note == "ONNX Runtime departs from ONNX's reference implementation in Abs first, Abs y"


def test_signs_of_rounding_errors_are_accepted(tmp_path):
    nodes = (
        node("ReduceSum", "x axis", "a", keepdims=1),
        node("MatMul", "x ones", "b"),
        node("Sub", "a b", "c"),
        node("Sign", "c", "y"),
    )
    constants = {"axis": np.array([3]), "ones": np.ones((300, 1), np.float32)}
    found = compiled(saved(tmp_path, *nodes, constants=constants, inputs={"x": ((1, 1, 200, 300), FLOAT)})).comparison
    assert found.note == "its own outputs move as far where an input changes by rounding errors"


def test_places_of_the_largest_of_equal_values_agree(tmp_path):
    path = saved(tmp_path, node("Relu", "x", "a"), node("ArgMax", "a", "y", axis=1))
    assert compiled(path).comparison.difference == 0


def test_nan_must_be_where_the_source_has_it(tmp_path):
    found = compiled(saved(tmp_path, node("Sqrt", "x", "y"))).comparison
    assert found.difference < 1e-5 and not found.note
    never = saved(tmp_path, node("Abs", "x", "a"), node("Neg", "a", "b"), node("Log", "b", "y"))
    assert "nothing but NaN and infinity" in compiled(never).comparison.note


def test_an_index_beyond_a_dimension_is_drawn_again(tmp_path):
    inputs = {"x": ((1, 8), FLOAT), "i": ((5,), TensorProto.INT64)}
    found = compiled(saved(tmp_path, node("Gather", "x i", "y", axis=0), inputs=inputs)).comparison
    assert found.reference == "ONNX Runtime" and found.difference == 0


@pytest.mark.parametrize(
    ("fault", "cause"), [("crash", "SIGABRT"), ("hang", "ran for more than 2 s"), ("memory", "GiB of memory")]
)
def test_whatever_becomes_of_the_process_the_model_is_compiled(tmp_path, monkeypatch, fault, cause):
    monkeypatch.setattr(OnnxProcess, "command", (sys.executable, str(FAULTY), fault))
    monkeypatch.setattr(OnnxProcess, "time_limit_s", 2.0 if fault == "hang" else 60.0)
    monkeypatch.setattr(memory, "total_bytes", lambda: 1 << 30)
    model = compiled(saved(tmp_path, node("Relu", "x", "y")))
    assert model.comparison.reference is None and cause in model.comparison.text()
    assert (model(np.ones(SHAPE, np.float32)) == 1).all()


def test_without_onnx_runtime_small_models_are_evaluated(tmp_path, monkeypatch, wrong_softsign):
    monkeypatch.setattr(onnx_reference.importlib.util, "find_spec", lambda _name: None)
    right = saved(tmp_path, node("Relu", "x", "y"))
    assert compiled(right).comparison.reference == "ONNX's reference implementation"
    with pytest.raises(VerificationError, match=r"\(Softsign\): .* than ONNX's reference implementation"):
        compiled(saved(tmp_path, node("Softsign", "x", "y")))
    monkeypatch.setattr(onnx_reference, "EVALUATOR_BYTES", 0)
    assert "ONNX Runtime is not installed" in compiled(right).comparison.text()


def test_the_process_loads_no_more_than_it_needs():
    command = [sys.executable, "-X", "importtime", "-m", "tvm_sparse.compiler.comparison.onnx_worker"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "numpy" in loaded and not loaded & {"tvm", "torch", "onnx", "onnxruntime"}


def test_a_division_by_0_does_not_end_the_process(tmp_path):
    inputs = {"x": ((30,), TensorProto.INT8), "d": ((30,), TensorProto.INT8)}
    # ONNX Runtime does not divide bytes; the reference implementation is given some zeros to divide by.
    found = compiled(saved(tmp_path, node("Div", "x d", "y"), inputs=inputs)).comparison
    assert found.reference == "ONNX's reference implementation" and found.difference == 0


def test_what_onnx_runtime_does_not_run_is_evaluated_node_by_node_too(tmp_path, wrong_softsign, monkeypatch):
    monkeypatch.setattr(OnnxProcess, "command", (sys.executable, str(FAULTY), "no_runtime"))
    with pytest.raises(VerificationError, match=r"\(Softsign\): .* than ONNX's reference implementation"):
        compiled(saved(tmp_path, node("Softsign", "x", "y")))


def test_another_machine_s_code_is_not_compared(tmp_path):
    target = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}
    model = tvm_sparse.compile(saved(tmp_path, node("Relu", "x", "y")), target=target, compare=True)
    assert "built for aarch64" in model.comparison.text()


def test_each_batch_is_compared(tmp_path):
    model = compiled(saved(tmp_path, node("Relu", "x", "y")), batch=[1, 3])
    assert [each.comparison.difference for each in model.models.values()] == [0, 0]
    assert model.comparison.reference == "ONNX Runtime"
    module = nn.Sequential(nn.Conv2d(3, 2, 3)).eval()
    assert compiled(module, torch.zeros(SHAPE), batch=[1, 3]).comparison.reference == "torch"


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_half_precision_files_are_compared(tmp_path, kind):
    found = compiled(saved(tmp_path, node("Relu", "x", "y"), inputs={"x": (SHAPE, kind)})).comparison
    assert found.reference == "ONNX Runtime" and found.difference < 1e-2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_modules_are_compared(dtype):
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval().to(dtype)
    found = compiled(module, torch.zeros(SHAPE, dtype=dtype)).comparison
    assert found.reference == "torch" and 0 <= found.difference < 2e-2


def test_a_cast_model_is_compared_with_what_it_was(tmp_path):
    onnx.save(zoo.ONNX["block"], tmp_path / "m.onnx")
    found = compiled(tmp_path / "m.onnx", dtype="float16").comparison
    assert 1e-6 < found.difference < 2e-2


class Two(nn.Module):
    """A tensor and a list of one to a dict."""

    def forward(self, x, others):
        return {"sum": x + others[0], "max": x.flatten(1).argmax(1)}


def test_a_module_is_run_in_its_own_way_and_left_as_it_was():
    torch.set_float32_matmul_precision("high")
    model = Two().eval()
    found = compiled(model, (torch.zeros(2, 3), [torch.zeros(2, 3)])).comparison
    assert found == Comparison("torch", 0.0, found.seconds)
    assert not model.training
    assert torch.get_float32_matmul_precision() == "high"
    torch.set_float32_matmul_precision("highest")


def test_programs_and_their_files_are_compared(tmp_path):
    program = zoo.export_quietly(nn.Sequential(nn.Conv2d(3, 2, 3)).eval(), [np.zeros(SHAPE, np.float32)])
    torch.export.save(program, tmp_path / "m.pt2")
    for source in (program, tmp_path / "m.pt2"):
        found = compiled(source).comparison
        assert found.reference == "torch" and found.difference < 1e-5


def test_a_wrong_operator_of_torch_is_named_with_its_module(monkeypatch):
    def wrong(self, n):
        x = self.env[n.args[0]]
        return self.block_builder.emit(relax.op.multiply(relax.op.nn.relu(x), relax.const(1.5, "float32")))

    monkeypatch.setattr(ExportedProgramImporter, "_leakyrelu", wrong)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.ReLU(), nn.LeakyReLU())).eval()
    with pytest.raises(VerificationError, match=r"operator leaky_relu.* of module 1\.1: compiled alone"):
        compiled(module, torch.zeros(SHAPE))


def test_a_module_that_does_not_run_is_not_compared():
    class Picky(nn.Module):
        def forward(self, x):
            if not torch.compiler.is_compiling():
                raise ValueError("only for export")
            return x + 1

    model = compiled(Picky().eval(), torch.zeros(2, 3))
    assert model.comparison.text() == "not compared: torch does not run the model (only for export)"


def test_the_command_line_says_it_and_writes_nothing_wrong(tmp_path, monkeypatch, capsys, wrong_softsign):
    monkeypatch.delenv("TVM_SPARSE_COMPARE")
    monkeypatch.chdir(tmp_path)
    words = ["m.onnx", "-o", "out", "--target", '{"kind":"llvm","opt-level":0}']
    saved(tmp_path, node("Relu", "x", "y"))
    assert main.main(["compile", *words]) == 0
    assert "compared with ONNX Runtime: largest difference 0 of" in " ".join(capsys.readouterr().out.split())
    assert main.main(["optimize", "--minutes", "0", "--no-compare", *words]) == 0
    assert "compared" not in capsys.readouterr().out
    saved(tmp_path, node("Softsign", "x", "y"))
    assert main.main(["optimize", "--minutes", "0", *words[:2], "new", *words[3:]]) == 5
    assert "(Softsign)" in capsys.readouterr().err and not Path("new").exists()


def test_differences_are_told_by_kind():
    ones = np.ones((2, 2), np.float32)
    assert worst_difference([ones], [ones * 1.0001], 1e-3).text == ""
    assert worst_difference([ones], [ones * 2], 1e-3).text == "0.5 of the largest value"
    assert worst_difference([ones], [ones[:1]], 1e-3).text == "shape (2, 2) instead of (1, 2)"
    assert worst_difference([ones], [ones.astype(int)], 1e-3).text == "element type float32 instead of int64"
    assert worst_difference([ones.astype(int)], [np.array([[1, 1], [1, 0]])], 1e-3).text == "1 of 4 elements"
    assert worst_difference([ones], [ones, ones], 1e-3).text == "1 outputs instead of 2"
    assert worst_difference([ones], [ones * np.nan], 1e-3).text == "inf of the largest value"
    assert worst_difference([ones * np.inf], [ones * np.inf], 1e-3).text == ""


def test_a_stable_network_does_not_move():
    x = np.ones(8, np.float32)
    found = differences([x * 2], [x], 1e-3)
    assert not moves_as_far(lambda inputs: [inputs[0] * 1], [x], [x], found, 2.0**-24)
    assert moves_as_far(
        lambda inputs: [np.sign(inputs[0] - 1)], [x], [x * 0], differences([x], [x * 0], 1e-3), 2.0**-24
    )


def test_numbers_of_eight_bits_may_be_a_step_apart():
    found, expected = [np.uint8([199, 7])], [np.uint8([200, 7])]
    assert worst_difference(found, expected, 1e-3).text == "0.005 of the largest value"
    assert worst_difference(found, expected, 2e-2).text == ""
    assert are_a_step_apart(found, expected) and not are_a_step_apart(found, [np.uint8([201, 7])])
    assert not are_a_step_apart([np.float32([1])], [np.float32([2])])


def test_a_quantised_model_is_compared_exactly_and_knows_it(tmp_path):
    weight = np.random.default_rng(0).integers(0, 256, (4, 4, 3, 3)).astype(np.uint8)
    onnx.save(quantised.sparseml_model(weight), tmp_path / "m.onnx")
    model = tvm_sparse.compile(tmp_path / "m.onnx", target=zoo.UNOPTIMISED, compare=True)
    assert model.comparison.reference == "ONNX Runtime" and model.comparison.difference == 0
    assert model.file.is_quantised and ModelFile.from_json(model.file.to_json(tmp_path), tmp_path) == model.file
