"""What `inspect -v` says of quantised layers: scales and zero points as their files have them."""

import onnx
import pytest
import quantised

from tvm_sparse.reports.inspection import inspect


def said(source):
    """Lines about scales on request, and all that everybody sees."""
    report = inspect(source, target="llvm")
    lines = [str(each) for each in report.details() if "zero point" in str(each)]
    assert not any("zero point" in str(each) for each in report.parts())
    return lines


def test_of_onnx_runtimes_files(tmp_path):
    path = quantised.quantised_file(tmp_path, "residual", "qdq", True, "u8s8")
    model = onnx.load(path)
    tensors = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    makers = {each.output[0]: each for each in model.graph.node}
    stem = next(each for each in model.graph.node if each.op_type == "Conv")
    (scale, zero), (scales, zeros) = ([tensors[name] for name in makers[each].input[1:]] for each in stem.input[:2])
    assert not zeros.any() and scales.size == 8
    first, *rest = said(path)
    zeros, found = f"{zero}, of the weight 0", f"{scale:.6g} and {scales.min():.6g} to {scales.max():.6g}"
    assert first.endswith(f": zero point of the input {zeros}; scales {found}.")
    assert len(rest) == 2


@pytest.mark.parametrize("form", ["sparseml", "qlinear"])
def test_of_weights_whose_zero_is_128(form, tmp_path):
    onnx.save(quantised.residual_model(form), tmp_path / "model.onnx")
    first, second = said(tmp_path / "model.onnx")
    # ConvInteger has no scales.
    rest = ", one scale behind the layer." if form == "sparseml" else ", of the weight 128; scales 0.05 and 0.01."
    assert first.endswith(f": zero point of the input 110{rest}")
    assert ": zero point of the input 0," in second
