"""`torch.compile` with this back end: what is compiled, what stays eager and says so, and weights that change."""

import gc
import logging
import re
import subprocess
import sys
import warnings
import weakref
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from factories import make_record, newer_line
from parameters import sampled
from torch import nn
from torch._dynamo.backends import registry
from torch.nn.utils import parametrize
from torch.nn.utils import prune as torch_prune
from tvm import relax
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter
from vision import prune
from zoo import UNOPTIMISED

from tvm_sparse.dynamo import compile_graph
from tvm_sparse.dynamo.backend import backend
from tvm_sparse.dynamo.options import Options
from tvm_sparse.errors import LogError, ModelError, UsageError
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.runtime.multi_shape_model import MultiShapeModel
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.resolve import resolve_target, target_json

ROOT = Path(__file__).parents[2]
# All sizes differ: Dynamo takes equal ones for the same. Large maps are faster with a sparse kernel on any CPU.
X, LARGE = (2, 3, 9, 11), (2, 3, 37, 41)


def conv(c=3, k=8, size=3, **options):
    """A pruned convolution."""
    layer = nn.Conv2d(c, k, size, **options)
    prune(layer.weight)
    return layer


class Net(nn.Module):
    """Two convolutions, statistics, a buffer, a plain tensor, and results of several kinds."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = conv(padding=1), nn.BatchNorm2d(8)
        self.blocks = nn.Sequential(nn.ReLU(), conv(8, 8))
        self.register_buffer("scale", torch.full((8, 1, 1), 2.0))
        self.offset = torch.ones(1)
        self.norm.running_var.uniform_(0.5, 2)
        self.eval()

    def forward(self, x, *, factor=1):
        y = self.blocks(self.norm(self.stem(x))) * self.scale * factor + self.offset
        return {"map": y, "mean": (y.mean((2, 3)), x.shape[0] * 2)}


class Compiled:
    """A model under `torch.compile`, and the models that were compiled here for its graphs."""

    def __init__(self, model, dynamic=None, **options):
        self.model, self.made = model, []
        # A log, so that there is no warning that there is none.
        given = {"log": TuningLog("no.jsonl"), "on_compiled": self.made.append}
        if not any(each.is_cuda for each in model.parameters()):
            given["target"] = UNOPTIMISED
        options = {**given, **options}
        self.call = torch.compile(model, backend=backend, options=options, dynamic=dynamic)

    def check(self, *inputs, made=None, **keywords):
        """Compiled and eager agree, and so many models have been compiled by then."""
        with torch.no_grad():
            assert_same(self.call(*inputs, **keywords), self.model(*inputs, **keywords))
        assert made in (None, len(self.made))


def assert_same(found, want):
    assert type(found) is type(want)
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)
    elif isinstance(want, dict):
        assert list(found) == list(want)
        assert_same(list(found.values()), list(want.values()))
    elif isinstance(want, (list, tuple)):
        for one, other in zip(found, want, strict=True):
            assert_same(one, other)
    else:
        assert found == want


@pytest.fixture(autouse=True)
def no_unexpected_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Of torch and TVM themselves.
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        yield


def randn(*shape, seed=0):
    return torch.randn(shape or X, generator=torch.Generator().manual_seed(seed))


def stays_eager(model, *inputs, message, **options):
    """The model runs eagerly with one warning, and nothing is compiled for it."""
    compiled = Compiled(model, **options)
    with pytest.warns(UserWarning, match=message) as caught:
        compiled.check(*inputs, made=0)
        compiled.check(*inputs, made=0)
    assert len(caught) == 1
    text = str(caught[0].message)
    assert text.endswith("; this graph runs eagerly") and "\n" not in text


def test_results_of_all_kinds_and_keywords():
    compiled = Compiled(Net())
    compiled.check(randn(), made=1)
    compiled.check(randn(seed=1), made=1)
    compiled.check(randn(), factor=3, made=2)
    assert [row["layer"] for row in compiled.made[0].report()] == ["stem", "blocks.1"]
    with torch.inference_mode():
        assert_same(compiled.call(randn()), compiled.model(randn()))


def test_shapes_share_a_graph_and_have_code_of_their_own():
    compiled = Compiled(Net(), dynamic=True)
    for made, shape in [(1, X), (2, (5, *X[1:])), (3, (2, 3, 12, 10)), (3, X), (3, (5, *X[1:]))]:
        compiled.check(randn(*shape), made=made)
    without = Compiled(Net())
    for made, count in [(1, 2), (2, 5), (3, 7), (3, 5)]:
        without.check(randn(count, *X[1:]), made=made)


def test_no_more_shapes_than_the_options_allow():
    compiled = Compiled(Net(), dynamic=True, max_shapes=2)
    compiled.check(randn(2, *X[1:]), made=1)
    compiled.check(randn(4, *X[1:]), made=2)
    with pytest.warns(UserWarning, match="compiled for 2 shapes .* and no more, .* option max_shapes allows more"):
        compiled.check(randn(5, *X[1:]), made=2)
    compiled.check(randn(6, *X[1:]), made=2)


def test_numbers_have_code_of_their_own():
    compiled = Compiled(Net(), dynamic=True)
    for made, factor in [(1, 0.5), (2, 0.25), (2, 0.5), (3, 3), (4, 4), (4, 3), (4, 0.25)]:
        compiled.check(randn(), factor=factor, made=made)


def test_any_number_of_samples():
    compiled = Compiled(Plain(), dynamic=True, batch=[2, 4])
    for count in (5, 2, 4, 7):
        compiled.check(randn(count, *X[1:]), made=1)
    assert isinstance(compiled.made[0], MultiShapeModel)
    compiled.check(randn(5, 3, 12, 10), made=2)
    # Dynamo makes another graph for one sample, which says nowhere that it could be more.
    compiled.check(randn(1, *X[1:]), made=3)
    assert compiled.made[2].batches == (2, 4)


class Plain(nn.Module):
    """One result."""

    def __init__(self):
        super().__init__()
        self.conv, self.pool = conv(), nn.AdaptiveAvgPool2d(2)
        self.eval()

    def forward(self, x):
        return self.pool(self.conv(x).relu()).flatten(1)


class FixedBatch(Plain):
    """The size of the first batch is written down in the graph."""

    def forward(self, x):
        return self.conv(x).reshape(x.shape[0], 2, -1)


def test_a_graph_that_has_its_batch_written_down_is_compiled_for_each():
    compiled = Compiled(FixedBatch(), dynamic=False, batch=[1, 4])
    with pytest.warns(UserWarning, match="; this graph is compiled for each batch by itself"):
        compiled.check(randn(), made=1)
    with pytest.warns(UserWarning, match="output 0 has another first dimension"):
        compiled.check(randn(3, *X[1:]), made=2)
    assert not any(isinstance(each, MultiShapeModel) for each in compiled.made)


def test_without_a_common_first_dimension_each_shape_is_compiled():
    compiled = Compiled(Net(), dynamic=True, batch=[2, 4])
    compiled.check(randn(5, *X[1:]), made=1)
    compiled.check(randn(2, *X[1:]), made=2)
    assert not any(isinstance(each, MultiShapeModel) for each in compiled.made)


class Broken(nn.Module):
    """Two graphs with sparse layers and one without between them."""

    def __init__(self):
        super().__init__()
        self.a, self.dense, self.b = conv(), nn.Conv2d(8, 8, 1), conv(8, 4)
        self.eval()

    def forward(self, x):
        x = self.a(x)
        torch._dynamo.graph_break()
        x = self.dense(x).relu()
        torch._dynamo.graph_break()
        return self.b(x)


def test_graph_breaks_and_graphs_without_sparse_layers():
    compiled = Compiled(Broken())
    compiled.check(randn(*LARGE), made=2)
    assert [[row["layer"] for row in each.report()] for each in compiled.made] == [["a"], ["b"]]


def test_dense_models_stay_eager_without_a_word():
    compiled = Compiled(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval())
    compiled.check(randn(), made=0)
    assert_same(compiled.call(randn()), compiled.model(randn()))
    Compiled(nn.Sequential(conv(), nn.ReLU()).eval(), density=0.01).check(randn(), made=0)
    Compiled(nn.ReLU()).check(randn(), made=0)


def test_the_log_decides(tmp_path):
    model = nn.Sequential(conv(), nn.ReLU(), conv(8, 8)).eval()
    target = resolve_target()
    first, _ = prepare(model, randn()).layers
    log = TuningLog(tmp_path / "log.jsonl")
    known = {"fingerprint": fingerprint_of(target), "target": target_json(target), "decisions": {}}
    log.append(make_record(spec=first.spec, pattern=first.pattern, times_us=(2.0,), dense_times_us=(8.0,), **known))
    compiled = Compiled(model, log=log.path, predict=False)
    compiled.check(randn(), made=1)
    assert [row["schedule"] for row in compiled.made[0].report()] == ["folded_cpu", "dense_cpu"]


def test_where_nothing_is_faster_the_user_is_told():
    model = Plain()
    call = torch.compile(model, backend=backend, options={"predict": False})
    with torch.no_grad(), pytest.warns(UserWarning, match="no log knows a kernel that is faster than dense"):
        assert_same(call(randn()), model(randn()))


def scale_in_place(model):
    with torch.no_grad():
        model.stem.weight.mul_(2)


def load_other(model):
    model.load_state_dict({k: v * 0.5 if v.is_floating_point() else v for k, v in model.state_dict().items()})


def assign_other(model):
    model.load_state_dict({k: v.clone() * 2 for k, v in model.state_dict().items()}, assign=True)


def new_parameter(model):
    model.stem.weight = nn.Parameter(model.stem.weight * -1)


def other_shape(model):
    model.stem, model.norm, model.blocks[1] = conv(k=4, padding=1), nn.BatchNorm2d(4).eval(), conv(4, 8)


def other_statistics(model):
    model.train()
    with torch.no_grad():
        model(randn(8, *X[1:]))
    model.eval()


def step(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(randn())["map"].sum().backward()
    optimizer.step()
    # The mask of a pruned model.
    prune(model.stem.weight)


CHANGES = (scale_in_place, load_other, assign_other, new_parameter, other_shape, other_statistics, step)


@pytest.mark.parametrize(
    "change", sampled(CHANGES, (load_other, other_shape, other_statistics, step)), ids=lambda change: change.__name__
)
def test_changed_weights_are_compiled_again(change):
    compiled = Compiled(Net())
    compiled.check(randn(), made=1)
    change(compiled.model)
    compiled.check(randn(), made=2)
    compiled.check(randn(), made=2)


def test_changed_weights_are_refused_where_that_is_asked_for():
    compiled = Compiled(Net(), on_change="refuse")
    compiled.check(randn(), made=1)
    scale_in_place(compiled.model)
    message = r"parameter stem.weight: it was written to, or is another tensor, .*torch.compiler.reset\(\)"
    for _ in range(2):
        with pytest.raises(ModelError, match=message):
            compiled.check(randn(), made=1)
    torch.compiler.reset()
    compiled.check(randn(), made=2)


def test_a_change_is_logged(caplog):
    compiled = Compiled(Net())
    with caplog.at_level(logging.INFO, "tvm_sparse.dynamo"):
        compiled.check(randn(), made=1)
        load_other(compiled.model)
        compiled.check(randn(), made=2)
    text = caplog.text
    assert text.count("compiled a graph:\n") == 2
    assert "parameter stem.weight changed, so the graph is compiled again" in text


def test_pruning_after_the_first_call_is_noticed():
    compiled = Compiled(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval())
    compiled.check(randn(), made=0)
    prune(compiled.model[0].weight)
    compiled.check(randn(), made=1)


def test_models_and_their_code_are_freed():
    compiled = Compiled(Net())
    compiled.check(randn(), made=1)
    parameter, code = weakref.ref(compiled.model.stem.weight), weakref.ref(compiled.made.pop())
    del compiled
    gc.collect()
    assert (parameter(), code()) == (None, None)


def test_gradients_are_refused_and_computed_by_eager():
    compiled, x = Compiled(Net()), randn().requires_grad_()
    with pytest.warns(UserWarning, match=r"gradients are wanted, .* torch.no_grad\(\)") as caught:
        for _ in range(2):
            compiled.call(x)["map"].sum().backward()
    assert len(caught) == 1
    found = x.grad.clone(), compiled.model.stem.weight.grad.clone()
    x.grad = None
    compiled.model.zero_grad()
    for _ in range(2):
        compiled.model(x)["map"].sum().backward()
    assert_same(found, (x.grad, compiled.model.stem.weight.grad))
    # The same model serves both.
    compiled.check(x, made=1)


def test_training_is_not_slowed_down(monkeypatch):
    """Whether weights are sparse is looked at once, though each step changes them, and no change is refused."""
    compiled, looks = Compiled(Net().train(), on_change="refuse"), []
    true_look = compile_graph.is_sparse
    monkeypatch.setattr(compile_graph, "is_sparse", lambda *given: (looks.append(given), true_look(*given))[1])
    optimizer = torch.optim.SGD(compiled.model.parameters(), 0.1)
    with pytest.warns(UserWarning, match="gradients are wanted"):
        for _ in range(3):
            compiled.call(randn())["map"].sum().backward()
            optimizer.step()
    with torch.no_grad(), pytest.warns(UserWarning, match="was exported in training mode"):
        for _ in range(3):
            prune(compiled.model.stem.weight)
            compiled.call(randn())
    assert len(looks) == 2
    assert not compiled.made


def test_inputs_that_require_gradients_are_refused_too():
    model = Net().requires_grad_(False)
    compiled = Compiled(model)
    assert_same(compiled.call(randn()), model(randn()))
    assert len(compiled.made) == 1
    with pytest.warns(UserWarning, match="gradients are wanted"):
        assert compiled.call(randn().requires_grad_())["map"].requires_grad


def test_a_model_that_turns_gradients_off_itself_is_compiled():
    class Inner(Plain):
        def forward(self, x):
            with torch.no_grad():
                return super().forward(x)

    compiled = Compiled(Inner())
    assert_same(compiled.call(randn()), compiled.model(randn()))
    assert len(compiled.made) == 1


def test_statistics_of_batch_norms_are_watched():
    """Training writes to them without counting that as a write, and nothing else may change with them."""
    compiled = Compiled(Net().requires_grad_(False))
    compiled.check(randn(), made=1)
    versions = [tensor._version for tensor in (compiled.model.norm.running_mean, compiled.model.norm.running_var)]
    other_statistics(compiled.model)
    assert versions == [compiled.model.norm.running_mean._version, compiled.model.norm.running_var._version]
    compiled.check(randn(), made=2)
    compiled.check(randn(), made=2)


def test_training_mode_stays_eager():
    model, twin = Net().train(), Net()
    twin.load_state_dict(model.state_dict())
    compiled = Compiled(model)
    with torch.no_grad(), pytest.warns(UserWarning, match="batch_norm was exported in training mode"):
        assert_same(compiled.call(randn()), twin.train()(randn()))
    assert_same(dict(model.named_buffers()), dict(twin.named_buffers()))
    assert not compiled.made


def test_dropout_stays_random_in_training():
    model = nn.Sequential(conv(), nn.Dropout(0.5)).train()
    with torch.no_grad(), pytest.warns(UserWarning, match="dropout was exported in training mode"):
        found = Compiled(model).call(randn())
    assert 0.3 < (found == 0).float().mean() < 0.7


class Writes(Plain):
    """Writes to its input, through a view."""

    def forward(self, x):
        x[:, 0].mul_(2)
        return super().forward(x)


class Counts(Plain):
    """Writes to its state."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * self.calls


def test_what_a_model_writes_is_written():
    for kind, message in ((Writes, "writes to its inputs or its state"), (Counts, "writes to its inputs or its state")):
        torch.manual_seed(0)
        model = kind()
        torch.manual_seed(0)
        twin, compiled = kind(), Compiled(model)
        torch.compiler.reset()
        one, other = randn(), randn()
        with torch.no_grad():
            for _ in range(3):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    assert_same(compiled.call(one), twin(other))
        assert_same(one, other)
        assert_same(dict(model.named_buffers()), dict(twin.named_buffers()))
        assert not compiled.made, message


class Views(Plain):
    """Two results that share their memory."""

    def forward(self, x):
        y = self.conv(x)
        return y, y.flatten(1)


class ViewOfInput(Plain):
    """A result that is a part of the input."""

    def forward(self, x):
        return self.conv(x), x[:1]


@pytest.mark.parametrize("kind", [Views, ViewOfInput])
def test_shared_memory_stays_eager(kind):
    stays_eager(kind(), randn(), message="a result shares its memory with another one or with an input")


def test_autocast_stays_eager():
    model = Plain()
    with torch.autocast("cpu"), pytest.warns(UserWarning, match="autocast is on"), torch.no_grad():
        assert Compiled(model).call(randn()).dtype is torch.bfloat16


def test_a_graph_that_is_compiled_wrongly_stays_eager(monkeypatch):
    def wrong(self, node):
        return self.block_builder.emit(relax.op.nn.relu(self.env[node.args[0]]))

    monkeypatch.setattr(ExportedProgramImporter, "_leakyrelu", wrong)
    model = nn.Sequential(conv(), nn.LeakyReLU()).eval()
    stays_eager(model, randn(1, 3, 8, 8), message="compiled alone it gives another result than torch", compare=True)


def test_half_precision_is_compiled():
    model, x = Plain().bfloat16(), randn().bfloat16()
    compiled = Compiled(model)
    with torch.no_grad():
        found, expected = compiled.call(x), model(x)
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=2**-6, atol=2**-6)
    assert {row["precision"] for row in compiled.made[0].report()} == {"bfloat16, float32 sums"}


def test_double_precision_stays_eager():
    stays_eager(Plain().double(), randn().double(), message="unsupported element type, found float64; allowed: fl")


def test_operators_that_tvm_does_not_know_stay_eager():
    class Strange(Plain):
        def forward(self, x):
            return torch.linalg.svdvals(self.conv(x))

    stays_eager(Strange(), randn(), message="an operator that is not imported")


def test_weights_that_are_not_finite_stay_eager():
    model = Plain()
    with torch.no_grad():
        model.conv.weight[0, 0, 0, 0] = torch.inf
    stays_eager(model, randn().abs(), message=r"layer conv: weight\[0, 0, 0, 0\] is not finite")


def test_inference_tensors_as_parameters_stay_eager():
    with torch.inference_mode():
        model = Plain()
    stays_eager(model, randn(), message="no changes of inference tensors, as parameters are")


def test_nothing_to_compute_on():
    Compiled(Plain()).check(randn(0, *X[1:]), made=0)


def test_devices():
    with torch.no_grad():
        assert Compiled(Plain().to("meta")).call(randn().to("meta")).is_meta
    with pytest.raises(UsageError, match="target cuda does not run where the tensors are, found cpu; move the model"):
        Compiled(Plain(), target="cuda").check(randn(), made=0)
    Compiled(Plain(), target={"kind": "llvm", "num-cores": 1}).check(randn(), made=1)


def test_inputs_as_they_come():
    compiled = Compiled(Plain())
    for x in (randn().to(memory_format=torch.channels_last), randn(4, *X[1:])[::2], randn()[:, :, :, 1:]):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "input .* is not contiguous")
            compiled.check(x)
    assert compiled.made


def test_masks_that_are_not_removed():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval()
    for index in (0, 2):
        torch_prune.l1_unstructured(model[index], "weight", amount=0.9)
    compiled = Compiled(model)
    compiled.check(randn(), made=1)
    compiled.check(randn(), made=1)
    report = compiled.made[0].report()
    assert [row["layer"] for row in report] == ["0", "2"]
    assert all(0.08 < row["density"] < 0.12 for row in report)
    # The masked weights are results too, which the hooks of pruning keep: nobody else's memory.
    first = model[0].weight
    first.zero_()
    compiled.check(randn(), made=1)


def test_weights_that_are_computed():
    class Mask(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", (torch.rand(8, 3, 3, 3) < 0.1).float())

        def forward(self, weight):
            return weight * self.mask

    model = nn.Sequential(nn.Conv2d(3, 8, 3)).eval()
    parametrize.register_parametrization(model[0], "weight", Mask())
    compiled = Compiled(model)
    compiled.check(randn(*LARGE), made=1)
    assert compiled.made[0].report()[0]["density"] < 0.2


def test_two_models_in_one_function():
    one, other = nn.Sequential(conv()), nn.Sequential(conv())
    names, made = [], []

    @torch.compile(backend=backend, options={"log": TuningLog("no.jsonl"), "on_compiled": made.append})
    def both(x):
        return one(x) + other(x)

    with torch.no_grad():
        assert_same(both(randn()), one(randn()) + other(randn()))
    (model,) = made
    names = [row["layer"] for row in model.report()]
    assert len(set(names)) == 2 and all(name.endswith(".0") for name in names)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"density": 2}, "option density is not usable, found 2; allowed: a number from 0 to 1"),
        ({"nonsense": 1}, "unknown option, found nonsense; allowed: .*batch, compare, density, log"),
        ({"on_change": "ignore"}, "option on_change is unknown, found ignore; allowed: rebuild, refuse"),
        ({"batch": [0]}, r"batch: is not usable, found \[0\]"),
        ({"max_shapes": 0}, "option max_shapes is not usable, found 0"),
        ({"on_compiled": 1}, "option on_compiled cannot be called, found 1"),
    ],
)
def test_options_are_checked(options, sentence):
    # torch puts the sentence into an error of its own.
    with pytest.raises(Exception, match=sentence) as raised, torch.no_grad():
        Compiled(Plain(), **options).call(randn())
    assert isinstance(raised.value.inner_exception, UsageError)


def test_there_are_no_modes():
    with pytest.raises(Exception, match=r"has no modes, found max-autotune; .* tvm_sparse\.tune"):
        torch.compile(Plain(), backend=backend, mode="max-autotune")(randn())


def test_arguments_of_compile(tmp_path):
    compiled = Compiled(Plain(), strict_nonfinite=True)
    with pytest.warns(UserWarning, match="all layers run dense"):
        compiled.check(randn(), made=1)
    (tmp_path / "log.jsonl").write_text(newer_line())
    with pytest.raises(LogError), torch.no_grad():
        Compiled(Plain(), log=tmp_path / "log.jsonl").call(randn())


def install_entry_point(folder):
    """Let what looks in `folder` find the entry point of pyproject.toml as if the package were installed."""
    table = (ROOT / "pyproject.toml").read_text().partition("[project.entry-points.torch_dynamo_backends]\n")[2]
    (entry,) = re.findall(r'^(\w+) = "(.*)"$', table.partition("\n[")[0], re.MULTILINE)
    # As pip writes it.
    folder = folder / "any_name-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: any-name\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[torch_dynamo_backends]\n{entry[0]} = {entry[1]}\n")


def test_the_back_end_is_found_by_its_name(tmp_path, monkeypatch):
    """Torch, which looks for back ends once, looks again."""
    torch.compiler.list_backends()
    for known in (registry._BACKENDS, registry._COMPILER_FNS):
        monkeypatch.delitem(known, "tvm_sparse", raising=False)
    install_entry_point(tmp_path)
    # Not those of an installed package.
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for asked in (registry._lazy_import, registry._discover_entrypoint_backends):
        asked.cache_clear()
    assert "tvm_sparse" in torch.compiler.list_backends()
    assert registry.lookup_backend("tvm_sparse") is backend
    monkeypatch.undo()
    made, model = [], Plain()
    fast = torch.compile(model, backend="tvm_sparse", options={"on_compiled": made.append, "target": UNOPTIMISED})
    with torch.no_grad():
        assert_same(fast(randn()), model(randn()))
    assert len(made) == 1


@pytest.mark.exhaustive
def test_the_example_of_the_page_runs(tmp_path):
    page = (ROOT / "docs" / "torch-compile.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert "trials=64" in code
    code = code.replace("trials=64", "trials=3") + "\nassert torch.allclose(y, model(x), atol=1e-4)\n"
    install_entry_point(tmp_path)
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]\n{code}"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "model: about" in done.stdout
    own = {field.name for field in fields(Options)} - {"compile"}
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) >= own


@pytest.mark.gpu
def test_on_a_gpu():
    """Graph, stream and device of the caller; the weights' and the inputs' device must be one."""
    compiled = Compiled(Net().cuda(), dynamic=True)
    compiled.model.offset = compiled.model.offset.cuda()
    compiled.check(randn().cuda(), made=1)
    compiled.check(randn(5, *X[1:]).cuda(), made=2)
    load_other(compiled.model)
    compiled.check(randn().cuda(), made=3)
    stream, x = torch.cuda.Stream(), torch.zeros(X, device="cuda")
    with torch.no_grad():
        want = compiled.model(randn().cuda())
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200_000_000)
            x.copy_(randn())
            found = compiled.call(x)
        stream.synchronize()
    assert_same(found, want)
    with pytest.raises(UsageError, match="target llvm does not run where the tensors are, found cuda:0"):
        Compiled(Plain().cuda(), target="llvm").check(randn().cuda(), made=0)
    batched = Compiled(Plain().cuda(), dynamic=True, batch=[2, 4])
    for count in (5, 2, 9):
        batched.check(randn(count, *X[1:]).cuda(), made=1)
