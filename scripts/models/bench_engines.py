"""Time engines that run one ONNX file on one core: each a process of its own, in turns.

    python scripts/models/bench_engines.py pruned.onnx pruned.sparse --core 1 --python deepsparse=other/bin/python

An engine runs in this Python unless ``--python`` names another's: DeepSparse 1.8.0 needs NumPy below 2, and MNN
installs packages as it starts. MNN runs what ``mnnconvert -f ONNX --modelFile pruned.onnx --MNNModel pruned.mnn
--bizCode x --detectSparseSpeedUp`` made beside the model. Prints medians of all calls, the least over rounds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ENGINES = ("tvm-sparse", "onnxruntime", "openvino", "openvino-f32", "deepsparse", "mnn")


def call_of(engine: str, model: Path, artifact: Path) -> Callable[[], Any]:
    """A call of the model with one random image."""
    import numpy as np

    x = np.random.default_rng(0).standard_normal((1, 3, 224, 224), np.float32)
    if engine == "tvm-sparse":
        import tvm_sparse

        ours = tvm_sparse.load(artifact)
        return partial(ours, x)
    if engine == "onnxruntime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        feed = {session.get_inputs()[0].name: x}
        return lambda: session.run(None, feed)
    if engine.startswith("openvino"):
        import openvino

        options = {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY"}
        options |= {"INFERENCE_PRECISION_HINT": "f32"} if engine.endswith("f32") else {}
        request = openvino.Core().compile_model(str(model), "CPU", options).create_infer_request()
        return partial(request.infer, {0: x})
    if engine == "deepsparse":
        import deepsparse

        compiled = deepsparse.compile_model(str(model), 1, num_cores=1)
        return partial(compiled.run, [x])
    import MNN

    file = str(model.with_suffix(".mnn"))
    runtime = MNN.nn.create_runtime_manager(({"backend": "CPU", "precision": "high", "numThread": 1},))
    network = MNN.nn.load_module_from_file(file, [], [], runtime_manager=runtime)
    given = MNN.expr.const(x, list(x.shape), MNN.expr.NCHW)
    return lambda: network.forward([given])[0].read()  # noqa: PLW0108


def median_ms(call: Callable[[], Any], seconds: float) -> float:
    """Of calls for so long."""
    for _ in range(4):
        call()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def main() -> None:
    """Time the engines that can be had."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="ONNX file with one input of (1, 3, 224, 224)")
    parser.add_argument("artifact", type=Path, help="what tvm-sparse compile made of it for one thread")
    parser.add_argument("--engines", default=",".join(ENGINES), help="default: %(default)s")
    parser.add_argument("--python", action="append", default=[], help="ENGINE=PATH; may be repeated")
    parser.add_argument("--core", type=int, default=1, help="that all run on (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.5, help="a process (default: %(default)s)")
    arguments = parser.parse_args()
    pythons = dict(each.split("=", 1) for each in arguments.python)
    found: dict[str, float] = {}
    for _ in range(arguments.rounds):
        for engine in arguments.engines.split(","):
            work = [engine, str(arguments.model), str(arguments.artifact), str(arguments.seconds)]
            command = [pythons.get(engine, sys.executable), __file__, "--worker", *work]
            done = subprocess.run(
                command,
                check=False,
                capture_output=True,
                text=True,
                preexec_fn=lambda: os.sched_setaffinity(0, {arguments.core}),
            )
            if done.returncode:
                print(f"{engine}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
            else:
                found[engine] = min(found.get(engine, float("inf")), json.loads(done.stdout.split()[-1]))
    for engine, ms in sorted(found.items(), key=lambda each: each[1]):
        print(f"{engine}: {ms:.1f} ms")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        name, file, folder, duration = sys.argv[2:]
        print(median_ms(call_of(name, Path(file), Path(folder)), float(duration)))
    else:
        main()
