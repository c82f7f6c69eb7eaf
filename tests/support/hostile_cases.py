"""Files, arguments and settings that mean harm, for each command of the command line.

They are used in a folder with `hostile.good_files`.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import malformed
from factories import sealed
from hostile_files import DIGITS, INPUTS, STRANGE, bomb, npz

from tvm_sparse.runtime.artifacts import manifest
from tvm_sparse.target.resolve import resolve_target, target_json

TARGET = '{"kind":"llvm","num-cores":1,"opt-level":0}'
# Values in the place of any other in JSON; those that Python's writer cannot write are put in as text.
RAW = {
    "@nan": "NaN",
    "@infinity": "-Infinity",
    "@large": "1e999",
    "@digits": DIGITS,
    "@deep": "[" * 10**5 + "]" * 10**5,
}
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 3, 2**31, 2**63, 2**70, 10**9, 0.5, 1e308, "", "x", "\ud800", "a\nb\x1b[31m", "../../etc"),
    *([], {}, [[]], [-1], [2**70] * 3, {"a": 1}, "llvm", "folded_cpu", "dense_cpu:rows"),
    *RAW,
)
NUMBERS = (
    "0",
    "-1",
    "1.5",
    "",
    "x",
    "1e9",
    DIGITS,
    str(2**63),
    str(10**18),
    "nan",
    "inf",
    "٣",
    "1,",
    ",",
    "1,0",
    "0x10",
)
SHAPES = ("x:1", "x:0", "x:", ":1", "x", f"x:{DIGITS}", "x:1,-1", "x:" + "1," * 5000 + "1", "x:1,4,9,1000000000000")
SETTINGS = ("TVM_SPARSE_CACHE_MIB", "TVM_SPARSE_COMPILERS", "TVM_SPARSE_HOME", "XDG_CACHE_HOME", "TVM_NUM_THREADS")


@dataclass(frozen=True)
class Case:
    """Words of a command line, in which ``{folder}`` is one of its own that `make` fills; `settings` are variables."""

    name: str
    words: tuple[str, ...]
    make: Callable[[Path], object] = lambda folder: None
    settings: dict[str, str] = field(default_factory=dict)


def mutated(choose: Callable, value: Any) -> str:
    """JSON with one to three of its values replaced by others, taken out or put in twice."""
    document = json.loads(json.dumps(value))
    for _ in range(choose((1, 1, 2, 3))):
        node = document
        while isinstance(node, dict | list) and node:
            key = choose(list(node) if isinstance(node, dict) else range(len(node)))
            if isinstance(node[key], dict | list) and node[key] and choose(range(4)):
                node = node[key]
                continue
            if choose(range(8)):
                node[key] = copy.deepcopy(choose(VALUES))
            else:
                del node[key]
            break
    return document


def text_of(document: Any) -> str:
    """As JSON, with `RAW` values as they are."""
    text = json.dumps(document)
    for mark, raw in RAW.items():
        text = text.replace(f'"{mark}"', raw)
    return text


# Commands with a place for a path, and the name that the file has there.
PATHS = {
    "model": ("m2.onnx", ("inspect", "{folder}/m2.onnx", "--target", TARGET)),
    "program": ("m2.pt2", ("inspect", "{folder}/m2.pt2", "--target", TARGET)),
    "records": ("l.jsonl", ("inspect", "m.onnx", "--target", TARGET, "--tuning-records", "{folder}/l.jsonl")),
    "packed records": ("l.jsonl.xz", ("logs", "stats", "{folder}/l.jsonl.xz")),
    "log to write": ("l.jsonl", ("tune", "m.onnx", "--target", TARGET, "--dry-run", "--output", "{folder}/l.jsonl")),
    "artifact": ("b.sparse", ("run", "{folder}/b.sparse")),
    "manifest": ("b.sparse/manifest.json", ("run", "{folder}/b.sparse")),
    "library": ("b.sparse/LIBRARY", ("run", "{folder}/b.sparse")),
    "input": ("x.npy", ("run", "a.sparse", "--input", "{folder}/x.npy")),
    "output": ("y.npz", ("run", "a.sparse", "--output", "{folder}/y.npz")),
    "merged": ("l2.jsonl", ("logs", "merge", "log.jsonl", "--output", "{folder}/l2.jsonl")),
}


def with_strange(name: str, make: Callable[[Path], object], folder: Path) -> None:
    """`make` in the place `name`, in a good artifact where that is within one."""
    place, _, inner = name.partition("/")
    if inner:
        (folder / place).mkdir()
        (library,) = Path("a.sparse").glob("model-*.so")
        for each in ("manifest.json", library.name):
            if inner not in (each, "LIBRARY"):
                (folder / place / each).write_bytes(Path("a.sparse", each).read_bytes())
        if inner == "LIBRARY":
            inner = library.name
            (folder / place / "manifest.json").write_bytes(Path("a.sparse/manifest.json").read_bytes())
    make(folder / place / inner if inner else folder / place)


JUNK = {"nested": {"a": [{"b": 1}]}, "text": "many", "list": [1, 2]}
TARGETS = (
    *({"kind": "llvm", "num-cores": cores} for cores in (-1, 0, 10**9, "many", 2.5, None, True, 2**70, [1])),
    *({"kind": kind} for kind in (None, 1, [], {}, "", "cuda -x", "\ud800")),
    *({"kind": "llvm", "mcpu": each} for each in ("", 5, "x" * 1000)),
    *({"kind": "llvm", "mtriple": each} for each in ("", "nonsense", 5)),
    *({"kind": "llvm", "mattr": each} for each in ("x", ["x"], ["+nonsense"], [5])),
    *({"kind": "llvm", "opt-level": each} for each in (-1, 99, "x")),
    *({"kind": "llvm", "vector-width": each} for each in (-1, 0, 2**31 - 1)),
    *({"kind": "llvm", "cl-opt": each} for each in (["-nonsense"], ["-unroll-threshold:uint=-5"], "x")),
    *({"kind": "llvm", name: "x"} for name in ("jit", "mabi", "mfloat-abi", "tag", "keys", "libs", "device", "model")),
    *({"kind": "cuda", "arch": each} for each in ("", "sm_", "sm_0", "sm_99999999999999999999", 90, None)),
    *({"kind": "cuda", "arch": "sm_90", "host": each} for each in ("llvm", {}, {"kind": "llvm", "num-cores": -1}, 5)),
    *({"kind": "llvm", **{name: value}} for name, value in JUNK.items()),
    *("[]", "{", "{}", "{" * 10**5, '{"kind":' * 10**5, '{"kind":NaN}', f'{{"kind":"llvm","num-cores":{DIGITS}}}'),
)


def named_cases() -> Iterator[Case]:
    """Each kind of harm in each place once."""
    for place, (name, words) in PATHS.items():
        for make in STRANGE:
            yield Case(f"{place}: {make.__name__}", words, partial(with_strange, name, make))
        strange = os.fsdecode(b"\xff\xfe" + os.fsencode(name.partition("/")[0]))
        yield Case(f"{place}: missing, no UTF-8", tuple(word.replace(name, strange) for word in words))
    for name, content in INPUTS.items():
        yield Case(
            f"input: {name}", PATHS["input"][1], lambda folder, content=content: (folder / "x.npy").write_bytes(content)
        )
    for target in TARGETS:
        text = target if isinstance(target, str) else json.dumps(target)
        yield Case(f"target: {text[:60]}", ("inspect", "m.onnx", "--target", text))
    for number in NUMBERS:
        yield Case(f"batch {number[:20]}", ("inspect", "m.onnx", "--target", TARGET, "--batch", number))
        yield Case(f"seed {number[:20]}", ("run", "a.sparse", "--seed", number))
        for setting in SETTINGS:
            yield Case(f"{setting}={number[:20]}", ("inspect", "m.onnx"), settings={setting: number})
    for shape in SHAPES:
        yield Case(f"shape {shape[:20]}", ("inspect", "m.onnx", "--target", TARGET, "--input-shape", shape))
    yield Case("packed records: bomb of lines", PATHS["packed records"][1], bomb)
    yield Case("packed records: bomb of one line", PATHS["packed records"][1], partial(bomb, data=b"x"))
    for name, content in {"a million bad lines": b"{}\n" * 10**6, "one deep line": RAW["@deep"].encode()}.items():
        words = ("logs", "stats", "{folder}/l")
        yield Case(f"records: {name}", words, lambda folder, content=content: (folder / "l").write_bytes(content))
    for command in (
        "logs merge log.jsonl --output {}l.jsonl",
        "run a.sparse --output {}y.npz",
        "compile m.onnx -o {}o",
    ):
        for place in ("/proc/self/", "/dev/full/", "/sys/", "/dev/full", "\udcff/"):
            yield Case(f"output of {command}: {place!r}", tuple(command.format(place).split()))


def _write_log(lines: list[str], folder: Path) -> None:
    (folder / "l.jsonl").write_text("".join(f"{line}\n" for line in lines), errors="surrogatepass")


def _write_artifact(document: Any, folder: Path) -> None:
    place = folder / "b.sparse"
    place.mkdir()
    for each in Path("a.sparse").iterdir():
        (place / each.name).write_bytes(each.read_bytes())
    with contextlib.suppress(TypeError, AttributeError):
        document["digest"] = manifest.digest(document)
    (place / "manifest.json").write_text(text_of(document))


ON_LOGS = (
    ("inspect", "m.onnx", "--target", TARGET, "--tuning-records", "{folder}/l.jsonl"),
    ("compile", "m.onnx", "--target", TARGET, "--tuning-records", "{folder}/l.jsonl", "-o", "{folder}/o"),
    ("show", "m.onnx", "--target", TARGET, "--tuning-records", "{folder}/l.jsonl", "--layer", "Conv_0"),
    ("tune", "m.onnx", "--target", TARGET, "--output", "{folder}/l.jsonl", "--dry-run"),
    *(("logs", action, "{folder}/l.jsonl") for action in ("stats", "best", "page", "validate")),
    *(("logs", action, "{folder}/l.jsonl", "--output", "{folder}/n.jsonl") for action in ("merge", "distill")),
)


def random_case(seed: int) -> Case:
    """A log, an artifact, an input or a target with something changed."""
    choose = random.Random(seed).choice
    kind = choose(("log", "log", "log", "artifact", "artifact", "input", "target"))
    name = f"{kind} {seed}"
    if kind == "log":
        lines = [json.loads(line) for line in Path("log.jsonl").read_text().splitlines()]
        changed = [sealed(mutated(choose, line)) if choose((True, False)) else json.dumps(line) for line in lines]
        unsealed = [text_of(mutated(choose, {k: v for k, v in line.items() if k != "zlib_crc32"})) for line in lines]
        return Case(name, choose(ON_LOGS), partial(_write_log, choose((changed, unsealed, changed + unsealed))))
    if kind == "artifact":
        document = mutated(choose, json.loads(Path("a.sparse/manifest.json").read_text()))
        return Case(name, ("run", "{folder}/b.sparse"), partial(_write_artifact, document))
    if kind == "input":
        good = Path("x.npy").read_bytes()
        content = malformed.mutated(choose, choose((good, npz("x.npy", good), npz("data.npy", good))))
        return Case(name, PATHS["input"][1], lambda folder: (folder / "x.npy").write_bytes(content))
    config = mutated(choose, target_json(resolve_target(choose((TARGET, '{"kind":"cuda","arch":"sm_90"}')))))
    return Case(name, ("inspect", "m.onnx", "--target", text_of(config)))
