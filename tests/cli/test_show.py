"""``show``: every stage of a layer's kernel, with its weights as constants, and what it says of bad arguments."""

import io
import json
import re

import numpy as np
import onnx
import pytest
import tvm_ffi
import zoo
from factories import make_record
from rich.console import Console

from tvm_sparse.cli import main
from tvm_sparse.cli.commands import show
from tvm_sparse.codegen import lowering
from tvm_sparse.codegen.cuda.nvcc import source_only
from tvm_sparse.codegen.kernel_stages import stage_names, stages
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.display.consoles import result_console
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.schedules import FAMILIES
from tvm_sparse.schedules.lookup import find_space, make_kernel
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.resolve import resolve_target

SPEC = ConvSpec(n=1, c=2, h=8, w=8, k=4, r=3, s=3, padding=(1, 1, 1, 1), relu=True)
TARGETS = {"cpu": '{"kind":"llvm","mcpu":"x86-64-v3","num-cores":1}', "cuda": '{"kind":"cuda","arch":"sm_90"}'}
# How a constant factor is written, by stage.
FACTOR = {
    "folded": r"\* (?:T\.Broadcast\()?T\.float32\((-?[\d.]+)\)",
    "cuda": r"\* (-?0x[\da-f.]+p[+-]\d+)f",
    "llvm": r"(?:\[|, )float (-?[\d.]+e[+-]\d+)",
}


def make_weight():
    """Every fifth weight is not zero, and each has a value of its own."""
    values = np.arange(72).reshape(SPEC.weight_shape)
    return np.where(values % 5 == 1, values + 2, 0).astype(np.float32)


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """No log lies in the folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The path of a model with the layers ``body`` and ``head``."""
    path = tmp_path_factory.mktemp("model") / "two.onnx"
    nodes = [
        ("Conv", ["x", "body.weight"], ["t"], {"pads": [1, 1, 1, 1]}),
        ("Relu", ["t"], ["r"], {}),
        ("Conv", ["r", "head.weight"], ["y"], {}),
    ]
    weights = {"body.weight": make_weight(), "head.weight": np.ones((2, 4, 1, 1), np.float32)}
    onnx.save(zoo.onnx_model(nodes, weights, {"x": SPEC.input_shape}, {"y": (1, 2, 8, 8)}), path)
    return path


def call(model, *words):
    return main.main(["show", str(model), "--layer", "body", *map(str, words)])


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("stage", ["te", "scheduled", "folded", "source"])
def test_every_stage_of_a_folded_layer(kind, stage, model, capsys):
    stage = {"cpu": "llvm", "cuda": "cuda"}[kind] if stage == "source" else stage
    assert call(model, "--target", TARGETS[kind], "--schedule", f"folded_{kind}", "--stage", stage) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    mark = {"cuda": "//", "llvm": ";"}.get(stage, "#")
    assert lines[0] == f"{mark} layer body: 1x2x8x8, 4x3x3"
    assert lines[1] == f"{mark} density 0.208, 15 of 72 weights, unstructured"
    assert lines[2].startswith(f"{mark} schedule folded_{kind}:") and lines[2].endswith(", default decisions")
    assert lines[3] == f"{mark} chosen because: --schedule asks for it"
    assert ("weight: T.Buffer((4, 2, 3, 3)" in text) == (stage == "te")
    assert ("tvm_sparse.fold" in text) == (stage == "scheduled")
    if stage in FACTOR:
        found = {float.fromhex(each) if "x" in each else float(each) for each in re.findall(FACTOR[stage], text)}
        weight = make_weight()
        assert found == set(weight[weight != 0].tolist())


@pytest.mark.parametrize(
    ("kind", "schedule", "reason", "line"),
    [
        ("cpu", "dense_cpu:", "no record for this shape", "define "),
        ("cuda", "folded_cuda:", "predicted: folded_cuda:", 'extern "C" __global__ '),
    ],
)
def test_without_a_log_it_is_the_source_of_what_compile_takes(kind, schedule, reason, line, model, capsys):
    assert call(model, "--target", TARGETS[kind]) == 0
    text = capsys.readouterr().out
    assert f" schedule {schedule}" in text and f" chosen because: {reason}" in text
    assert line in text


def test_with_a_log_it_is_the_kernel_that_compile_takes(model, capsys):
    target = resolve_target(TARGETS["cpu"])
    pattern = SparsityPattern.of(make_weight())
    machine = {"target": {}, "fingerprint": fingerprint_of(target)}
    space = find_space("folded_cpu", SPEC, pattern, target)
    record = make_record(spec=SPEC, pattern=pattern, schedule=space.name, decisions=space.starts()[0], **machine)
    TuningLog("my.jsonl").append(record)
    words = ("--target", TARGETS["cpu"], "--stage", "folded", "--json")
    assert call(model, *words, "--tuning-records", "my.jsonl") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["layer"], found["convolution"], found["schedule"]) == ("body", SPEC.key, space.name)
    assert (found["nnz"], found["structure"], found["stage"]) == (15, "unstructured", "folded")
    assert found["reason"].startswith(f"{space.name} is 2.52x faster than dense")
    kernel = make_kernel("folded_cpu", SPEC, make_weight(), target)
    assert found["text"] == stages(space, kernel, target)["folded"]()
    # Another schedule, whatever the log says.
    assert call(model, *words, "--tuning-records", "my.jsonl", "--schedule", "csr_cpu") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schedule"].startswith("csr_cpu:") and found["decisions"] is None


@pytest.mark.parametrize("family", FAMILIES, ids=lambda each: each.name)
def test_every_family_can_be_asked_for_where_another_is_predicted(family, model, capsys):
    kind = {"llvm": "cpu"}.get(family.target, family.target)
    assert call(model, "--target", TARGETS[kind], "--schedule", family.name, "--stage", "scheduled") in (0, 2)
    out, err = capsys.readouterr()
    if err:
        assert err.startswith(f"tvm-sparse: schedule {family.name}: ") and not out
    else:
        assert out.splitlines()[2].endswith(", default decisions") and f" schedule {family.name}" in out


@pytest.mark.parametrize(
    ("decisions", "text"),
    [({"filters": 8, "order": "rotated"}, "filters 8, order rotated"), ([[], []], "decisions of a MetaSchedule trace")],
)
def test_the_head_names_decisions_and_cannot_leave_its_comment(decisions, text, capsys):
    known = {"shape": "", "density": 1.0, "nnz": 1, "weights": 1, "structure": "dense", "reason": "", "stage": "te"}
    show.show({**known, "layer": "a\nb", "schedule": "s", "decisions": decisions, "text": "text"}, result_console())
    *head, last = capsys.readouterr().out.splitlines()
    assert head[0] == "# layer a\\nb: " and head[2] == f"# schedule s, {text}"
    assert all(line.startswith("# ") for line in head) and last == "text"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--layer", "nonsense"], "--layer: not in the model, found nonsense; allowed: body, head"),
        (
            ["--stage", "cuda"],
            "--stage: target llvm has no such stage, found cuda; allowed: te, scheduled, folded, llvm",
        ),
        (
            ["--stage", "llvm", "--target", "cuda"],
            "--stage: target cuda has no such stage, found llvm; allowed: te, scheduled, folded, cuda",
        ),
        (["--schedule", "nonsense"], "schedule nonsense: unknown for target llvm; allowed: folded_cpu, "),
        (["--schedule", "generated_cpu"], "schedule generated_cpu: has no default decisions"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistakes_are_one_sentence(words, sentence, model, capsys):
    assert call(model, *words) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"tvm-sparse: {sentence}") and err.count("\n") == 1


@pytest.mark.parametrize("words", [[], ["m.onnx", "--layer", "a", "--stage", "ptx"]])
def test_wrong_usage(words):
    with pytest.raises(SystemExit) as ended:
        main.main(["show", *words])
    assert ended.value.code == 2


@pytest.mark.parametrize("kind", TARGETS)
def test_the_source_is_what_a_build_makes(kind):
    target = resolve_target(TARGETS[kind])
    name = f"folded_{kind}"
    kernel = make_kernel(name, SPEC, make_weight(), target)
    texts = stages(find_space(name, SPEC, SparsityPattern.of(make_weight()), target), kernel, target)
    assert list(texts) == stage_names(target)
    built = lowering.build(kernel.func, target)
    source = built.imports[0].inspect_source() if kind == "cuda" else built.inspect_source("ll")
    # A line for each instruction, which LLVM prints as one.
    source = source.replace("\\0A", "\n    ")
    # LLVM's notes on aliasing are named after addresses.
    shown, source = (re.sub('"0x[0-9a-f]+', "", each) for each in (list(texts.values())[-1](), source))
    if kind == "cuda":
        assert shown == source
    else:
        assert "main_compute_" in shown and "__tvm_ffi_" not in shown
        assert all(each in source for each in shown.split("\n\n"))


def test_no_compiler_is_called_for_a_source():
    name = "tvm_callback_cuda_compile"
    before = tvm_ffi.get_global_func(name, allow_missing=True)
    with source_only():
        assert bytes(tvm_ffi.get_global_func(name)("nonsense")) == b""
    assert tvm_ffi.get_global_func(name, allow_missing=True) == before


def test_without_a_layer_it_is_the_heaviest_and_a_terminal_shows_its_beginning(model, capsys):
    assert main.main(["show", str(model), "--stage", "te", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["layer"] == "body"
    known = {"shape": "", "density": 1.0, "nnz": 1, "weights": 1, "structure": "dense", "reason": "", "stage": "te"}
    document = {**known, "layer": "a", "schedule": "s", "decisions": None, "text": "line\n" * 200}
    for is_terminal, shown in ((True, show.MOST_LINES), (False, 200)):
        console = Console(file=io.StringIO(), force_terminal=is_terminal)
        show.show(document, console)
        assert console.file.getvalue().count("line\n") == shown
        assert (
            console.file.getvalue().endswith("# 50 more lines: send the output to a file or a pager for all\n")
            == is_terminal
        )
