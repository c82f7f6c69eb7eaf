"""What pruning costs and gains a network that people use: PP-OCRv4's recogniser of lines of text, from end to end.

    python scripts/study/trained_network.py -o docs/results/trained-recogniser --work /tmp/recogniser

The network comes from a wheel of RapidOCR, which `pip download` fetches; its answers are cut to printable ASCII, for
all rows alike. Its layers of 2,000 weights and more are pruned to 85% zeros, but depthwise ones and those of so few
pixels that 32 images do not tell what to keep. Then it learns from itself, on rendered lines that nobody has labelled.
What it reads is held against the text of rendered lines of other words: in the faces that it was taught with, and in
one that it has never seen.

Every file in the folder of work is kept, so a run that was stopped goes on, at most 50 steps back. OUTPUT.json and
OUTPUT.md are written. ``--measure`` only times, in more rounds: best on a quiet core,
``chrt -f 20 taskset -c 1 python ... --measure``.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from distillation import distil, prune_by_fitting, prune_by_magnitude
from onnx_module import OnnxModule
from recogniser import cut_to_ascii, downloaded, read
from text_images import HEIGHT, TRAINED_FONTS, WIDTH, lines
from trained_report import written

import tvm_sparse as ts
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.resolve import resolve_target

AMOUNT, STEPS, BATCH, FITTED_IMAGES = 0.85, 700, 8, 32
ROWS = ("original", "fitted", "magnitude", "fine-tuned")
SHAPE = (1, 3, HEIGHT, WIDTH)
# Name of a set of test lines -> its seed, and its faces.
TESTS: dict[str, tuple[int, list[Any]]] = {"known faces": (0, list(TRAINED_FONTS)), "a new face": (1, [None])}
ENGINES = ("onnxruntime", "tvm-sparse, dense", "tvm-sparse")


def make_networks(work: Path, steps: int, say: Callable[[str], None] = print) -> None:
    """Write the network of each of `ROWS` that is not there yet."""
    work.mkdir(parents=True, exist_ok=True)
    model = cut_to_ascii(downloaded(work))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    teacher = OnnxModule(model)

    def images(count: int, seed: int) -> torch.Tensor:
        return torch.tensor(lines("train", count, seed, list(TRAINED_FONTS))[0])

    def fitted() -> OnnxModule:
        return OnnxModule(onnx.load(work / "fitted.onnx"))

    makers: dict[str, Callable[[OnnxModule], None]] = {
        "original": lambda _: None,
        "fitted": lambda network: prune_by_fitting(network, teacher, images(FITTED_IMAGES, 10**6), AMOUNT),
        "magnitude": lambda network: prune_by_magnitude(network, AMOUNT, fitted()),
        "fine-tuned": lambda network: distil(
            network, teacher, lambda step: images(BATCH, step), steps, work / "checkpoint.pt", say
        ),
    }
    for name in ROWS:
        if not (path := work / f"{name}.onnx").exists():
            say(f"making {name}")
            network = fitted() if name == "fine-tuned" else OnnxModule(model)
            makers[name](network)
            onnx.save(network.write(model), path)


def session(path: Path) -> Callable[[np.ndarray], np.ndarray]:
    """A network in ONNX Runtime on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    run = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run
    return lambda x: run(None, {"x": x})[0]


def artifact(work: Path, name: str) -> Path:
    """The network of a row, compiled for one thread."""
    folder = work / f"{name}.sparse"
    if not folder.exists():
        ts.compile(work / f"{name}.onnx", threads=1, shapes={"x": SHAPE}).save(folder)
    return folder


def scores(found: list[str], texts: list[str]) -> dict[str, float]:
    """Shares of lines, and of characters, that are right, spaces apart, as PP-OCR counts."""
    pairs = [(one.replace(" ", ""), other.replace(" ", "")) for one, other in zip(found, texts, strict=True)]
    matched = sum(
        sum(block.size for block in SequenceMatcher(None, *pair, autojunk=False).get_matching_blocks())
        for pair in pairs
    )
    longest = sum(max(map(len, pair)) for pair in pairs)
    return {"lines": float(np.mean([one == other for one, other in pairs])), "characters": matched / longest}


def accuracy(work: Path, count: int) -> dict[str, Any]:
    """Of each row on each test, and how often the compiled network reads the same."""
    found: dict[str, Any] = {name: {} for name in ROWS}
    for test, (seed, fonts) in TESTS.items():
        images, texts = lines("test", count, seed, fonts)
        for name in ROWS:
            answers = read(session(work / f"{name}.onnx"), images)
            found[name][test] = scores(answers, texts)
        compiled = read(ts.load(artifact(work, ROWS[-1])), images)
        found[ROWS[-1]][test]["compiled_reads_the_same"] = float(np.mean(np.equal(answers, compiled)))
    return found


def sizes(path: Path) -> dict[str, int]:
    """Weights of the file and those that are not zero, layers and those that are mostly zeros."""
    arrays = [
        onnx.numpy_helper.to_array(node.attribute[0].t)
        for node in onnx.load(path).graph.node
        if node.op_type == "Constant"
    ]
    large = [each for each in arrays if each.size >= 16]
    layers = OnnxModule(onnx.load(path)).layers.values()
    return {
        "weights": sum(each.size for each in large),
        "nonzeros": int(sum(np.count_nonzero(each) for each in large)),
        "layers": len(layers),
        "pruned_layers": sum(bool((each.weight == 0).float().mean() > 0.5) for each in layers),
    }


def time_ms(engine: str, work: Path, seconds: float) -> float:
    """The median of calls for so long, in this process."""
    calls: dict[str, Callable[[], Any]] = {
        "onnxruntime": lambda: session(work / "fine-tuned.onnx"),
        "tvm-sparse, dense": lambda: ts.load(artifact(work, "original")),
        "tvm-sparse": lambda: ts.load(artifact(work, "fine-tuned")),
    }
    call = calls[engine]()
    x = np.random.default_rng(0).uniform(-1, 1, SHAPE).astype(np.float32)
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call(x)
        times.append(time.perf_counter() - start)
    return statistics.median(times[3:]) * 1e3


def measured(work: Path, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Milliseconds of each engine, one process a round, in turns."""
    found: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    for _ in range(rounds):
        for engine in ENGINES:
            words = [sys.executable, __file__, "--work", str(work), "--worker", engine, "--seconds", str(seconds)]
            done = subprocess.run(words, check=True, capture_output=True, text=True)
            found[engine].append(float(done.stdout.split()[-1]))
    return found


def main() -> None:
    """Make, judge and time the networks, as far as that is still to do."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("trained-recogniser"), help="without suffix")
    parser.add_argument("--work", type=Path, required=True, help="folder for the wheel, networks and artifacts")
    parser.add_argument("--steps", type=int, default=STEPS, help="of fine-tuning (default: %(default)s)")
    parser.add_argument("--lines", type=int, default=1000, help="of each test (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.6, help="of timing, a process (default: %(default)s)")
    parser.add_argument("--measure", action="store_true", help="only time, in more rounds")
    parser.add_argument("--worker", choices=ENGINES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print(time_ms(arguments.worker, arguments.work, arguments.seconds))
        return
    results = arguments.output.with_suffix(".json")
    document = json.loads(results.read_text()) if results.exists() else {}
    if not arguments.measure:
        make_networks(arguments.work, arguments.steps)
        document["networks"] = {name: sizes(arguments.work / f"{name}.onnx") for name in ROWS}
        document["accuracy"] = accuracy(arguments.work, arguments.lines)
        document["made"] = {"zeros": AMOUNT, "steps": arguments.steps, "batch": BATCH, "test_lines": arguments.lines}
        artifact(arguments.work, ROWS[0])
        document.pop("time_ms", None)
    before = document.get("time_ms", {engine: [] for engine in ENGINES})
    times = measured(arguments.work, arguments.rounds, arguments.seconds)
    document["time_ms"] = {engine: before[engine] + times[engine] for engine in ENGINES}
    document["machine"] = fingerprint_of(resolve_target("cpu", 1)) | {"onnxruntime": onnxruntime.__version__}
    results.write_text(json.dumps(document, indent=1) + "\n")
    arguments.output.with_suffix(".md").write_text(written(document))


if __name__ == "__main__":
    main()
