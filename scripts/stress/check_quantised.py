"""Compare networks in the forms that ONNX Runtime's quantiser writes with ONNX Runtime, code by code.

    python scripts/stress/check_quantised.py --workers 8 -o quantised.jsonl
    python scripts/stress/check_quantised.py --networks resnet18 --files text.onnx:1x3x48x192

Ten networks of torchvision, with random weights of which 80% are zero in fours of channels, and float files of one
input, are quantised as QDQ and as QOperator, with a scale for each layer and for each filter. Of each, a line of JSON:
how far outputs are from ONNX Runtime's at most, in steps, the smallest differences between two of its numbers, where it
runs the file as it is and where it fuses first; and how far these two are from each other. Ends with 1 where outputs
are more than a step, and more than these two, from the nearer one.
"""

import argparse
import itertools
import json
import logging
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
import onnxruntime
from onnxruntime import quantization
from onnxruntime.quantization.shape_inference import quant_pre_process

import tvm_sparse
from tvm_sparse.conv.structure import Structure
from tvm_sparse.conv.structured_mask import structured_mask

NETWORKS = (
    *("densenet121", "efficientnet_b0", "googlenet", "mnasnet0_5", "mobilenet_v2", "regnet_y_400mf", "resnet18"),
    *("resnext50_32x4d", "shufflenet_v2_x0_5", "squeezenet1_1"),
)
FORMS = tuple(itertools.product(("QDQ", "QOperator"), (False, True)))
IMAGE, ZEROS = 64, 0.8
PER_CHANNEL_OPSET = 13
# Inputs that ranges are found on, and that are compared.
SAMPLES, COMPARED = 4, 3


class _Reader(quantization.CalibrationDataReader):
    def __init__(self, feeds: Iterable[dict[str, np.ndarray]]):
        self._feeds = iter(feeds)

    def get_next(self) -> Any:
        return next(self._feeds, None)


def exported(name: str, path: Path) -> tuple[int, ...]:
    """Write a network of torchvision; the shape of its input."""
    import torch

    sys.path.append(str(Path(__file__).parents[1] / "models"))
    from check_torchvision import random_model

    torch.set_num_threads(1)
    model = random_model(name, IMAGE)
    for layer in model.modules():
        if isinstance(layer, torch.nn.Conv2d) and layer.weight.shape[1] % 4 == 0:
            mask = structured_mask(layer.weight.detach().abs().numpy(), Structure.named("channels4"), ZEROS)
            layer.weight.data *= torch.from_numpy(mask)
    shape = (1, 3, IMAGE, IMAGE)
    torch.onnx.export(model, (torch.zeros(shape),), str(path), dynamo=False, opset_version=13, input_names=["x"])
    return shape


def compared(job: tuple[str, str, bool]) -> dict[str, Any]:
    """What came of a network, by its name or as ``file:shape``, in a form."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    (name, form, per_channel), start = job, time.time()
    found: dict[str, Any] = {"network": Path(name.partition(":")[0]).stem, "form": form, "per_channel": per_channel}
    with tempfile.TemporaryDirectory() as folder:
        plain, ready, path = (Path(folder, f"{each}.onnx") for each in ("plain", "ready", "quantised"))
        if ":" in name:
            plain, shape = Path(name.partition(":")[0]), tuple(map(int, name.partition(":")[2].split("x")))
        else:
            shape = exported(name, plain)
        quant_pre_process(plain, ready, skip_symbolic_shape=True)
        given = _of_today(ready)
        feeds = [{given.name: sample(shape, seed)} for seed in range(SAMPLES + COMPARED)]
        kinds = {"activation_type": quantization.QuantType.QUInt8, "weight_type": quantization.QuantType.QInt8}
        reader, written = _Reader(feeds[:SAMPLES]), getattr(quantization.QuantFormat, form)
        quantization.quantize_static(ready, path, reader, quant_format=written, per_channel=per_channel, **kinds)
        model = tvm_sparse.compile(path, shapes={given.name: shape}, threads=1)
        found["kernels"] = dict(Counter(row["schedule"] for row in model.report()))
        steps = np.max(list(_steps(model, path, feeds[SAMPLES:])), axis=0)
        found |= dict(zip(("from_plain", "from_fused", "fused_from_plain"), steps.round(4).tolist(), strict=True))
    return found | {"seconds": round(time.time() - start, 1)}


def _of_today(path: Path) -> onnx.ValueInfoProto:
    """Bring a file to the opset in which a scale for each filter can be written; its input."""
    model = onnx.load(path)
    if model.opset_import[0].version < PER_CHANNEL_OPSET:
        onnx.save(onnx.version_converter.convert_version(model, PER_CHANNEL_OPSET), path)
    (given,) = model.graph.input
    return given


def sample(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """An input."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _steps(model: Any, path: Path, feeds: list[dict[str, np.ndarray]]) -> Iterator[list[float]]:
    """Of each output: ours from ONNX Runtime's on the file as it is, and as it is fused, and these, in steps."""
    sessions = []
    for level in (
        onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
        onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    ):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level, options.intra_op_num_threads = level, 1
        sessions.append(onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]))
    for feed in feeds:
        ours = model(*feed.values())
        ours = ours if isinstance(ours, (list, tuple)) else [ours]
        for own, plain, fused in zip(ours, *(each.run(None, feed) for each in sessions), strict=True):
            step = np.diff(np.unique(plain)).min(initial=np.inf)
            pairs = ((own, plain), (own, fused), (fused, plain))
            yield [float(np.abs(np.asarray(one) - other).max() / step) for one, other in pairs]


def is_right(found: dict[str, Any]) -> bool:
    """Whether outputs are as near to ONNX Runtime's as these are to each other, or within a step."""
    return min(found["from_plain"], found["from_fused"]) <= max(1.001, found["fused_from_plain"])


def main() -> int:
    """Compare all, in processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", default=NETWORKS)
    parser.add_argument("--files", nargs="*", default=[], help="FILE.onnx:SHAPE, such as text.onnx:1x3x48x192")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("-o", type=Path, dest="output", help="a file of lines of JSON, to which is added")
    arguments = parser.parse_args()
    jobs = [(name, *form) for name in (*arguments.networks, *arguments.files) for form in FORMS]
    wrong = 0
    with ProcessPoolExecutor(arguments.workers) as pool:
        for found in pool.map(compared, jobs):
            line = json.dumps(found)
            print(line, flush=True)
            if arguments.output is not None:
                with arguments.output.open("a") as file:
                    file.write(f"{line}\n")
            wrong += not is_right(found)
    print(f"{len(jobs) - wrong} of {len(jobs)} agree")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
