"""What one line says of a model, and whether that is what was measured or expected."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import onnx
import pytest
import zoo

from tvm_sparse.compiler.build_model import Compilation
from tvm_sparse.compiler.plan import expected_gain
from tvm_sparse.compiler.plan.beside_layers import LINEAR, RECURRENT, TENSORS
from tvm_sparse.compiler.plan.choice import Default
from tvm_sparse.compiler.plan.expected_gain import ESTIMATED_ERROR, TIMED_ERROR, shares_of_others, verdict_of
from tvm_sparse.compiler.plan.plan import Plan
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import BuildError, VerificationError
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.runtime import artifact
from tvm_sparse.runtime.model_file import ModelFile
from tvm_sparse.runtime.verdict import Verdict
from tvm_sparse.target.resolve import resolve_target
from tvm_sparse.verdict import measured as module
from tvm_sparse.verdict.measured import Built, Times, measured, verdict_on
from tvm_sparse.verdict.turns import Turns
from tvm_sparse.verdict.worth import Zeros, worth

TARGET = resolve_target({"kind": "llvm", "opt-level": 0, "num-cores": 1})
SPEC = ConvSpec(n=1, c=16, h=28, w=28, k=16, r=3, s=3, padding=(1, 1, 1, 1))
PREDICTED = Verdict("predicted", 2.0, None, None, "same compiler", 0.3, layers=3, gaining=2)
MEASURED = replace(PREDICTED, kind="measured", sparse_us=17_300.0, dense_us=41_200.0, speedup=2.38, error=0.01)


def saved(path, density):
    """An ONNX file with two convolutions, the second of which has this share of its weights."""
    rng = np.random.default_rng(0)
    first, second = (rng.standard_normal(SPEC.weight_shape).astype(np.float32) for _ in range(2))
    second *= rng.random(SPEC.weight_shape) < density
    nodes = [
        ("Conv", ["x", "a.weight"], ["t"], {"pads": [1] * 4}),
        ("Conv", ["t", "b.weight"], ["y"], {"pads": [1] * 4}),
    ]
    shapes = {"x": SPEC.input_shape}, {"y": SPEC.output_shape}
    onnx.save(zoo.onnx_model(nodes, {"a.weight": first, "b.weight": second}, *shapes), path)
    return path


@pytest.fixture
def file(tmp_path):
    """An ONNX file, pruned to 0.1 in one of two layers."""
    return saved(tmp_path / "m.onnx", 0.1)


def compilation_of(path):
    return Compilation(prepare(path), TARGET, None)


@pytest.mark.parametrize(
    ("verdict", "line"),
    [
        (MEASURED, "model: 41.2 -> 17.3 ms, 2.38x (measured; dense: same compiler)"),
        (PREDICTED, "model: about 2x (predicted, +-30%; dense: same compiler)"),
        (
            replace(MEASURED, dense_us=412.0, sparse_us=173.0, variant="batch 8"),
            "model, batch 8: 412 -> 173 us, 2.38x ",
        ),
        (replace(MEASURED, unreliable="other work"), "(measured; dense: same compiler; unreliable: other work)"),
        (replace(MEASURED, speedup=None, dense_us=None, note="alone"), "model: 17.3 ms (measured; alone)"),
        (Verdict.unknown(2), "model: its time is not known"),
    ],
)
def test_the_line(verdict, line):
    assert line in verdict.line()
    assert Verdict.from_json(json.loads(json.dumps(verdict.to_json()))) == verdict


@pytest.mark.parametrize(
    ("field", "value"), [("kind", "hoped"), ("speedup", "2"), ("layers", True), ("details", []), ("note", None)]
)
def test_a_file_may_not_say_anything(field, value):
    with pytest.raises(ValueError, match="no verdict"):
        Verdict.from_json({**PREDICTED.to_json(), field: value})


def test_the_fastest_dense_contender_counts():
    times = Times(
        1, {"tvm-sparse": (10.0, 11.0, 10.0), "dense, same compiler": (30.0,) * 3, "onnxruntime": (20.0,) * 3}
    )
    verdict = times.verdict(PREDICTED)
    assert (verdict.kind, verdict.sparse_us, verdict.dense_us, verdict.speedup) == ("measured", 10.0, 20.0, 2.0)
    assert verdict.dense_name == f"ONNX Runtime {'.'.join(module.metadata.version('onnxruntime').split('.')[:2])}"
    assert 0 < verdict.error < 0.1 and verdict.gaining == 2
    assert [row["name"] for row in verdict.details["times"]] == list(times.times_us)


def test_timed_layers_count_as_they_were_timed(file):
    """Layers that were timed are as long as that says, the others in proportion to them."""
    plan = compilation_of(file).plan
    first, second = plan.decisions
    estimate = verdict_of(plan)
    assert estimate.sparse_us is None and estimate.error == ESTIMATED_ERROR
    timed = [replace(each, choice=Default("folded_cpu", 100.0), dense_time_us=400.0) for each in (first, second)]
    verdict = verdict_of(plan.with_decisions(timed))
    assert (verdict.dense_us, verdict.sparse_us, verdict.speedup, verdict.error) == (800.0, 200.0, 4.0, TIMED_ERROR)
    assert (verdict.layers, verdict.gaining) == (2, 2)
    mixed = verdict_of(
        plan.with_decisions([timed[0], replace(second, choice=Default("dense_cpu"), dense_time_us=None)])
    )
    # Both layers are of one size.
    assert mixed.dense_us == pytest.approx(800.0) and mixed.sparse_us == pytest.approx(500.0)
    assert mixed.error == pytest.approx((TIMED_ERROR + ESTIMATED_ERROR) / 2) and mixed.gaining == 1


def test_a_layer_of_zeros_alone_gains(tmp_path):
    plan = compilation_of(saved(tmp_path / "zeros.onnx", 0.0)).plan
    times = expected_gain.layer_times(plan.layers[1], plan.decisions[1], TARGET, False)
    assert times.sparse_us * 100 < times.dense_us


def test_whether_it_is_worth_it(file, tmp_path):
    plan = compilation_of(file).plan
    verdict = replace(verdict_of(plan), speedup=2.14, gaining=1)
    assert worth(plan, verdict) == "yes, about 2.1x on this CPU (predicted, +-35%); 1 of 2 layers gain"
    little = replace(verdict, speedup=1.05)
    assert worth(plan, little) == "no: about 1.1x on this CPU (predicted, +-35%), density 0.55"
    unpruned = compilation_of(saved(tmp_path / "dense.onnx", 1.0)).plan
    assert worth(unpruned, little) == "no: nothing is pruned (density 1.00); see docs/pruning.md"
    assert worth(unpruned, verdict).endswith("though nothing is pruned (density 1.00), see docs/pruning.md")
    empty = Plan.of(SimpleNamespace(layers=[]), [], TARGET)
    assert worth(empty, verdict) == "no: there is no convolution, and no linear layer with zeros"


# Products of 64 x 16 x 64, and one of 16 x 64 pixels by a number.
ATTENTION = """<ir_version: 8, opset_import: ["": 17]>
g (float[1, 1, 16, 64] x) => (float[1, 1, 16, 64] z) <float[1, 1, 1, 1] w = {0.5}> {
    y = Conv(x, w)
    t = Transpose<perm = [0, 1, 3, 2]>(y)
    a = MatMul(t, y)
    z = MatMul(y, a)
}"""


def test_work_outside_of_layers_is_named(tmp_path):
    onnx.save(onnx.parser.parse_model(ATTENTION), tmp_path / "m.onnx")
    plan = compilation_of(tmp_path / "m.onnx").plan
    (kind,) = shares_of_others(plan)
    assert kind == TENSORS and shares_of_others(plan)[kind] > 0.5
    assert worth(plan, verdict_of(plan)).endswith(f"% of its time is in {TENSORS}")


def test_recurrent_layers_are_named(tmp_path):
    """A product of all inputs at once, and one of each state but the first, which is zero."""
    rng = np.random.default_rng(0)
    weights = {"w": (1, 1, 1, 1), "wi": (1, 256, 16), "wr": (1, 256, 64)}
    nodes = [
        ("Conv", ["x", "w"], ["a"], {}),
        ("Squeeze", ["a", "axes"], ["b"], {}),
        ("LSTM", ["b", "wi", "wr"], ["y"], {"hidden_size": 64}),
    ]
    constants = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in weights.items()}
    model = zoo.onnx_model(nodes, {**constants, "axes": np.array([1])}, {"x": (8, 1, 1, 16)}, {"y": (8, 1, 1, 64)})
    onnx.save(model, tmp_path / "m.onnx")
    plan = compilation_of(tmp_path / "m.onnx").plan
    shares = shares_of_others(plan)
    assert set(shares) == {LINEAR, RECURRENT} and shares[RECURRENT] > shares[LINEAR]
    assert "of its time is in recurrent layers (LSTM, GRU, RNN) without zeros" in worth(plan, verdict_of(plan))


def test_zeros_are_counted(tmp_path):
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal(SPEC.weight_shape).astype(np.float32) for _ in range(2)]
    weights[0][:3], weights[1][:, :2] = 0, 0
    path = saved(tmp_path / "zeros.onnx", 0.0)
    plan = compilation_of(path).plan
    kept = "All zero, and kept, as other layers or whole vectors need them"
    assert Zeros.of(plan).text().endswith(f"{kept}: 2 layers.")
    layers = [replace(each, weight=weight) for each, weight in zip(plan.layers, weights, strict=True)]
    found = Zeros.of(Plan.of(SimpleNamespace(layers=layers, removed=(5, 1)), plan.decisions, TARGET))
    assert found == Zeros(0, 3, 2, 5, 1)
    assert found.text() == f"Taken out: 5 filters and 1 input channel. {kept}: 3 filters, 2 input channels."
    assert Zeros(0, 0, 0).text() == ""


def test_contenders_have_processes_of_their_own(file, tmp_path):
    """Ours, its twin and ONNX Runtime are timed in turns; the artifact keeps what came out."""
    compilation = compilation_of(file)
    model = compilation.build()
    model.file = ModelFile.of(file, None, False, compilation.prepared.inputs)
    model.verdict = verdict_on(model, compilation, limit_s=0.0)
    assert model.verdict.kind == "measured" and not model.verdict.note
    assert model.verdict.details["rounds"] == 3
    assert [row["name"] for row in model.verdict.details["times"]] == [module.OURS, module.DENSE, module.ONNX_RUNTIME]
    loaded = artifact.load(artifact.save(model, tmp_path / "m.sparse"))
    assert (loaded.verdict, loaded.file) == (model.verdict, model.file)
    assert loaded.file.obstacle() == ""
    saved(file, 0.2)
    assert "was changed since" in loaded.file.obstacle()
    file.unlink()
    assert "is not there" in loaded.file.obstacle()


class Made(Turns):
    """Contenders that need no process: their outputs are given, by name; one without is refused."""

    outputs: ClassVar[dict[str, list[np.ndarray]]] = {}

    def add(self, contender):
        if contender.name not in self.outputs:
            raise BuildError(contender.name, "cannot be timed (it is no model)")
        found = SimpleNamespace(name=contender.name, outputs=self.outputs[contender.name], close=lambda: None)
        self.running.append(found)
        return found

    def times_us(self, rounds, *_limits):
        return {each.name: (1.0,) * rounds for each in self.running}


@pytest.fixture
def timed(file, monkeypatch):
    """What `measured` returns where contenders have these outputs."""

    def times(**outputs):
        monkeypatch.setattr(module, "Turns", Made)
        monkeypatch.setattr(
            Made, "outputs", {getattr(module, name): [np.full(3, each)] for name, each in outputs.items()}
        )
        compilation = compilation_of(file)
        model, source = compilation.build(), ModelFile.of(file, None, False, compilation.prepared.inputs)
        return measured(Built(model), model, source)

    return times


def test_what_computes_something_else_is_not_timed(timed):
    same = {"OURS": 1.0, "DENSE": 1.0, "ONNX_RUNTIME": 1.0}
    assert list(timed(**same).times_us) == [module.OURS, module.DENSE, module.ONNX_RUNTIME]
    for wrong in ("DENSE", "ONNX_RUNTIME"):
        with pytest.raises(VerificationError, match="the outputs differ"):
            timed(**same | {wrong: 1.1})


def test_onnx_runtime_is_left_out_where_it_refuses_the_file(timed):
    times = timed(OURS=1.0, DENSE=1.0)
    assert times.notes == ("onnxruntime: cannot be timed (it is no model)",)
    assert times.verdict(PREDICTED).note == times.notes[0]


def test_what_cannot_be_timed_stays_predicted(file, monkeypatch):
    compilation = compilation_of(file)
    model = compilation.build()

    def fail(*_words, **_options):
        raise BuildError("dense", "cannot be timed (it was killed)")

    monkeypatch.setattr(module, "measured", fail)
    verdict = verdict_on(model, compilation, limit_s=0.0)
    assert verdict == replace(model.verdict, note="not measured: dense: cannot be timed (it was killed)")
