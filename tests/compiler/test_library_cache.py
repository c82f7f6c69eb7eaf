"""A CPU model that was compiled before is not compiled again, whatever is asked for first."""

import tempfile

import numpy as np
import pytest
import torch
from torch import nn

from tvm_sparse.codegen.kernel_cache import KernelCache
from tvm_sparse.compiler import build_model, build_plan
from tvm_sparse.compiler.building.library_cache import ANSWER_BYTES
from tvm_sparse.frontend.passes.relax_graph import constants_bytes
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.runtime import artifact

pytestmark = pytest.mark.usefixtures("unoptimised")

X = torch.randn(1, 8, 20, 20)
COLLIDING = (
    [167.0, 202.125, 207.5, 83.25, 95.875, 47.875, 17.25, 90.0],
    [183.125, 206.25, 30.625, 88.375, 41.625, 78.875, 186.5, 31.125],
)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TVM_SPARSE_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "kernels"


@pytest.fixture
def builds(monkeypatch):
    """How often TVM compiled a model."""
    found, real = [], build_plan.compiled_module
    monkeypatch.setattr(build_plan, "compiled_module", lambda *words: found.append(1) or real(*words))
    return found


def make(seed=0, bias=1.0):
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()
    with torch.no_grad():
        for each in (module[0], module[2]):
            each.weight *= torch.rand_like(each.weight) < 0.1
            each.bias += bias
    return module


def check(module, compiled):
    torch.testing.assert_close(compiled(X), module(X).detach(), rtol=1e-4, atol=1e-4)


def test_the_same_model_is_there_at_once(builds, tmp_path):
    module = make()
    first = build_model.compile(module, X)
    again = build_model.compile(module, X)
    assert len(builds) == 1
    assert again.report() == first.report()
    check(module, first)
    check(module, again)
    # Both can be kept, and loaded, as any other.
    for name, model in (("first", first), ("again", again)):
        check(module, artifact.load(artifact.save(model, tmp_path / name)))


def test_without_a_folder_for_temporary_files_it_is_compiled_into_memory(home, tmp_path, monkeypatch):
    """As where the disk is full, or nothing may be executed there; what is in the cache is not lost."""
    module = make()
    build_model.compile(module, X)
    kept = {path.name for path in home.iterdir()}
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.warns(UserWarning, match="compiled into memory: TMPDIR: no temporary folder can be made"):
        compiled = build_model.compile(module, X)
    check(module, compiled)
    assert kept == {path.name for path in home.iterdir()}


def test_the_room_that_constants_take_is_known():
    """Of weights and biases, float32 each."""
    prepared = prepare(make(), X)
    assert constants_bytes(prepared.mod) == 4 * (8 * 8 * 9 + 8 + 4 * 8 + 4)


@pytest.mark.parametrize("other", [make(seed=1), make(bias=2.0)], ids=["weights", "biases"])
def test_another_model_is_another(builds, other):
    build_model.compile(make(), X)
    compiled = build_model.compile(other, X)
    assert len(builds) == 2
    check(other, compiled)


def test_biases_that_a_table_s_hash_takes_for_the_same_are_another(builds):
    """TVM's structural hash is the same for these two."""
    for bias in COLLIDING:
        module = make()
        with torch.no_grad():
            module[0].bias.copy_(torch.tensor(bias))
        check(module, build_model.compile(module, X))
    assert len(builds) == 2


def test_a_library_that_gives_something_else_is_built_again(builds, home):
    module = make()
    build_model.compile(module, X)
    other = build_model.compile(make(seed=1), X)
    (*_, mine) = sorted(home.iterdir(), key=lambda path: -path.stat().st_mtime)
    # As if an update of the machine had changed what the code computes.
    cache = KernelCache(home, 1 << 40)
    cache.write(mine.name, cache.read(mine.name)[:ANSWER_BYTES] + other.library.content())
    with pytest.warns(UserWarning, match="gives another result than when it was compiled"):
        check(module, build_model.compile(module, X))
    check(module, build_model.compile(module, X))
    assert len(builds) == 3


def test_a_library_that_cannot_be_loaded_is_built_again(builds, home):
    module = make()
    build_model.compile(module, X)
    (mine,) = home.iterdir()
    cache = KernelCache(home, 1 << 40)
    cache.write(mine.name, cache.read(mine.name)[:ANSWER_BYTES] + b"no library")
    check(module, build_model.compile(module, X))
    assert len(builds) == 2


def test_other_decisions_are_another(builds, tmp_path):
    build_model.compile(make(), X)
    build_model.compile(make(), X, log=tmp_path / "none.jsonl", predict=False)
    assert len(builds) == 2


def test_a_damaged_library_is_built_again(builds, home):
    module = make()
    build_model.compile(module, X)
    (largest,) = sorted(home.iterdir(), key=lambda path: -path.stat().st_size)[:1]
    largest.write_bytes(largest.read_bytes()[:-100])
    check(module, build_model.compile(module, X))
    assert len(builds) == 2


def test_what_was_wrong_is_not_kept(builds, monkeypatch, home):
    monkeypatch.setattr("tvm_sparse.compiler.building.verify._Case.worst_error", lambda *_: np.inf)
    build_model.compile(make(), X)
    assert not list(home.iterdir())


def test_without_a_linker_code_is_made_in_memory(monkeypatch, home, tmp_path):
    def fail(*_words, **_settings):
        raise RuntimeError("no compiler")

    monkeypatch.setattr("tvm.runtime.Executable.export_library", fail)
    module = make()
    check(module, build_model.compile(module, X))
    assert not list(home.iterdir())


def test_nothing_is_kept_where_nothing_may_be(builds, monkeypatch, home):
    monkeypatch.setenv("TVM_SPARSE_CACHE_MIB", "0")
    for _ in range(2):
        build_model.compile(make(), X)
    assert len(builds) == 2 and not home.exists()
