"""The recipes of docs/architecture.md, applied to a copy of the tree and used there as a stranger would.

Blocks of Python and C++ are files, called as their first line says; blocks of diff are changes of files that exist.
What uses them are the functions `use_*`, all in a process that imports the copy.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx_zoo
import pytest
from data_emulator import compiled, launched
from random_convolutions import Case

from benchmarks.gpu.case import bench_case
from benchmarks.gpu.contenders import Settings
from tvm_sparse.autotune.layer import tune_layer
from tvm_sparse.autotune.options import TuneOptions
from tvm_sparse.autotune.search.evolutionary_search import SharedModel, SpaceSearch
from tvm_sparse.compiler.pipeline import Options, decide_together, passes
from tvm_sparse.compiler.plan.kernel_selection import decide
from tvm_sparse.conv import reference
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import BuildError, ModelError, UsageError
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.measure.outcome import MeasureOptions
from tvm_sparse.schedules.lookup import find_space, make_kernel, schedule_names, spaces_of
from tvm_sparse.scheduling.cpu.fit import CpuFit
from tvm_sparse.scheduling.cuda.library.parameters import arguments
from tvm_sparse.scheduling.kernel import apply_decisions
from tvm_sparse.target.cpu_info import CpuInfo
from tvm_sparse.target.resolve import resolve_target

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(python|cpp|diff)\n(?:#|//) (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGE = (ROOT / "docs" / "architecture.md").read_text()

SPEC = ConvSpec(2, 8, 12, 12, 12, 3, 3, padding=(1, 1, 1, 1), bias=True, relu=True)
WEIGHT = np.where(np.random.default_rng(0).random(SPEC.weight_shape) < 0.2, 1.5, 0).astype(np.float32)
PATTERN = SparsityPattern.of(WEIGHT)
CPU = '{"kind":"llvm","num-cores":2,"opt-level":0}'
QUICK = MeasureOptions(repeats=2, min_repeat_ms=1.0, builders=1)


def apply(page, tree):
    """Make the files and changes of a page in `tree`; returns the names of these files."""
    names = []
    for language, name, code in BLOCK.findall(page):
        path = tree / name
        if language != "diff":
            assert not path.exists(), name
            path.write_text(code)
        else:
            for hunk in code.split("@@\n")[1:]:
                old, new = (
                    "".join(line[1:] for line in hunk.splitlines(True) if line[0] in signs) for signs in (" -", " +")
                )
                # A line may be shown up to where it changes.
                old, new = old.rstrip("\n"), new.rstrip("\n")
                text = path.read_text()
                assert text.count(old) == 1, f"{name}: {old}"
                path.write_text(text.replace(old, new))
        names.append(name)
    return names


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the package with the page applied to it."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("tvm_sparse", "schedules", "scripts/benchmarks"):
        shutil.copytree(ROOT / name, tree / name, symlinks=True)
    assert len(apply(PAGE, tree)) == len(re.findall(r"^```(?:python|cpp|diff)$", PAGE, re.MULTILINE))
    return tree


RECIPES = ("schedule_space", "cuda_family", "machine", "onnx_operator", "relax_pass", "plan_pass", "target", "baseline")
USE_ALL = """
import json, traceback
from tvm_sparse.frontend.optional_imports import without_torch
with without_torch():
    import tvm_sparse, test_recipes
failures = {}
for recipe in test_recipes.RECIPES:
    try:
        getattr(test_recipes, f"use_{recipe}")()
    except BaseException:
        failures[recipe] = traceback.format_exc()
print(json.dumps({"used": tvm_sparse.__file__, "failures": failures}))
"""


@pytest.fixture(scope="module")
def found(tree, tmp_path_factory):
    """The package that a process used, and what failed in it, by recipe."""
    folder = tmp_path_factory.mktemp("recipes")
    folders = [str(tree), str(tree / "scripts"), *sys.path]
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "TMPDIR": str(folder)}
    command = [sys.executable, "-c", USE_ALL]
    done = subprocess.run(command, cwd=folder, env=path, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe(tree, found, recipe):
    assert Path(found["used"]).is_relative_to(tree)
    assert recipe not in found["failures"], found["failures"][recipe]


def worst(kernel, target):
    return Case(SPEC, WEIGHT, 1, integers=False).worst(kernel, target)


def tuned(target, schedule, trials):
    """Records of a schedule that the tuner measured, all verified by it."""
    options = TuneOptions(trials=trials, schedules=(schedule,), measure=QUICK)
    records = [each for each in tune_layer(SPEC, WEIGHT, target, options) if each.schedule == schedule]
    assert [each.status for each in records] == ["ok"] * len(records), [each.cause for each in records]
    assert all(0 <= each.error <= 1 and each.times_us for each in records)
    return records


def use_schedule_space():
    """It is found, refuses what it says, is searched and tuned, and its kernels are right."""
    target = resolve_target(CPU)
    space = find_space("simple_cpu", SPEC, PATTERN, target)
    assert space.choices.keys() == {"rows", "filters"}
    default = space.starts()[0]
    assert default == {"rows": 4, "filters": 6}
    many = ConvSpec(1, 64, 5, 5, 64, 3, 3)
    found, reasons = spaces_of(many, SparsityPattern.of(np.ones(many.weight_shape, np.float32)), target, ["simple_cpu"])
    assert not found and reasons == {"simple_cpu": "36864 non-zeros, at most 2000 are folded"}

    proposed = SpaceSearch(space, target, SharedModel(1), 1, trials=16, batch=16).propose()
    for name in default:
        assert {each[name] for each in proposed} - {default[name]}, f"no other {name} is proposed"
    for decisions in (None, *proposed[:4]):
        assert worst(apply_decisions(space, WEIGHT, decisions), target) <= 1
    sources = {apply_decisions(space, WEIGHT, each).func.script() for each in proposed}
    assert len(sources) == len(proposed), "decisions change nothing"
    with pytest.raises(BuildError, match="decision rows does not fit, found 5; allowed: one of 1, 2, 3, 4, 6, 12"):
        make_kernel("simple_cpu", SPEC, WEIGHT, target, {**default, "rows": 5})

    # Dense kernels come first, some of each space.
    records = tuned(target, "simple_cpu", trials=6)
    assert len(records) > 1 and records[0].decisions == default and records[1].decisions != default
    again = TuningRecord.from_line(records[1].to_line())
    assert again == records[1]
    assert worst(make_kernel(again.schedule, SPEC, WEIGHT, target, again.chosen), target) <= 1


def use_cuda_family():
    """It is found and refuses what it says; its kernel, on a CPU, is right for each decision and launched with it."""
    from tvm_sparse.schedules.simple_cuda import LIBRARY, PARAMETERS

    target = resolve_target('{"kind":"cuda","arch":"sm_90"}')
    spec = ConvSpec(2, 8, 6, 6, 12, 1, 1, bias=True, relu=True)
    weight = WEIGHT[:, :, :1, :1]
    pattern = SparsityPattern.of(weight)
    _, reasons = spaces_of(SPEC, PATTERN, target, ["simple_cuda"])
    assert reasons == {"simple_cuda": "it is for 1x1 convolutions in float32, of one group, on Hopper"}
    space, emulated = find_space("simple_cuda", spec, pattern, target), compiled("", LIBRARY)
    case = Case(spec, weight, 1, integers=False)
    inputs = reference.random_arguments(spec, 1)
    for decisions in space.starts():
        kernel, tiling = apply_decisions(space, weight, decisions), space.tiling(decisions)
        (packed,) = kernel.constants
        integers = arguments(PARAMETERS, tiling, stride=packed.shape[1])
        launch = (spec.k, 1, 1, tiling.threads, 1)
        output = launched(emulated, LIBRARY, "tvm_sparse_simple", spec, packed, inputs, integers, *launch)
        assert case.error(inputs, output) <= 1
        assert 'T.call_packed("tvm_sparse_simple"' in kernel.func.script()
    assert len({apply_decisions(space, weight, each).func.script() for each in space.starts()}) == 4


def determinants(shape):
    """Of random matrices, as an ONNX model that is prepared computes them, and as NumPy does."""
    x, y = (onnx.helper.make_tensor_value_info(name, 1, size) for name, size in (("x", shape), ("y", shape[:-2])))
    graph = onnx.helper.make_graph([onnx.helper.make_node("Det", ["x"], ["y"])], "determinants", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8)
    data = np.random.default_rng(0).random(shape, np.float32)
    with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
        onnx.save(model, file.name)
        return onnx_zoo.run_relax(prepare(file.name).mod, data)[0], np.linalg.det(data)


def use_onnx_operator():
    """What it says is computed, and what it does not is refused by name."""
    for shape in ((2, 2), (3, 5, 2, 2)):
        np.testing.assert_allclose(*determinants(shape), rtol=1e-4, atol=1e-5)
    with pytest.raises(ModelError, match="Det"):
        determinants((4, 3, 3))


def use_machine():
    """It has constants of its own, and others keep theirs."""
    of_neon, of_avx512 = (CpuFit.of(each) for each in (CpuInfo(4, "v"), CpuInfo(16, "zmm", True)))
    assert (of_neon.loading_cycles, of_avx512.loading_cycles) == (0.5, 0.25)


def prepared_of(nodes, weights, inputs, outputs):
    """An ONNX model, which is imported sooner than one of torch, and what `prepare` makes of it."""
    model = onnx_zoo.onnx_model(nodes, weights, inputs, outputs)
    with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
        onnx.save(model, file.name)
        return model, prepare(file.name)


def factors():
    """The multiplications left of a factor of 1 ahead of a convolution, and of one of 2."""
    nodes = [("Mul", ["x", "one"], ["a"], {}), ("Conv", ["a", "w"], ["b"], {}), ("Mul", ["b", "two"], ["y"], {})]
    one, two, weight = (np.full(shape, value, np.float32) for shape, value in (((1,), 1), ((1,), 2), ((4, 4, 1, 1), 3)))
    weights = {"one": one, "two": two, "w": weight}
    model, prepared = prepared_of(nodes, weights, {"x": onnx_zoo.X}, {"y": onnx_zoo.X})
    (x,) = onnx_zoo.inputs_of([onnx_zoo.X])
    (got,), (want,) = onnx_zoo.run_relax(prepared.mod, x), onnx_zoo.run_onnx(model, x)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    return prepared.mod.script().count("R.multiply")


def use_relax_pass():
    """It takes out the factor 1 alone; `test_without_the_recipes` says that nothing else does."""
    assert factors() == 1


def use_plan_pass():
    """It is run in its place, and changes what it says and nothing else."""
    rng = np.random.default_rng(0)
    weights = {f"w{c}": (rng.random((16, c, 3, 3)) < 0.05).astype(np.float32) for c in (3, 16)}
    nodes = [("Conv", ["x", "w3"], ["a"], {}), ("Conv", ["a", "w16"], ["y"], {})]
    _, prepared = prepared_of(nodes, weights, {"x": (1, 3, 16, 16)}, {"y": (1, 16, 12, 12)})
    target = resolve_target(CPU)
    names = [name for name, _ in passes(None, Options())]
    assert names[:2] == ["select", "dense_inputs"]
    alone = decide(prepared.layers, target, None, predict=True)
    assert {each.schedule for each in alone}.isdisjoint({"dense_cpu"})
    first, second = decide_together(prepared, target, None, predict=True)
    assert (first.schedule, str(first.reason)) == ("dense_cpu", "dense, because it reads 3 channels")
    assert second == alone[1]


def use_target():
    """It resolves and has a schedule; kernels are built and tuned, and are right."""
    target = resolve_target("c")
    assert target.kind.name == "c" and schedule_names(target) == ["dense_c"]
    records = tuned(target, "dense_c", trials=3)
    assert records[0].decisions == {"channels": 8} and records[0].fingerprint["kind"] == "c"


def use_baseline():
    """A benchmark verifies and times it."""
    settings = Settings(("kn2row",), 7, 0.1, 0, None, "progress", on_gpu=False)
    (result,) = bench_case(2, 1, (0.5,), [], settings, {}).contenders
    assert (result.family, result.variant, result.status, result.cause) == ("kn2row", "nchw", "ok", "")
    assert 0 < result.error <= 1 and result.final and min(result.cold_us) > 0


def test_without_the_recipes():
    assert CpuFit.of(CpuInfo(4, "v")).loading_cycles == 0.25
    assert factors() == 2
    with pytest.raises(ModelError, match="Det"):
        determinants((2, 2))
    with pytest.raises(UsageError, match="unknown target kind"):
        resolve_target("c")
    with pytest.raises(UsageError, match="schedule simple_cpu: unknown"):
        find_space("simple_cpu", SPEC, PATTERN, resolve_target(CPU))


def test_a_wrong_recipe_is_noticed(tmp_path):
    (tmp_path / "a.py").write_text("one = 1\n")
    with pytest.raises(AssertionError, match=r"a\.py: two = 2"):
        apply("```diff\n# a.py\n@@\n two = 2\n+three = 3\n```\n", tmp_path)
    with pytest.raises(AssertionError, match=r"a\.py"):
        apply("```python\n# a.py\none = 2\n```\n", tmp_path)
    apply("```diff\n# a.py\n@@\n one = 1\n+two = 2\n```\n", tmp_path)
    assert (tmp_path / "a.py").read_text() == "one = 1\ntwo = 2\n"
