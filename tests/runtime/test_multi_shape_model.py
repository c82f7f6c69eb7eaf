"""A model compiled for some batches takes any: as it is, padded to the next, or in turns; also after saving."""

import json
import warnings

import numpy as np
import pytest
import torch
import tvm
import zoo
from test_compiled_model import ArrayApi

from tvm_sparse.compiler import build_model
from tvm_sparse.errors import ArtifactError, InputError
from tvm_sparse.runtime import artifact
from tvm_sparse.runtime.artifacts.manifest import digest
from tvm_sparse.runtime.compiled_model import COLUMNS, WORDS
from tvm_sparse.runtime.multi_shape_model import MultiShapeModel

SHAPE = zoo.X[1:]
COUNTS = (1, 3, 8, 11, 20)


def inputs(count, kinds=1):
    return zoo.inputs_of([(count, *SHAPE)] * kinds)


@pytest.fixture(scope="module")
def model():
    return build_model.compile(zoo.TORCH["classifier"][0], torch.zeros(zoo.X), batch=[8, 1])


@pytest.fixture(scope="module")
def two():
    """Two inputs, three outputs."""

    class TwoInputs(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = zoo.Chain(zoo.conv())

        def forward(self, x, z):
            y = self.conv(x) + z
            return y, torch.relu(y), y.mean((2, 3))

    module = TwoInputs().eval()
    return module, build_model.compile(module, (torch.zeros(zoo.X), torch.zeros(zoo.X)), batch=(2, 4))


@pytest.fixture
def runs(model, monkeypatch):
    """The batches that are run."""
    found = []

    def spied(batch, run):
        return lambda *arguments: (found.append(batch), run(*arguments))[1]

    ((shapes, group),) = model.groups.items()
    monkeypatch.setitem(model.groups, shapes, {batch: spied(batch, each) for batch, each in group.items()})
    return found


@pytest.mark.parametrize(
    ("count", "batches"), [(1, [1]), (3, [8]), (8, [8]), (9, [8, 1]), (16, [8, 8]), (20, [8, 8, 8])]
)
def test_which_batches_run(model, runs, count, batches):
    (x,) = inputs(count)
    np.testing.assert_allclose(model(x), zoo.run_torch(zoo.TORCH["classifier"][0], x)[0], rtol=1e-4, atol=1e-4)
    assert runs == batches


KINDS = {
    "torch": (torch.from_numpy, torch.Tensor),
    "numpy": (lambda array: array, np.ndarray),
    "tvm": (tvm.runtime.tensor, tvm.runtime.Tensor),
    "array API": (ArrayApi, ArrayApi),
    "torch, every second": (lambda array: torch.from_numpy(array.repeat(2, axis=0))[::2], torch.Tensor),
    "torch, channels last": (lambda array: torch.from_numpy(array).to(memory_format=torch.channels_last), torch.Tensor),
    "torch, a parameter": (lambda array: torch.nn.Parameter(torch.from_numpy(array)), torch.Tensor),
    "numpy, reversed": (lambda array: np.ascontiguousarray(array[::-1])[::-1], np.ndarray),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_library_and_count(model, kind):
    make, result = KINDS[kind]
    for count in COUNTS:
        (x,) = inputs(count)
        with warnings.catch_warnings():
            # NumPy, whose memory torch borrows here, promises no alignment.
            warnings.filterwarnings("ignore", "input .* is not contiguous and aligned")
            y = model(make(x))
        assert isinstance(y, result)
        array = y.array if isinstance(y, ArrayApi) else y.numpy() if hasattr(y, "numpy") else y
        want = zoo.run_torch(zoo.TORCH["classifier"][0], x)[0]
        assert array.shape == want.shape
        np.testing.assert_allclose(array, want, rtol=1e-4, atol=1e-4)


def test_several_inputs_and_outputs(two):
    module, model = two
    for count in (1, 2, 3, 4, 7):
        arrays = inputs(count, 2)
        # The first input's library is that of all results.
        found = model(torch.from_numpy(arrays[0]), arrays[1])
        assert len(found) == 3
        for got, want in zip(found, zoo.run_torch(module, *arrays), strict=True):
            assert isinstance(got, torch.Tensor)
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_results_are_the_caller_s_own_and_inputs_stay(model):
    for count in COUNTS:
        x = torch.from_numpy(inputs(count)[0])
        before, first = x.clone(), model(x)
        kept = first.clone()
        model(-x)
        assert torch.equal(first, kept)
        assert torch.equal(x, before)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: (x[:0],), r"wrong shape, found \(0, 4, 9, 9\); allowed: \(N, 4, 9, 9\), N the same for all inputs"),
        (lambda x: (x[:0],), "batches 1, 8 are compiled, others padded or run in turns"),
        (lambda x: (x[:2, :3],), r"wrong shape, found \(2, 3, 9, 9\)"),
        (lambda x: (x[0, 0, 0, 0],), r"wrong shape, found \(\)"),
        (lambda x: (x.double(),), "wrong element type, found float64"),
        (lambda x: (x.to("meta"),), "cannot be read, it is on the meta device"),
        (lambda x: (x.to_sparse(),), "cannot be read, it is sparse_coo"),
        (lambda x: ([1.0],), "this is no tensor, found list"),
        (lambda x: (x, x), "wrong number of tensors, found 2"),
    ],
)
def test_errors(model, make, message):
    with pytest.raises(InputError, match=message) as raised:
        model(*make(torch.zeros(3, *SHAPE)))
    assert "\n" not in str(raised.value)


def test_inputs_have_the_same_batch(two):
    x, z = inputs(3)[0], inputs(2)[0]
    with pytest.raises(InputError, match=r"wrong shape, found \(2, 4, 9, 9\)"):
        two[1](x, z)


def test_report(model):
    assert model.batches == (1, 8)
    assert [(row["variant"], row["layer"]) for row in model.report()] == [("batch 1", "0"), ("batch 8", "0")]
    assert all(tuple(row) == ("variant", *COLUMNS, *WORDS) for row in model.report())
    assert [line for line in model.report_text().splitlines() if line.startswith("batch")] == ["batch 1", "batch 8"]
    assert repr(model).startswith("batch 1: CompiledModel(") and "<th>batch, size</th>" in model._repr_html_()


@pytest.fixture(scope="module")
def master(model, tmp_path_factory):
    return artifact.save(model, tmp_path_factory.mktemp("artifact") / "net")


def test_round_trip(model, saved):
    loaded = artifact.load(saved)
    assert isinstance(loaded, MultiShapeModel)
    assert (loaded.batches, loaded.signature, loaded.report()) == (model.batches, model.signature, model.report())
    assert {name: each.signature for name, each in loaded.models.items()} == {
        name: each.signature for name, each in model.models.items()
    }
    for count in COUNTS:
        (x,) = inputs(count)
        np.testing.assert_array_equal(loaded(x), model(x))


def test_one_library_a_batch_and_the_manifest_says_which(saved):
    manifest = json.loads((saved / "manifest.json").read_text())
    libraries = {path.name for path in saved.glob("model-*.so")}
    assert [each["name"] for each in manifest["variants"]] == ["batch 1", "batch 8"]
    assert {each["library"] for each in manifest["variants"]} == set(manifest["files"]) == libraries
    assert len(libraries) == 2


def test_two_variants_of_the_same_shapes_are_no_artifact(saved):
    manifest = json.loads((saved / "manifest.json").read_text())
    first, second = manifest["variants"]
    manifest["variants"] = [first, {**second, "signature": first["signature"]}]
    (saved / "manifest.json").write_text(json.dumps({**manifest, "digest": digest(manifest)}))
    with pytest.raises(ArtifactError, match="two of its models take inputs of the same shapes"):
        artifact.load(saved)


def test_a_loaded_model_is_not_saved_again(saved, tmp_path):
    with pytest.raises(ArtifactError, match="copy that directory instead"):
        artifact.save(artifact.load(saved), tmp_path / "again")


def test_an_artifact_of_one_batch_is_replaced_whole(model, saved):
    artifact.save(model.models["batch 1"], saved)
    assert not isinstance(artifact.load(saved), MultiShapeModel)
    assert len(list(saved.glob("model-*.so"))) == 1
    artifact.save(model, saved)
    assert artifact.load(saved).batches == (1, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content["variants"].pop(), "must list a library"),
        (lambda content: content["variants"][1].update(name="batch 1"), "must list a library"),
        (lambda content: content["variants"].clear(), "must list a library"),
        (lambda content: content["variants"][0]["signature"].update(inputs=[]), "no dimension for batches"),
        (lambda content: content["variants"][0].pop("signature"), "no usable field 'signature'"),
        (lambda content: content.pop("variants"), "no usable field 'variants'"),
    ],
)
def test_damage(saved, change, message):
    path = saved / "manifest.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps({**content, "digest": digest(content)}))
    with pytest.raises(ArtifactError, match=message):
        artifact.load(saved)


@pytest.mark.gpu
def test_on_a_gpu():
    """All libraries, on the caller's stream."""
    module = zoo.TORCH["classifier"][0]
    model = build_model.compile(module, torch.zeros(zoo.X), target="cuda", batch=[1, 8])
    stream = torch.cuda.Stream()
    for count in COUNTS:
        (x,) = inputs(count)
        (want,) = zoo.run_torch(module, x)
        placed = torch.zeros(x.shape, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(100_000_000)
            placed.copy_(torch.from_numpy(x))
            y = model(placed)
        stream.synchronize()
        np.testing.assert_allclose(y.cpu(), want, rtol=1e-4, atol=1e-4)
        found = model(tvm.runtime.tensor(x, tvm.cuda(0)))
        np.testing.assert_allclose(found.numpy(), want, rtol=1e-4, atol=1e-4)
