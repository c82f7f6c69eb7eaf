"""All networks of the zoo, exported; the C library under sanitizers with 16 threads, mutated plans, CMake, and C++."""

import os
import random
import shutil
import subprocess
from pathlib import Path

import exported
import index_models
import layer_models
import numpy as np
import pytest
import torch_networks
import zoo
from exported import changed, mutated, outputs_of

import tvm_sparse
from tvm_sparse.errors import ArtifactError, InputError, ModelError

pytestmark = pytest.mark.exhaustive

CASES = {**index_models.CASES, **layer_models.CASES}
# Ten that between them have most operators.
NETWORKS = ("resnet18", "mobilenet_v2", "shufflenet_v2", "densenet", "vit", "swin", "unet of transposed convolutions")
NETWORKS += ("recogniser with a GRU", "detector", "spatial transformer")
SANITIZERS = {"memory": "-fsanitize=address,undefined", "threads": "-fsanitize=thread"}
CPP = """\
#include "tvm_sparse.h"
#include <cstdio>
#include <vector>

int main(int, char **argv) {
  tvm_sparse_model *model = tvm_sparse_load(argv[1]);
  tvm_sparse_context *context = tvm_sparse_context_new(model, 0);
  std::vector<char> x(tvm_sparse_input(model, 0)->size_bytes), y(tvm_sparse_output(model, 0)->size_bytes);
  const void *inputs[] = {x.data()};
  void *outputs[] = {y.data()};
  int failed = tvm_sparse_run(context, inputs, outputs);
  std::fwrite(y.data(), 1, y.size(), stdout);
  tvm_sparse_context_free(context);
  tvm_sparse_free(model);
  return failed;
}
"""


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """A compiled model, its folder, and the file of its input."""
    model, folder, (x,) = exported.of_zoo("between", tmp_path_factory.mktemp("network"))
    x.tofile(folder / "x.raw")
    return model, folder, x


@pytest.fixture(scope="module")
def library(network, tmp_path_factory):
    return exported.shared(network[1], tmp_path_factory.mktemp("library") / "run.so")


def output_of(program, *arguments):
    return subprocess.run([program, *arguments], stdout=subprocess.PIPE, check=True, timeout=600).stdout


@pytest.mark.parametrize("name", zoo.TORCH)
def test_every_network_of_the_zoo(name, tmp_path):
    model, folder, inputs = exported.of_zoo(name, tmp_path)
    files = [tmp_path / f"{index}.raw" for index in range(len(inputs))]
    for path, value in zip(files, inputs, strict=True):
        value.tofile(path)
    program = exported.build(folder, tmp_path / "main")
    assert output_of(program, folder / "model.plan", *files) == b"".join(
        each.tobytes() for each in outputs_of(model, inputs)
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name, library, tmp_path):
    """Also with a batch of threads that does not divide anything."""
    module, x = torch_networks.network(name)
    inputs = [x.numpy()]
    model, folder = exported.made(module, inputs, tmp_path)
    got = exported.called(library, folder / "model.plan", model, inputs, threads=3)
    for output, want in zip(got, outputs_of(model, inputs), strict=True):
        np.testing.assert_array_equal(output, want)


@pytest.mark.parametrize("name", CASES)
def test_operators_that_read_where_inputs_say(name, library, tmp_path):
    """Same results, and the same sentence where an index is out of range; what sorts is refused."""
    rng, case = np.random.default_rng(0), CASES[name]()
    try:
        model = tvm_sparse.compile(*case.source(), target=exported.TARGET)
        folder = tvm_sparse.export(tvm_sparse.save(model, tmp_path / "model.sparse"), tmp_path / "out")
    except (ModelError, ArtifactError) as error:
        assert isinstance(error, ModelError) or "operators that sort" in str(error)
        return
    for turn in range(6):
        inputs = [np.require(each.draw(rng, hostile=turn > 2), requirements="C") for each in case.inputs]
        found = exported.called(library, folder / "model.plan", model, inputs, threads=2)
        try:
            want = outputs_of(model, inputs)
        except InputError as error:
            assert found == str(error)
        else:
            assert [each.tobytes() for each in found] == [each.tobytes() for each in want]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("kind", SANITIZERS)
def test_sixteen_threads_under_sanitizers(network, tmp_path, kind, workers):
    """Right, without a leak, a race or an access outside, while models are loaded and freed."""
    _, folder, _ = network
    flags = (SANITIZERS[kind], "-g", "-fno-sanitize-recover=all")
    source = Path(exported.__file__).with_name("export_threads.c")
    program = exported.build(folder, tmp_path / "threads", *flags, sources=[source])
    assert output_of(program, folder / "model.plan", "1000", str(workers), folder / "x.raw") == b"0\n"


def test_mutated_plans_end_in_a_sentence(network, tmp_path):
    """A plan with a right SHA-256 and a wrong number is refused, or loaded, without an access outside of it."""
    _, folder, _ = network
    source = tmp_path / "load.c"
    source.write_text(exported.LOAD)
    flags = (SANITIZERS["memory"], "-g", "-fno-sanitize-recover=all")
    program, draw = exported.build(folder, tmp_path / "load", *flags, sources=[source]), random.Random(0)
    plans = [changed(folder, tmp_path / str(number), lambda plan: mutated(plan, draw)) for number in range(400)]
    # A workspace may be as large as 64 bits can say.
    environment = {**os.environ, "ASAN_OPTIONS": "allocator_may_return_null=1"}
    subprocess.run([program, *plans], check=True, timeout=600, env=environment)


@pytest.mark.parametrize("shared", ["ON", "OFF"])
def test_cmake(network, tmp_path, shared):
    if not shutil.which("cmake"):
        pytest.skip("cmake is not installed")
    model, folder, x = network
    for command in (["-S", folder, "-B", tmp_path, f"-DBUILD_SHARED_LIBS={shared}"], ["--build", tmp_path]):
        subprocess.run(["cmake", *command], check=True, stdout=subprocess.DEVNULL, timeout=600)
    assert output_of(tmp_path / "main", folder / "model.plan", folder / "x.raw") == outputs_of(model, [x])[0].tobytes()
    assert (tmp_path / "main").stat().st_size < 100_000


@pytest.mark.parametrize("flags", [(), (SANITIZERS["memory"], "-fno-sanitize-recover=all"), (SANITIZERS["threads"],)])
def test_cpp(network, tmp_path, flags):
    model, folder, x = network
    objects = []
    for source in sorted((folder / "tvm_sparse_run").glob("*.c")):
        objects.append(tmp_path / f"{source.stem}.o")
        subprocess.run(["gcc", "-c", *flags, source, "-o", objects[-1]], check=True)
    (tmp_path / "main.cc").write_text(CPP)
    warnings = ["-Wall", "-Wextra", "-Werror", f"-I{folder / 'tvm_sparse_run'}", "-rdynamic", *flags]
    words = [*warnings, tmp_path / "main.cc", *objects, "-ldl", "-lpthread", "-o", tmp_path / "main"]
    subprocess.run(["g++", *words], check=True)
    assert output_of(tmp_path / "main", folder / "model.plan") == outputs_of(model, [x * 0])[0].tobytes()
