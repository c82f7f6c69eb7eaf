"""Tuning a made ResNet-50 or VGG16 tunes each distinct convolution of the network, once."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from parameters import sampled

from benchmarks import networks
from tvm_sparse.autotune import session
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.frontend.prepare import prepare

# The distinct convolutions at 224x224 pixels, batch norm folded into the bias; ``+`` adds the residual of a block's
# last convolution before the ReLU. Each stands for all layers of the network that are equal but for their weights.
# Network -> lines of: layer, input channels, input height and width, filters, kernel, stride, what follows the bias.
TABLE = {
    "resnet50": """
        stem.conv                3 224   64 7 2 relu
        stage1.1.first.conv     64  56   64 1 1 relu
        stage1.1.second.conv    64  56   64 3 1 relu
        stage1.1.third.conv     64  56  256 1 1 +relu
        stage1.1.shortcut.conv  64  56  256 1 1 -
        stage1.2.first.conv    256  56   64 1 1 relu
        stage2.1.first.conv    256  56  128 1 1 relu
        stage2.1.second.conv   128  56  128 3 2 relu
        stage2.1.third.conv    128  28  512 1 1 +relu
        stage2.1.shortcut.conv 256  56  512 1 2 -
        stage2.2.first.conv    512  28  128 1 1 relu
        stage2.2.second.conv   128  28  128 3 1 relu
        stage3.1.first.conv    512  28  256 1 1 relu
        stage3.1.second.conv   256  28  256 3 2 relu
        stage3.1.third.conv    256  14 1024 1 1 +relu
        stage3.1.shortcut.conv 512  28 1024 1 2 -
        stage3.2.first.conv   1024  14  256 1 1 relu
        stage3.2.second.conv   256  14  256 3 1 relu
        stage4.1.first.conv   1024  14  512 1 1 relu
        stage4.1.second.conv   512  14  512 3 2 relu
        stage4.1.third.conv    512   7 2048 1 1 +relu
        stage4.1.shortcut.conv 1024 14 2048 1 2 -
        stage4.2.first.conv   2048   7  512 1 1 relu
        stage4.2.second.conv   512   7  512 3 1 relu""",
    "vgg16": """
        stage1.1.conv   3 224  64 3 1 relu
        stage1.2.conv  64 224  64 3 1 relu
        stage2.1.conv  64 112 128 3 1 relu
        stage2.2.conv 128 112 128 3 1 relu
        stage3.1.conv 128  56 256 3 1 relu
        stage3.2.conv 256  56 256 3 1 relu
        stage4.1.conv 256  28 512 3 1 relu
        stage4.2.conv 512  28 512 3 1 relu
        stage5.1.conv 512  14 512 3 1 relu""",
}


def convolutions(network: str, batch: int = 1) -> dict[str, ConvSpec]:
    """Layer -> convolution, in the network's order."""
    found = {}
    for line in TABLE[network].strip().splitlines():
        layer, *sizes, after = line.split()
        c, size, k, kernel, stride = map(int, sizes)
        found[layer] = ConvSpec(
            *(batch, c, size, size, k, kernel, kernel),
            stride=(stride, stride),
            padding=(kernel // 2,) * 4,
            bias=True,
            residual=after.startswith("+"),
            relu=after.endswith("relu"),
        )
    return found


@pytest.mark.parametrize("network", sampled(list(TABLE), ["resnet50"]))
def test_tuning_finds_the_convolutions_of_the_network(network: str, tmp_path: Path) -> None:
    """Layer by layer: the same convolution, with bias, residual and ReLU fused."""
    path = tmp_path / "model.onnx"
    onnx.save(networks.MODELS[network](networks.Options(classifier="none")), path)
    tasks = session.tasks_of(prepare(path, None, None).layers)
    assert {task.names[0]: task.spec for task in tasks} == convolutions(network)
