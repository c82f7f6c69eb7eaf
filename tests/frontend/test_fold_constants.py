"""Constants are computed without TVM where quantised networks have many of them."""

import onnx
import quantised
import zoo
from tvm import relax

from tvm_sparse.frontend.model_source import ModelSource
from tvm_sparse.frontend.passes.folding import fold_constants
from tvm_sparse.frontend.passes.relax_graph import Graph, is_call


def test_bounds_of_clips_are_not_compiled(tmp_path, monkeypatch):
    path = quantised.quantised_file(tmp_path, "residual", "qdq", True, "u8s8")
    module = ModelSource(path).relax_module()
    assert any(is_call(each, "relax.isnan") for each in Graph.of(module).definitions.values())
    expected = zoo.run_onnx(onnx.load(path), quantised.sample(9))
    # It compiles all that is left.
    monkeypatch.setattr(relax.transform, "FoldConstant", relax.transform.CanonicalizeBindings)
    folded = fold_constants.fold_constants(module)
    names = {each.op.name for each in Graph.of(folded).definitions.values() if hasattr(each, "op")}
    assert not names & {"relax.isnan", "relax.where"} and "relax.nn.conv2d" in names
    for found, own in zip(zoo.run_relax(folded, quantised.sample(9)), expected, strict=True):
        assert abs(found - own).max() <= 0.1 * abs(own).max()
