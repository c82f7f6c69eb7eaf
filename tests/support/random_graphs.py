"""Random Relax modules of convolutional networks with dead filters and channels, and what PyTorch makes of a module."""

import numpy as np
import torch
from torch.nn import functional as F
from tvm import relax
from tvm.ir import GenericConst

IMAGE = (2, 3, 7, 7)


class Network:
    """Grows one operator at a time; each reads random ones of the tensors before it."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.builder = relax.BlockBuilder()
        self.maps = []

    def module(self, steps):
        x = relax.Var("x", relax.TensorType(IMAGE, "float32"))
        with self.builder.function("main", [x]):
            with self.builder.dataflow():
                self.maps.append(x)
                for _ in range(steps):
                    step = getattr(self, self.rng.choice(STEPS))
                    self.maps.append(self.bind(step(self.maps[-min(len(self.maps), self.rng.geometric(0.6))])))
                other = self.maps[self.rng.integers(len(self.maps))]
                results = [self.builder.emit_output(each) for each in (self.head(self.maps[-1]), relax.op.sum(other))]
            self.builder.emit_func_output(relax.Tuple(results))
        return self.builder.finalize()

    def bind(self, value):
        return self.builder.emit(value)

    def weight(self, *shape):
        """Of random numbers, with filters and channels of zeros."""
        weight = self.rng.standard_normal(shape)
        weight[self.rng.random(shape[0]) < 0.4] = 0
        weight[:, self.rng.random(shape[1]) < 0.3 * (shape[1] > 1)] = 0
        return relax.const(weight.astype(np.float32))

    def vector(self, *shape):
        """A third of it zeros, a third positive, a third negative."""
        return relax.const(self.rng.integers(-1, 2, shape).astype(np.float32))

    def conv(self, x, groups=1, k=None):
        c, k = channels(x), k or int(self.rng.integers(1, 9))
        size, padding = [(1, 0), (3, 1)][self.rng.integers(2)]
        weight = self.weight(k, c // groups, size, size)
        y = self.bind(relax.op.nn.conv2d(x, weight, padding=padding, groups=groups))
        y = self.bind(relax.op.add(y, self.vector(1, k, 1, 1))) if self.rng.random() < 0.7 else y
        return relax.op.nn.relu(y) if self.rng.random() < 0.7 else relax.op.add(y, relax.const(np.float32(0)))

    def depthwise(self, x):
        return self.conv(x, channels(x), channels(x) * int(self.rng.integers(1, 3)))

    def grouped(self, x):
        return self.conv(x, 2, 6) if channels(x) % 2 == 0 else self.conv(x)

    def activation(self, x):
        op = relax.op
        functions = [op.sigmoid, op.tanh, op.nn.silu, op.nn.gelu, op.nn.leakyrelu, op.exp, op.abs, op.sin]
        choice = self.rng.integers(len(functions) + 1)
        return functions[choice](x) if choice < len(functions) else op.clip(x, float(self.rng.integers(-1, 1)), 6.0)

    def arithmetic(self, x):
        operator = [relax.op.add, relax.op.multiply, relax.op.subtract, relax.op.maximum][self.rng.integers(4)]
        same = [each for each in self.maps if channels(each) == channels(x)]
        other = same[self.rng.integers(len(same))]
        choice = self.rng.integers(5)
        if choice == 0:
            other = self.bind(relax.op.sigmoid(self.bind(relax.op.mean(other, [2, 3], keepdims=True))))
        elif choice == 1:
            other = self.bind(relax.op.mean(other, [1], keepdims=True))
        elif choice == 2:
            other = self.vector(channels(x), 1, 1)
        elif choice == 3:
            other = self.vector(1, channels(x), 7, 7)
        return operator(other, x) if self.rng.random() < 0.5 else operator(x, other)

    def concat(self, x):
        return relax.op.concat([x, self.maps[self.rng.integers(len(self.maps))]], 1)

    def pool(self, x):
        return [
            relax.op.nn.max_pool2d(x, 3, 1, 1),
            relax.op.nn.avg_pool2d(x, 3, 1, 1),
            relax.op.nn.avg_pool2d(x, 3, 1, 1, count_include_pad=True),
        ][self.rng.integers(3)]

    def space(self, x):
        x = self.bind(relax.op.nn.pad(x, [0, 0, 0, 0, 0, 1, 0, 1], pad_value=float(self.rng.integers(2))))
        return relax.op.image.resize2d(
            x, (7, 7), method="nearest_neighbor", coordinate_transformation_mode="asymmetric"
        )

    def moved(self, x):
        """A linear layer along the channels of (N, H, W, C)."""
        y = self.bind(relax.op.permute_dims(x, [0, 2, 3, 1]))
        y = self.bind(relax.op.matmul(y, self.weight(channels(x), 5)))
        y = self.bind(relax.op.nn.relu(self.bind(relax.op.add(y, self.vector(5)))))
        return relax.op.permute_dims(y, [0, 3, 1, 2])

    def head(self, x):
        """A linear layer of pooled maps, or of all their elements."""
        c = channels(x)
        if self.rng.random() < 0.5:
            x = self.bind(relax.op.nn.adaptive_avg_pool2d(x, 1)) if self.rng.random() < 0.5 else x
        else:
            x = self.bind(relax.op.mean(x, [-1, -2], keepdims=bool(self.rng.integers(2))))
        features = int(np.prod([int(each) for each in x.ty.shape.values[1:]]))
        y = self.bind(relax.op.reshape(x, (IMAGE[0], features))) if len(x.ty.shape.values) > 2 else x
        rows = np.repeat(self.rng.random(c) < 0.7, features // c)[:, None]
        weight = self.rng.standard_normal((features, 4)) * rows
        return self.bind(relax.op.matmul(y, relax.const(weight.astype(np.float32))))


STEPS = ["conv"] * 5 + ["arithmetic"] * 2
STEPS += ["depthwise", "grouped", "activation", "concat", "pool", "space", "moved"]


def channels(x):
    return int(x.ty.shape.values[1])


def outputs_of(module, x):
    """Of ``main``, operator by operator, as arrays in float64."""
    main = module["main"]
    known = {main.params[0]: torch.from_numpy(x).double()}

    def value(argument):
        if isinstance(argument, GenericConst):
            return torch.from_numpy(np.array(argument.value.numpy())).double()
        if isinstance(argument, relax.Tuple):
            return [value(each) for each in argument.fields]
        if isinstance(argument, relax.ShapeExpr):
            return [int(each) for each in argument.values]
        return known[argument] if isinstance(argument, relax.Var) else float(argument.value)

    for block in main.body.blocks:
        for binding in block.bindings:
            call = binding.value
            if isinstance(call, relax.Call):
                found = OPERATORS[call.op.name.removeprefix("relax.")](call.attrs, *map(value, call.args))
            else:
                found = value(call)
            known[binding.var] = found
            if not isinstance(found, list):
                assert tuple(found.shape) == tuple(map(int, binding.var.ty.shape.values))
    results = value(main.body.body)
    return [each.numpy() for each in (results if isinstance(results, list) else [results])]


def _ints(values):
    return [int(each) for each in values]


def _window(attrs):
    return _ints(attrs.pool_size), _ints(attrs.strides), _ints(attrs.padding[:2])


OPERATORS = {
    "nn.conv2d": lambda a, x, w: F.conv2d(x, w, None, 1, _ints(a.padding[:2]), 1, int(a.groups)),
    "matmul": lambda a, x, w: x @ w,
    "add": lambda a, x, y: x + y,
    "multiply": lambda a, x, y: x * y,
    "subtract": lambda a, x, y: x - y,
    "maximum": lambda a, x, y: torch.maximum(x, y),
    "nn.relu": lambda a, x: F.relu(x),
    "sigmoid": lambda a, x: torch.sigmoid(x),
    "tanh": lambda a, x: torch.tanh(x),
    "exp": lambda a, x: torch.exp(x),
    "abs": lambda a, x: torch.abs(x),
    "sin": lambda a, x: torch.sin(x),
    "nn.silu": lambda a, x: F.silu(x),
    "nn.gelu": lambda a, x: F.gelu(x),
    "nn.leakyrelu": lambda a, x: F.leaky_relu(x, a.alpha),
    "clip": lambda a, x, low, high: x.clamp(low, high),
    "mean": lambda a, x: x.mean(_ints(a.axis), bool(a.keepdims)),
    "sum": lambda a, x: x.sum(),
    "concat": lambda a, each: torch.cat(each, int(a.axis)),
    "nn.max_pool2d": lambda a, x: F.max_pool2d(x, *_window(a)),
    "nn.avg_pool2d": lambda a, x: F.avg_pool2d(x, *_window(a), count_include_pad=bool(a.count_include_pad)),
    "nn.adaptive_avg_pool2d": lambda a, x: F.adaptive_avg_pool2d(x, _ints(a.output_size)),
    "nn.pad": lambda a, x: F.pad(x, _ints(a.pad_width)[6:] + _ints(a.pad_width)[4:6], value=float(a.pad_value)),
    "image.resize2d": lambda a, x, size: F.interpolate(x, size),
    "permute_dims": lambda a, x: x.permute(_ints(a.axes)),
    "reshape": lambda a, x, shape: x.reshape(shape),
}
