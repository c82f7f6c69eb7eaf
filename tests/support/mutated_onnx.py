"""ONNX models of which one thing or several are wrong or strange, at random, and what becomes of each in a process.

``python mutated_onnx.py FIRST LAST`` prints a JSON line for each seed. The process of a model has a limit of time and
of memory. A model may compile or be refused by an error of ours.
"""

import contextlib
import io
import json
import os
import random
import resource
import signal
import sys
import tempfile
import traceback
from pathlib import Path

import numpy as np
import onnx
import onnx_zoo
from onnx import TensorProto, helper, numpy_helper

import tvm_sparse
from tvm_sparse.frontend.model_source import ModelSource
from tvm_sparse.frontend.prepare import prepare

# Of processor time; a machine that is busy takes up to five times as long.
LIMIT_S, LIMIT_BYTES = 60, 6 * 2**30
SIZES = [-1, 0, 1, 2, 3, 5, 7, 64, 2**16, 2**31 - 1, 2**31, 2**40, 2**62, -(2**63), 2**63 - 1]
NUMBERS = [0.0, -1.0, 1e30, float("nan"), float("inf"), 0.5]
TEXTS = ["", "NOTSET", "SAME_UPPER", "VALID", "linear", "nearest", "reflect", "sum", "\x1b[31m", "9" * 5000, "\u00e9"]
DTYPES = [*range(0, 24), 99, -1]
X, Y = (1, 4, 9, 9), (1, 4, 9, 9)


def random_array(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def model(nodes, opset=17, x=X, **weights):
    """A small model of nodes (operator, inputs, outputs, attributes), whose input is x and whose output is y."""
    graph = helper.make_graph(
        [
            helper.make_node(op, ins, outs, name=f"{op}_{at}", **attrs)
            for at, (op, ins, outs, attrs) in enumerate(nodes)
        ],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def branch(name, op, *inputs):
    return helper.make_graph(
        [helper.make_node(op, inputs, [name])], name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)]
    )


W = random_array(4, 4, 3, 3)
PAD = {"pads": [1, 1, 1, 1]}
SAME = ("Conv", ["x", "w"], ["c"], PAD)
# What models are made of that people bring, each in few nodes.
SEEDS = [
    *onnx_zoo.ONNX.values(),
    model(
        [
            SAME,
            ("Shape", ["c"], ["s"], {}),
            ("Gather", ["s", "i"], ["n"], {"axis": 0}),
            ("Unsqueeze", ["n", "a"], ["u"], {}),
            ("Concat", ["u", "m"], ["t"], {"axis": 0}),
            ("Reshape", ["c", "t"], ["y"], {}),
        ],
        w=W,
        i=np.array(0),
        a=np.array([0]),
        m=np.array([-1]),
    ),
    model(
        [
            ("Shape", ["x"], ["s"], {}),
            ("Gather", ["s", "i"], ["n"], {"axis": 0}),
            ("Equal", ["n", "one"], ["is"], {}),
            ("If", ["is"], ["y"], {"then_branch": branch("a", "Relu", "x"), "else_branch": branch("b", "Neg", "x")}),
        ],
        i=np.array(0),
        one=np.array(1),
    ),
    model([("LSTM", ["x", "w", "r", "b"], ["", "y"], {"hidden_size": 3})], x=(3, 2, 4), w=random_array(1, 12, 4),
          r=random_array(1, 12, 3), b=random_array(1, 24)),
    model([("GRU", ["x", "w", "r"], ["y"], {"hidden_size": 3})], x=(3, 2, 4), w=random_array(1, 9, 4),
          r=random_array(1, 9, 3)),
    model([("Resize", ["x", "", "s"], ["r"], {"mode": "linear"}), ("Conv", ["r", "w"], ["y"], {})], w=W,
          s=np.float32([1, 1, 2, 2])),
    model([("Range", ["a", "b", "c"], ["r"], {}), ("Gather", ["x", "r"], ["y"], {"axis": 1})], a=np.array(0),
          b=np.array(4), c=np.array(1)),
    model([("Split", ["x", "s"], ["a", "b"], {"axis": 1}), ("Concat", ["b", "a"], ["y"], {"axis": 1})],
          s=np.array([1, 3])),
    model([("Slice", ["x", "s", "e", "a"], ["t"], {}), ("Transpose", ["t"], ["y"], {"perm": [0, 2, 3, 1]})],
          s=np.array([1]), e=np.array([-1]), a=np.array([2])),
    model([("Pad", ["x", "p"], ["t"], {"mode": "reflect"}), ("MaxPool", ["t"], ["y"], {"kernel_shape": [2, 2]})],
          p=np.array([0, 0, 1, 1, 0, 0, 1, 1])),
    model([("ReduceMean", ["x"], ["m"], {"axes": [2, 3]}), ("Sub", ["x", "m"], ["d"], {}),
           ("Softmax", ["d"], ["y"], {})]),
    model([("TopK", ["x", "k"], ["y", "i"], {"axis": 1})], k=np.array([2])),
    model([("Expand", ["b", "s"], ["t"], {}), ("Where", ["t", "x", "z"], ["y"], {})], b=np.array([True]),
          s=np.array(X), z=np.float32(0)),
    model([("ConstantOfShape", ["s"], ["t"], {}), ("Tile", ["t", "n"], ["u"], {}), ("Add", ["x", "u"], ["y"], {})],
          s=np.array([1, 4, 3, 3]), n=np.array([1, 1, 3, 3])),
    model([("ReduceMean", ["w"], ["m"], {"axes": [1, 2, 3]}), ("Sub", ["w", "m"], ["v"], {}),
           ("Conv", ["x", "v"], ["y"], PAD)], w=W),
    model([("Einsum", ["x", "w"], ["y"], {"equation": "nchw,kc->nkhw"})], w=random_array(6, 4)),
    model([("ConvTranspose", ["x", "w"], ["t"], {"strides": [2, 2]}),
           ("LayerNormalization", ["t", "g"], ["y"], {})], w=W, g=random_array(19)),
]  # fmt: skip


def mutate(seed):
    """A model, of which the random numbers of `seed` changed something."""
    choose = random.Random(seed)
    made = onnx.ModelProto()
    made.CopyFrom(choose.choice(SEEDS))
    for _ in range(choose.choice((1, 1, 1, 2, 4))):
        with contextlib.suppress(IndexError, KeyError, ValueError, TypeError, onnx.defs.SchemaError):
            choose.choice(MUTATIONS)(choose, made)
    return made


def _attribute(choose, made):
    each = choose.choice(choose.choice(made.graph.node).attribute)
    if each.type == each.INT:
        each.i = choose.choice(SIZES)
    elif each.type == each.INTS:
        _number(choose, each.ints, SIZES)
    elif each.type == each.FLOAT:
        each.f = choose.choice(NUMBERS)
    elif each.type == each.STRING:
        each.s = choose.choice(TEXTS).encode()


def _number(choose, numbers, values):
    """Change, add or remove one of a list."""
    how = choose.randrange(4)
    if how == 0 and numbers:
        numbers.pop(choose.randrange(len(numbers)))
    elif how == 1:
        numbers.append(choose.choice(values))
    else:
        numbers[choose.randrange(len(numbers))] = choose.choice(values)


def _new_attribute(choose, made):
    node = choose.choice(made.graph.node)
    schema = onnx.defs.get_schema(node.op_type, 17)
    name = choose.choice([*schema.attributes] or ["axis"])
    value = choose.choice([choose.choice(SIZES), [choose.choice(SIZES)] * choose.randrange(1, 5), choose.choice(TEXTS)])
    node.attribute.append(helper.make_attribute(name, value))


def _input_size(choose, made):
    dims = choose.choice(made.graph.input).type.tensor_type.shape.dim
    choose.choice(dims).dim_value = choose.choice(SIZES)


def _rank(choose, made):
    dims = choose.choice(made.graph.input).type.tensor_type.shape.dim
    dims.add(dim_value=choose.choice((1, 3))) if choose.randrange(2) else dims.pop()


def _input_type(choose, made):
    choose.choice((*made.graph.input, *made.graph.output)).type.tensor_type.elem_type = choose.choice(DTYPES)


def _weight_shape(choose, made):
    tensor = choose.choice(made.graph.initializer)
    _number(choose, tensor.dims, SIZES)


def _weight_type(choose, made):
    choose.choice(made.graph.initializer).data_type = choose.choice(DTYPES)


def _weight_values(choose, made):
    """Other values, of the tensor's own type, in its own shape or another."""
    tensor = choose.choice(made.graph.initializer)
    array = numpy_helper.to_array(tensor).copy()
    shape = choose.choice([array.shape, array.shape, (0,), (), (1,), (2, 2), array.shape[::-1]])
    values = SIZES if array.dtype.kind in "iu" else NUMBERS
    new = np.resize(array, shape)
    if new.size:
        new.reshape(-1)[choose.randrange(new.size)] = np.asarray(choose.choice(values)).astype(new.dtype)
    tensor.CopyFrom(numpy_helper.from_array(new, tensor.name))


def _wiring(choose, made):
    node = choose.choice(made.graph.node)
    names = [each.name for each in (*made.graph.input, *made.graph.initializer)]
    names += [name for each in made.graph.node for name in each.output] + ["", "nowhere"]
    how = choose.randrange(4)
    if how == 0:
        node.input.append(choose.choice(names))
    elif how == 1:
        node.input.pop()
    elif how == 2:
        node.output[choose.randrange(len(node.output))] = choose.choice(names)
    else:
        node.input[choose.randrange(len(node.input))] = choose.choice(names)


def _operators(inputs, outputs):
    """Schemas of the standard operators that may have so many inputs and outputs."""
    schemas = [each for each in onnx.defs.get_all_schemas() if each.domain == "" and not each.deprecated]
    fits = [each for each in schemas if each.min_input <= inputs <= each.max_input]
    return sorted((each for each in fits if each.min_output <= outputs <= each.max_output), key=lambda each: each.name)


def _operator(choose, made):
    """Another operator with as many inputs and outputs, and those of the attributes that it has too."""
    node = choose.choice(made.graph.node)
    schema = choose.choice(_operators(len(node.input), len(node.output)))
    node.op_type = schema.name
    kept = [each for each in node.attribute if each.name in schema.attributes]
    del node.attribute[:]
    node.attribute.extend(kept)


def _insert(choose, made):
    """Another operator before one that there is, with attributes at random."""
    at = choose.randrange(len(made.graph.node))
    node = made.graph.node[at]
    place = choose.randrange(len(node.input))
    count = choose.choice((1, 1, 1, 2, 3))
    schema = choose.choice(_operators(count, 1))
    names = [node.input[place], *(each.name for each in made.graph.initializer), "x"]
    others = [choose.choice(names) for _ in range(count - 1)]
    new = helper.make_node(schema.name, [node.input[place], *others], [f"new{len(made.graph.node)}"])
    for name, attribute in sorted(schema.attributes.items()):
        if attribute.required or choose.randrange(3) == 0:
            value = _value(choose, attribute.type)
            if value is not None:
                new.attribute.append(helper.make_attribute(name, value))
    node.input[place] = new.output[0]
    nodes = list(made.graph.node)
    del made.graph.node[:]
    made.graph.node.extend([*nodes[:at], new, *nodes[at:]])


def _value(choose, kind):
    kinds = onnx.defs.OpSchema.AttrType
    small = [-2, -1, 0, 1, 2, 3]
    sizes = choose.choice((small, small, SIZES))
    return {
        kinds.INT: lambda: choose.choice(sizes),
        kinds.INTS: lambda: [choose.choice(sizes) for _ in range(choose.randrange(1, 5))],
        kinds.FLOAT: lambda: choose.choice(NUMBERS),
        kinds.FLOATS: lambda: [choose.choice(NUMBERS) for _ in range(choose.randrange(1, 5))],
        kinds.STRING: lambda: choose.choice(TEXTS),
    }.get(kind, lambda: None)()


def _order(choose, made):
    nodes = list(made.graph.node)
    how = choose.randrange(3)
    if how == 0:
        choose.shuffle(nodes)
    elif how == 1:
        nodes.pop(choose.randrange(len(nodes)))
    else:
        nodes.append(choose.choice(nodes))
    del made.graph.node[:]
    made.graph.node.extend(nodes)


def _version(choose, made):
    made.opset_import[0].version = choose.choice([1, 5, 6, 8, 10, 11, 13, 18, 20, 22, 0, -1, 2**40])


def _name(choose, made):
    value = choose.choice((*made.graph.input, *made.graph.initializer, *made.graph.output))
    value.name = choose.choice(["x", "y", "w", "", "\x1b[31m", "a/b", "9" * 3000])


# The more of these, the more models are still valid.
DEEP = [_attribute, _attribute, _weight_values, _weight_values, _operator, _insert, _insert, _input_size, _rank]
SHALLOW = [_new_attribute, _input_type, _weight_shape, _weight_type, _wiring, _order, _version, _name]
MUTATIONS = [*DEEP, *DEEP, *SHALLOW]


def outcome(made, folder):
    """What becomes of a model: ``compiled``, ``refused``, or the trace of an exception that is not ours."""
    path = Path(folder) / "m.onnx"
    path.write_bytes(made.SerializeToString())
    try:
        ModelSource(path).weights()
        prepare(path)
        tvm_sparse.compile(path, target=onnx_zoo.UNOPTIMISED, predict=False, progress=False, compare=False)
    except tvm_sparse.TvmSparseError as error:
        text = str(error)
        return ("refused", text) if len(text.splitlines()) == 1 and len(text) < 1500 else ("long", text[:2000])
    except BaseException:
        return "raw", traceback.format_exc()[-3000:]
    return "compiled", ""


def in_child(seed, folder):
    """`outcome` of a seed in a forked process of limited time and memory."""
    made = mutate(seed)
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(5 * LIMIT_S)
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
        resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        with contextlib.redirect_stdout(io.StringIO()):
            kind, text = outcome(made, folder)
        os.write(send, json.dumps({"kind": kind, "text": text}).encode())
        os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        text = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return json.loads(text) if code == 0 else {"kind": "ended", "text": f"exit code {code}"}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        # What is loaded here no child has to load. Nothing runs: its threads would be missing in a child.
        import tvm_sparse.compiler.build_model

        onnx.save(onnx_zoo.ONNX["block"], f"{place}/m.onnx")
        prepare(f"{place}/m.onnx")
        for number in range(int(sys.argv[1]), int(sys.argv[2])):
            print(json.dumps({"seed": number, **in_child(number, place)}), flush=True)
