"""Import keeps the numbers, keeps pruning masks, and says in one sentence what it cannot import."""

import numpy as np
import onnx
import pytest
import torch
import zoo
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune

from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.model_source import ModelSource
from tvm_sparse.frontend.onnx.import_model import from_onnx
from tvm_sparse.frontend.relax_import import tvm_frontend
from tvm_sparse.frontend.torch import import_program


def assert_same(outputs, expected):
    assert len(outputs) == len(expected)
    for got, want in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_module_program_and_file_agree(tmp_path):
    module, shapes = zoo.TORCH["residual"]
    arrays = zoo.inputs_of(shapes)
    program = zoo.export_quietly(module, arrays)
    torch.export.save(program, tmp_path / "m.pt2")
    expected = zoo.run_torch(module, *arrays)
    for source, example in ((module, torch.from_numpy(arrays[0])), (program, None), (tmp_path / "m.pt2", None)):
        assert_same(zoo.run_relax(ModelSource(source).relax_module(example), *arrays), expected)


@pytest.mark.parametrize("name", ["auto_pad_upper", "auto_pad_lower", "auto_pad_valid", "pads", "block"])
def test_onnx(name, tmp_path):
    onnx.save(zoo.ONNX[name], tmp_path / "m.onnx")
    arrays = zoo.inputs_of([zoo.X])
    module = ModelSource(tmp_path / "m.onnx").relax_module()
    assert [v.name_hint for v in module.get_global_vars()] == ["main"], "no padded copies"
    assert_same(zoo.run_relax(module, *arrays), zoo.run_onnx(zoo.ONNX[name], *arrays))


def test_pruning_mask_survives_and_stays(tmp_path):
    module = zoo.Chain(zoo.conv())
    prune.l1_unstructured(module[0], "weight", 0.5)
    arrays = zoo.inputs_of([zoo.X])
    expected = zoo.run_torch(module, *arrays)
    assert_same(zoo.run_relax(ModelSource(module).relax_module(torch.from_numpy(arrays[0])), *arrays), expected)
    assert prune.is_pruned(module)
    assert_same(zoo.run_torch(module, *arrays), expected)


def open_batch():
    model = onnx.ModelProto()
    model.CopyFrom(zoo.ONNX["auto_pad_upper"])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    return model


def test_parameters_of_another_device_are_moved(monkeypatch):
    """As of a GPU; the user's program stays where it is."""
    module, shapes = zoo.TORCH["residual"]
    arrays = zoo.inputs_of(shapes)
    program = zoo.export_quietly(module, arrays)
    before = dict(program.state_dict)
    expected = zoo.run_relax(ModelSource(program).relax_module(None), *arrays)
    monkeypatch.setattr(import_program, "_HOST", "a device of no tensor")
    moved = import_program._on_cpu(program)
    assert moved is not program and {str(each.device) for each in moved.state_dict.values()} == {"cpu"}
    assert_same(zoo.run_relax(ModelSource(program).relax_module(None), *arrays), expected)
    assert all(program.state_dict[name] is tensor for name, tensor in before.items())


def test_open_shape_is_given(tmp_path):
    onnx.save(open_batch(), tmp_path / "m.onnx")
    arrays = zoo.inputs_of([(2, 4, 9, 9)])
    module = ModelSource(tmp_path / "m.onnx").relax_module(shapes={"x": (2, 4, 9, 9)})
    assert_same(zoo.run_relax(module, *arrays), zoo.run_onnx(open_batch(), *arrays))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (None, r"input x has no fixed shape, found \(batch, 4, 9, 9\).*--batch 1 or .*batch=1 or shapes=\{'x'"),
        ({"x": (1, 3, 9, 9)}, r"input x cannot have this shape, found \(1, 3, 9, 9\); allowed: \(batch, 4, 9, 9\)"),
        ({"x": (1, 4, 9)}, "input x cannot have this shape"),
        ({"x": (0, 4, 9, 9)}, "input x has no fixed shape"),
        ({"z": (1, 4, 9, 9)}, "no such input, found z; allowed: x"),
    ],
)
def test_open_shape_errors(shapes, message, tmp_path):
    onnx.save(open_batch(), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=message):
        ModelSource(tmp_path / "m.onnx").relax_module(shapes=shapes)


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_a_file_is_opened_once(suffix, tmp_path):
    """Weights and module come from the same bytes: the file is gone when they are asked for."""
    module, shapes = zoo.TORCH["residual"]
    path = tmp_path / f"m{suffix}"
    if suffix == ".onnx":
        onnx.save(zoo.ONNX["block"], path)
    else:
        torch.export.save(zoo.export_quietly(module, zoo.inputs_of(shapes)), path)
    source = ModelSource(path)
    path.unlink()
    assert source.weights() and "main" in [each.name_hint for each in source.relax_module().get_global_vars()]


class Unknown(nn.Module):
    def forward(self, x):
        return torch.linalg.eigvals(x)


class Own(nn.Module):
    """A class that torch does not know."""

    def forward(self, x):
        return x + 1


class Moody(nn.Module):
    """Does something else in training."""

    def forward(self, x):
        return x * 2 if self.training else x + 1


class Strict(nn.Module):
    """Cannot be traced in training."""

    def forward(self, x):
        if self.training:
            raise ValueError("In training it needs targets")
        return x + 1


def left_training(module, *names):
    for name in names:
        module.get_submodule(name).train()
    return module


X = torch.zeros(1, 4, 9, 9)


def dynamic_program():
    return torch.export.export(
        zoo.Chain(zoo.conv()), (torch.zeros(2, 4, 9, 9),), dynamic_shapes=[{0: torch.export.Dim("n", max=9)}]
    )


@pytest.mark.parametrize(
    ("source", "example", "message"),
    [
        (lambda: "no.onnx", None, "no such file"),
        (lambda: "weights.safetensors", None, "unknown kind of file"),
        (lambda: "model.pt", None, "this is a pickle"),
        (lambda: 7, None, "found int"),
        (lambda: zoo.Chain(zoo.conv()), None, "needs example inputs"),
        (lambda: zoo.Chain(zoo.conv()), torch.zeros(1, 3, 9, 9), "to have 4 channels"),
        (
            lambda: zoo.Chain(zoo.conv(), nn.BatchNorm2d(4)).train(),
            X,
            r"the outermost module is in training mode, found Chain; call eval\(\)",
        ),
        (
            lambda: nn.Sequential(zoo.Chain(Moody()).train()),
            X,
            "the outermost module is in training mode, found Sequential",
        ),
        (
            lambda: left_training(zoo.Chain(zoo.conv(), nn.Sequential(nn.BatchNorm2d(4))), "1.0"),
            X,
            r"a submodule is in training mode, found 1\.0 \(BatchNorm2d\); call eval\(\)",
        ),
        (
            lambda: left_training(zoo.Chain(zoo.conv(), *[nn.Dropout() for _ in range(4)]), *"1234"),
            X,
            r"found 1 \(Dropout\), 2 \(Dropout\), 3 \(Dropout\) and 1 more",
        ),
        (lambda: left_training(zoo.Chain(Moody()), "0"), X, r"found 0 \(Moody\)"),
        (lambda: left_training(zoo.Chain(Own(), Strict()), "0", "1"), X, r"found 0 \(Own\), 1 \(Strict\)"),
        (
            lambda: torch.export.export(left_training(zoo.Chain(zoo.conv(), nn.BatchNorm2d(4)), "1"), (X,)),
            None,
            r"module 1 \(BatchNorm2d\) was exported in training mode",
        ),
        (
            lambda: torch.export.export(nn.BatchNorm2d(4), (X,)),
            None,
            "batch_norm was exported in training mode",
        ),
        (lambda: Unknown().eval(), X, "linalg_eig"),
        (dynamic_program, None, "has no fixed shape"),
    ],
)
def test_errors(source, example, message, capsys):
    with pytest.raises(ModelError, match=message) as raised:
        ModelSource(source()).relax_module(example)
    assert "\n" not in str(raised.value)
    assert capsys.readouterr().out == ""


def test_what_fails_in_an_importer_of_tvm_prints_nothing(capsys):
    model = zoo.onnx_model(
        [("Conv", ["x", "w"], ["y"], {"auto_pad": "BEST"})],
        {"w": np.ones((4, 4, 1, 1), np.float32)},
        {"x": zoo.X},
        {"y": zoo.X},
    )
    with pytest.raises(ModelError, match="TVM cannot import it"), tvm_frontend("m.onnx"):
        from_onnx(model)
    assert capsys.readouterr() == ("", "")


def test_unknown_onnx_operator(tmp_path, capsys):
    node = ("Conv", ["x", "w"], ["t"], {})
    model = zoo.onnx_model(
        [node, ("Det", ["t"], ["y"], {})], {"w": np.ones((4, 4, 1, 1), np.float32)}, {"x": zoo.X}, {"y": (1, 4)}
    )
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="Det"):
        ModelSource(tmp_path / "m.onnx").relax_module()
    assert capsys.readouterr().out == ""


def test_a_new_layer_to_which_training_is_all_the_same_may_be_in_it():
    """Such as the last layer that fine-tuning puts in: `nn.Module`s begin in training mode."""
    module = zoo.Chain(zoo.conv())
    module.append(nn.Conv2d(4, 2, 1))
    assert module[1].training
    arrays = zoo.inputs_of([zoo.X])
    relax_module = ModelSource(module).relax_module(torch.from_numpy(arrays[0]))
    assert_same(zoo.run_relax(relax_module, *arrays), zoo.run_torch(module, *arrays))


def test_a_wrapper_in_training_mode_is_compiled_where_nothing_depends_on_it():
    """`nn.Module`s that wrap a network in evaluation mode begin in training mode, which they keep."""
    module = nn.Sequential(Own(), zoo.Chain(zoo.conv(), nn.BatchNorm2d(4), nn.Dropout()))
    modes = [each.training for each in module.modules()]
    arrays = zoo.inputs_of([zoo.X])
    relax_module = ModelSource(module).relax_module(torch.from_numpy(arrays[0]))
    assert_same(zoo.run_relax(relax_module, *arrays), zoo.run_torch(module, *arrays))
    assert modes == [each.training for each in module.modules()] == [True, True, False, False, False, False]


class Standardised(nn.Conv2d):
    """As timm's ScaledStdConv2d: a batch norm of the weight, which takes the weight's own statistics in any mode."""

    def forward(self, x):
        weight = self.weight.reshape(1, self.out_channels, -1)
        gain = torch.full((self.out_channels,), 1.5)
        weight = functional.batch_norm(weight, None, None, weight=gain, training=True, momentum=0.0)
        return functional.conv2d(x, weight.reshape_as(self.weight), self.bias)


def test_statistics_of_the_input_are_no_training_mode():
    module = nn.Sequential(zoo.conv(), nn.BatchNorm2d(4, track_running_stats=False), Standardised(4, 4, 3)).eval()
    arrays = zoo.inputs_of([zoo.X])
    relax_module = ModelSource(module).relax_module(torch.from_numpy(arrays[0]))
    assert_same(zoo.run_relax(relax_module, *arrays), zoo.run_torch(module, *arrays))


def test_a_file_names_the_module_that_was_in_training_mode(tmp_path):
    module = left_training(zoo.Chain(zoo.conv(), nn.Dropout()), "1")
    torch.export.save(torch.export.export(module, (X,)), tmp_path / "m.pt2")
    with pytest.raises(ModelError, match=r"m\.pt2: module 1 \(Dropout\) was exported in training mode"):
        ModelSource(tmp_path / "m.pt2").relax_module()
