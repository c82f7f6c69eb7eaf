"""The demo's data: held-out images of handwritten digits, their labels, and the two networks trained for them.

`data/README.md` says where they come from and `scripts/models/make_demo_model.py` makes them.
"""

import atexit
import lzma
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

from tvm_sparse.files.temporary import TemporaryFolder

DATA = Path(__file__).parent / "data"
SMALL, LARGE = 8, 32  # pixels along each side of the stored images and of the networks' input
WHITE = 16.0  # largest value of a stored pixel


def preprocess(small: np.ndarray) -> np.ndarray:
    """Turn images (N, 8, 8) with values 0..16 into the networks' input (N, 1, 32, 32), float32 in 0..1.

    Enlarging is bilinear between pixel centres. All factors are multiples of 1/8 and the pixels of 1/16, so
    float32 holds every value exactly and each machine computes the same bits.
    """
    enlarge = _enlargement()
    return (enlarge @ (small.astype(np.float32) / WHITE) @ enlarge.T)[:, None]


def images() -> np.ndarray:
    """The held-out images as the networks' input, (N, 1, 32, 32) float32."""
    return preprocess(_load("images"))


def labels() -> np.ndarray:
    """The digits that `images` shows, (N,) int64."""
    return _load("labels").astype(np.int64)


def model_path(which: Literal["dense", "pruned"]) -> Path:
    """The ONNX file of the ``dense`` or the ``pruned`` network: input ``x`` (1, 1, 32, 32), output ``logits`` (1, 10).

    It is stored compressed; the file lies in a temporary folder that goes with this process.
    """
    path = _unpacked() / f"digits_{which}.onnx"
    if not path.exists():
        path.write_bytes(lzma.decompress((DATA / f"{path.name}.xz").read_bytes()))
    return path


@cache
def _unpacked() -> Path:
    folder = TemporaryFolder()
    atexit.register(folder.cleanup)
    return Path(folder.name)


def _load(name: str) -> np.ndarray:
    with np.load(DATA / "digits_test.npz", allow_pickle=False) as archive:
        return archive[name]


def _enlargement() -> np.ndarray:
    """The bilinear interpolation along one side as a matrix (32, 8), float32; its rows sum to 1."""
    centres = (np.arange(LARGE) + 0.5) * SMALL / LARGE - 0.5
    distance = np.abs(centres.clip(0, SMALL - 1)[:, None] - np.arange(SMALL))
    return np.maximum(1 - distance, 0).astype(np.float32)
