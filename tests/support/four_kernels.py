"""A model whose four convolutions are built for a GPU by schedules; without torch, so that processes start soon."""

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import tvm

from benchmarks.onnx_graph import GraphBuilder
from tvm_sparse.compiler import build_model
from tvm_sparse.compiler.plan.choice import Default
from tvm_sparse.compiler.plan.decision import Decision
from tvm_sparse.compiler.plan.kernel_selection import decide
from tvm_sparse.conv.random_weights import normal_weight
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.frontend.prepare import PreparedModel, prepare
from tvm_sparse.runtime.compiled_model import CompiledModel
from tvm_sparse.target.resolve import resolve_target

TARGET = resolve_target({"kind": "cuda", "arch": "sm_90"})
SCHEDULES = ("folded_cuda", "csr_cuda", "dense_cuda", "dense_cuda")
SHAPE = (1, 8, 8, 8)


def onnx_model() -> onnx.ModelProto:
    """Four convolutions of one shape and different weights, and a pooling."""
    graph, y = GraphBuilder("four", SHAPE), "x"
    for number in range(len(SCHEDULES)):
        weight = normal_weight(ConvSpec(*SHAPE, 8, 3, 3), 0.5, number)
        bias = np.random.default_rng(number).standard_normal(8)
        y = graph.relu(f"relu{number}", graph.conv(f"conv{number}", y, weight, bias, padding=1))
    return graph.model(graph.max_pool("pool", y, 2, 2), (1, 8, 4, 4), "y")


def prepared_model() -> PreparedModel:
    """`onnx_model` as the compiler sees it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "four.onnx")
        onnx.save(onnx_model(), path)
        return prepare(path)


def decisions_of(prepared: PreparedModel, schedules: tuple[str, ...] = SCHEDULES) -> list[Decision]:
    """The default kernel of each schedule."""
    chosen = decide(prepared.layers, TARGET, None)
    return [replace(each, choice=Default(name)) for each, name in zip(chosen, schedules, strict=True)]


def built(prepared: PreparedModel, on_progress=None) -> CompiledModel:
    """The compiled model."""
    return build_model.build(prepared, decisions_of(prepared), TARGET, on_progress)


def imports(module: tvm.runtime.Module) -> list[tvm.runtime.Module]:
    """The CUDA modules below `module`."""
    return [each for part in module.imports for each in ([part] if part.kind == "cuda" else imports(part))]
