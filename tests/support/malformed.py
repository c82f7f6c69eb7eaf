"""Model files that are damaged or say what cannot be, each with the sentence that must come of it.

Run as a script in a folder, it writes the files, gives each to the command line in a process of its own and prints what
happened, one line of JSON each. With a number, so many files are damaged at random::

    cd /tmp/malformed && PYTHONPATH=<checkout>:<checkout>/tests python <checkout>/tests/malformed.py 1000
"""

import contextlib
import io
import json
import os
import random
import signal
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx_zoo import ONNX as GOOD
from onnx_zoo import X

# Seconds after which a case counts as hanging.
LIMIT_S = 60


def random_array(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def model(nodes, weights, change=lambda model: None, inputs=(("x", X),)):
    """A serialised ONNX model that nobody has checked; `change` may damage it."""
    graph = helper.make_graph(
        [helper.make_node(op, ins, outs, name=f"{op}_{i}", **attrs) for i, (op, ins, outs, attrs) in enumerate(nodes)],
        "graph",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("a", "b", "c", "d"))],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    change(made)
    return made.SerializeToString()


W = random_array(4, 4, 3, 3)


def conv(weight=W, change=lambda model: None, inputs=(("x", X),), **attributes):
    """One convolution of `weight` that is damaged in one way."""
    return model([("Conv", ["x", "w"], ["y"], attributes)], {"w": weight}, change, inputs)


def then(op, inputs, weights, **attributes):
    """A convolution and another operator."""
    return model([("Conv", ["x", "w"], ["t"], {}), (op, inputs, ["y"], attributes)], {"w": W, **weights})


def first(op, inputs, weights):
    """Another operator and a convolution."""
    return model([(op, inputs, ["t"], {}), ("Conv", ["t", "w"], ["y"], {})], {"w": W, **weights})


def set_external(location):
    def change(made):
        tensor = made.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)

    return change


def no_raw_data(made):
    made.graph.initializer[0].raw_data = made.graph.initializer[0].raw_data[:10]


def set_dims(size):
    def change(made):
        made.graph.initializer[0].dims[0] = size

    return change


def set_type(kind):
    def change(made):
        made.graph.initializer[0].data_type = kind

    return change


def set_opset(version):
    def change(made):
        made.opset_import[0].version = version

    return change


def not_text(made):
    made.graph.node[0].name = "NOT_TEXT"


def sequence(made):
    made.graph.input[0].type.CopyFrom(helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, [1])))


def with_function(made):
    node = helper.make_node("f", ["a"], ["b"], domain="d")
    made.functions.append(helper.make_function("d", "f", ["a"], ["b"], [node], [helper.make_opsetid("d", 1)]))


BLOCK = GOOD["block"].SerializeToString()
BN = {"s": random_array(4), "b": random_array(4), "m": random_array(4)}
TOO_LARGE = "is too large, found"
ONNX = {
    "empty": (b"", "this is no valid ONNX model"),
    "text": (b"this is text", "this is no valid ONNX model"),
    "zeros": (bytes(1000), "this is no valid ONNX model"),
    "truncated by one": (BLOCK[:-1], "this is no valid ONNX model"),
    "truncated to half": (BLOCK[: len(BLOCK) // 2], "this is no valid ONNX model"),
    "cycle": (model([("Add", ["x", "z"], ["y"], {}), ("Relu", ["y"], ["z"], {})], {}), "topologically sorted"),
    "its own input": (model([("Add", ["x", "y"], ["y"], {})], {}), "topologically sorted"),
    "input from nowhere": (model([("Conv", ["x", "v"], ["y"], {})], {}), "topologically sorted"),
    "output from nowhere": (model([("Relu", ["x"], ["z"], {})], {}), "'y' is not an output of any node"),
    "two of a name": (model([("Relu", ["x"], ["y"], {}), ("Abs", ["x"], ["y"], {})], {}), "single static assignment"),
    "unknown operator": (model([("Frobnicate", ["x"], ["y"], {})], {}), "No Op registered for Frobnicate"),
    "operator TVM lacks": (then("Det", ["t"], {}), "Det"),
    "newer operators": (conv(change=set_opset(9999)), "its operator set is unknown, found 9999; allowed: up to"),
    "no output": (conv(change=lambda made: made.graph.ClearField("output")), "the model has no output"),
    "no input": (conv(inputs=()), "topologically sorted"),
    "no graph": (conv(change=lambda made: made.ClearField("graph")), "this is no valid ONNX model"),
    "no type": (conv(change=lambda made: made.graph.input[0].ClearField("type")), "Field 'type'"),
    "a sequence": (conv(change=sequence), "input x is no tensor, found sequence_type"),
    "recursive function": (conv(change=with_function), "Cycle detected in model-local function"),
    "a name that is no text": (conv(change=not_text).replace(b"NOT_TEXT", b"NOT\xff\xfe\xfdXT"), "a name is not UTF-8"),
    "wrong channels": (
        conv(random_array(4, 3, 3, 3)),
        "node Conv_0: its input has another number of channels, found 4",
    ),
    "wrong groups": (conv(group=3), "node Conv_0: filters do not split into the groups, found 3"),
    "no groups": (conv(group=0), "filters do not split into the groups, found 0"),
    "wrong bias": (
        model([("Conv", ["x", "w", "v"], ["y"], {})], {"w": W, "v": random_array(5)}),
        "node Conv_0: its bias has another length, found (5); allowed: (4)",
    ),
    "wrong kernel_shape": (
        conv(kernel_shape=[5, 5]),
        "kernel_shape is not its weight's, found (5, 5); allowed: (3, 3)",
    ),
    "kernel larger than map": (conv(random_array(4, 4, 30, 30)), "impossible shape, found (1, 4, -20, -20)"),
    "stride of zero": (conv(strides=[0, 0]), "strides must only contain positive values"),
    "dilation of zero": (conv(dilations=[0, 0]), "dilations must only contain positive values"),
    "negative padding": (conv(pads=[-1] * 4), "pads must not contain negative values"),
    "three paddings": (conv(pads=[1] * 3), "pads has incorrect size"),
    "unknown padding": (conv(auto_pad="SOME"), "SOME"),
    "weight of one dimension less": (conv(random_array(4, 4, 3)), "spatial dimensions"),
    "no filters": (conv(random_array(0, 4, 3, 3)), "k is not usable, found 0"),
    "NaN in a weight": (conv(np.full_like(W, np.nan)), "layer Conv_0: weight[0, 0, 0, 0] is not finite, found nan"),
    "NaN in a bias": (
        model([("Conv", ["x", "w", "v"], ["y"], {})], {"w": W, "v": np.full(4, np.nan, np.float32)}),
        "layer Conv_0: a constant of add is NaN",
    ),
    "negative variance": (
        then("BatchNormalization", ["t", "s", "b", "m", "v"], {**BN, "v": -np.ones(4, np.float32)}),
        "is NaN; repair the parameters",
    ),
    "batch norm of other size": (
        then("BatchNormalization", ["t", "s", "b", "m", "v"], {**BN, "v": np.ones(3, np.float32)}),
        "Dimension mismatch",
    ),
    "integers": (conv(np.ones(W.shape, np.int32)), "unsupported element type, found int32; allowed: float32"),
    "half precision": (conv(W.astype(np.float16)), "W has inconsistent type tensor(float16)"),
    "unknown element type": (conv(change=set_type(99)), "layer Conv_0: its weight cannot be read"),
    "less data than said": (conv(change=no_raw_data), "is too small for the declared shape"),
    "petabytes of weight": (conv(change=set_dims(2**50)), "this is no valid ONNX model"),
    "negative weight size": (conv(change=set_dims(-1)), "Negative dimension"),
    "data outside": (
        conv(change=set_external("../../etc/passwd")),
        "the data of tensor w is outside the model's folder",
    ),
    "data missing": (
        conv(change=set_external("absent.bin")),
        "the file with the data of tensor w is missing, found absent.bin",
    ),
    "huge map": (conv(inputs=[("x", (1, 4, 10**6, 10**6))]), f"tensor x {TOO_LARGE}"),
    "huge batch": (conv(inputs=[("x", (2**62, 4, 9, 9))]), f"tensor x {TOO_LARGE}"),
    "sizes beyond 64 bits": (conv(inputs=[("x", (2**40, 4, 2**40, 9))]), f"tensor x {TOO_LARGE}"),
    "huge padding": (conv(pads=[10**6] * 4), f"tensor y {TOO_LARGE}"),
    "huge Pad": (first("Pad", ["x", "p"], {"p": np.array([0, 0, 0, 0, 0, 0, 2**40, 1])}), f"tensor t {TOO_LARGE}"),
    "huge Expand": (first("Expand", ["x", "p"], {"p": np.array([2**31, 4, 9, 9])}), f"tensor t {TOO_LARGE}"),
    "huge constant": (first("ConstantOfShape", ["p"], {"p": np.array([1, 4, 10**5, 10**5])}), f"tensor t {TOO_LARGE}"),
    "shape from data": (then("NonZero", ["t"], {}), "its shapes do not fit"),
    "no numbers to reshape to": (then("Reshape", ["t", "p"], {"p": np.array([1, 7])}), "TVM cannot import it (Reshape"),
}


def changed_pt2(data, change):
    """A .pt2 file with its model.json passed through `change`, which works in place."""
    source, target = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith("models/model.json"):
                document = json.loads(content)
                change(document)
                content = json.dumps(document).encode()
            archive.writestr(name, content)
    return target.getvalue()


def compressed(data):
    source, target = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in source.namelist():
            archive.writestr(name, source.read(name))
    return target.getvalue()


@cache
def exported():
    """The bytes of a good .pt2 file."""
    import torch
    import zoo

    module, shapes = zoo.TORCH["residual"]
    with tempfile.TemporaryDirectory() as folder:
        torch.export.save(zoo.export_quietly(module, zoo.inputs_of(shapes)), f"{folder}/m.pt2")
        return Path(f"{folder}/m.pt2").read_bytes()


def set_size(document):
    document["graph_module"]["graph"]["tensor_values"]["x"]["sizes"][2] = {"as_int": 2**40}


def without(name):
    """A change that takes a part of the graph away."""
    return lambda document: document["graph_module"]["graph"].pop(name)


def with_other_weight(data):
    """`data` with one byte of a weight changed."""
    import zoo

    weight = zoo.TORCH["residual"][0][0].weight.detach().numpy().tobytes()
    return data.replace(weight, weight[:-1] + b"?")


def changed_by(change):
    """What makes of a good file's bytes those with another model.json."""
    return lambda data: changed_pt2(data, change)


# As `ONNX`, but for functions of the bytes of a good file, which takes seconds to export.
PT2 = {
    "empty": (lambda _: b"", "the .pt2 file cannot be read"),
    "text": (lambda _: b"this is text", "the .pt2 file cannot be read"),
    "truncated by one": (lambda data: data[:-1], "the .pt2 file cannot be read"),
    "truncated to half": (lambda data: data[: len(data) // 2], "the .pt2 file cannot be read"),
    "a byte changed": (
        lambda data: data.replace(b"aten.conv2d", b"aten.conv3d", 1),
        "models/model.json does not have its checksum",
    ),
    "a weight changed": (with_other_weight, "weight_0 does not have its checksum"),
    "compressed": (compressed, "the archive is compressed"),
    "no nodes": (changed_by(without("nodes")), "cannot be read"),
    "no inputs": (changed_by(without("inputs")), "cannot be read"),
    "a list for a graph": (changed_by(lambda d: d.update(graph_module=[])), "cannot be read"),
    "huge map": (changed_by(set_size), ""),
    "dynamic": (changed_by(lambda d: d.update(range_constraints={"s0": {}})), "dynamic shapes"),
}


def mutated(choose, data):
    """`data` with some bytes changed, removed or added."""
    data = bytearray(data)
    how = choose(("change", "change", "cut", "insert", "remove"))
    for _ in range(choose((1, 1, 2, 5, 20))):
        # The beginning of an ONNX file is its structure, the rest mostly weights.
        place = choose(range(len(data))) if choose((True, False)) else choose(range(min(len(data), 400)))
        if how == "change":
            data[place] = choose(range(256))
        elif how == "insert":
            data[place:place] = bytes(choose(range(256)) for _ in range(3))
        elif how == "remove":
            del data[place : place + 3]
        else:
            data = data[: max(place, 1)]
    return bytes(data)


def mutated_pt2(choose, data):
    """A .pt2 file whose archive is whole, and a value of whose model.json is another."""

    def change(document):
        node = document
        while node:
            key = choose(list(node) if isinstance(node, dict) else range(len(node)))
            if isinstance(node[key], dict | list) and node[key] and choose(range(12)):
                node = node[key]
                continue
            node[key] = choose(
                [None, -1, 0, 2**70, 2**40, 3, "x", "", [], {}, True, 1e308, "torch.ops.aten.abs.default"]
            )
            break

    return changed_pt2(data, change)


# Files that are damaged at random.
FUZZED = 36


def files(fuzzed=FUZZED):
    """Name -> (content, part of the sentence, or None where any outcome but a crash will do)."""
    pt2 = exported()
    found = {f"{name}.onnx": case for name, case in ONNX.items()}
    found |= {f"{name}.pt2": (make(pt2), sentence) for name, (make, sentence) in PT2.items()}
    for seed in range(fuzzed):
        choose = random.Random(seed).choice
        if seed % 3:
            found[f"fuzz {seed}.onnx"] = (mutated(choose, BLOCK), None)
        else:
            found[f"fuzz {seed}.pt2"] = (mutated_pt2(choose, pt2), None)
    return found


def outcome(path):
    """Exit code and messages of looking at a file with the command line."""
    from tvm_sparse.cli import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main.main(["inspect", path])
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


def in_child(path):
    """`outcome` in a forked process; a signal is a negative code."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT_S)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.write(send, json.dumps(outcome(path)).encode())
        os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return json.loads(text) if code == 0 else {"code": code, "out": "", "err": "the process ended"}


if __name__ == "__main__":
    onnx.checker.check_model(GOOD["block"])
    # What is loaded here no child has to load.
    for name, content in (("good.onnx", BLOCK), ("good.pt2", exported())):
        Path(name).write_bytes(content)
        assert outcome(name)["code"] == 0
    for name, (content, _) in files(*map(int, sys.argv[1:])).items():
        Path(name).write_bytes(content)
        print(json.dumps({"name": name, **in_child(name)}), flush=True)
    # Taking the interpreter down with all of torch in it takes a second.
    os._exit(0)
