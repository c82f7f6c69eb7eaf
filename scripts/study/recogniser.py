"""PP-OCRv4's recogniser of lines, from the wheel of RapidOCR (Apache-2.0), for printable ASCII characters alone."""

import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from text_images import CHARACTERS

WHEEL = "rapidocr-onnxruntime==1.4.4"
_FILE = "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx"


def downloaded(folder: Path) -> onnx.ModelProto:
    """The network as it is shipped: (N, 3, 48, W) to the probabilities (N, W / 8, 6625)."""
    if not list(folder.glob("rapidocr_onnxruntime*.whl")):
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), WHEEL], check=True
        )
    with zipfile.ZipFile(next(folder.glob("rapidocr_onnxruntime*.whl"))) as wheel:
        return onnx.load_from_string(wheel.read(_FILE))


def cut_to_ascii(model: onnx.ModelProto) -> onnx.ModelProto:
    """The network without its Chinese answers: class 0 is the blank, class i character i - 1 of `CHARACTERS`."""
    alphabet = ["", *model.metadata_props[0].value.splitlines(), " "]
    kept = [0, *(alphabet.index(each) for each in CHARACTERS)]
    constants = {node.output[0]: node for node in model.graph.node if node.op_type == "Constant"}
    *_, product, bias, _softmax = model.graph.node
    for name in (product.input[1], bias.input[1]):
        tensor = constants[name].attribute[0].t
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[..., kept].copy()))
    del model.metadata_props[:]
    model.graph.output[0].type.tensor_type.shape.dim[2].dim_value = len(kept)
    return model


def text_of(probabilities: np.ndarray) -> str:
    """Of one line, (steps, classes): the likeliest class of each step, without repetitions and blanks."""
    classes = probabilities.argmax(-1)
    is_new = np.diff(classes, prepend=0) != 0
    return "".join(CHARACTERS[each - 1] for each in classes[is_new & (classes > 0)])


def read(run: Callable[[np.ndarray], np.ndarray], images: Iterable[np.ndarray]) -> list[str]:
    """What a network reads, image by image."""
    return [text_of(run(image[None])[0]) for image in images]
