"""One step of each recurrent layer of ONNX as nodes, from the state and cell before it to those after."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tvm_sparse.frontend.onnx.rewriting.recurrent_activations import Activation


@dataclass
class Direction:
    """One direction of a layer: names of its tensors, each of one direction, and what its steps compute with.

    `products` are the inputs' products with W, with the bias, of each step; `state` and `cell` those before the next.
    """

    add: Callable[..., str]
    split: Callable[[str, int, int], list[str]]
    activations: list[Activation]
    products: list[str]
    recurrent: str
    state: str
    cell: str = ""
    bias: str = ""
    peepholes: list[str] = field(default_factory=list)
    clip: float = 0.0
    is_reset_late: bool = False
    is_coupled: bool = False
    parts: list[str] = field(default_factory=list)

    def activate(self, index: int, x: str) -> str:
        """The activation of that index, of `x` within the bounds of `clip`."""
        if self.clip:
            x = self.add("Min", self.add("Max", x, -self.clip), self.clip)
        return self.activations[index](self.add, x)


def _rnn_step(of: Direction, product: str) -> None:
    of.state = of.activate(0, of.add("Add", product, of.add("MatMul", of.state, of.recurrent)))


def _gru_step(of: Direction, product: str) -> None:
    z, r, h = of.split(product, 3, 1)
    update_and_reset, hidden = of.parts
    recurrent_z, recurrent_r = of.split(of.add("MatMul", of.state, update_and_reset), 2, 1)
    z = of.activate(0, of.add("Add", z, recurrent_z))
    r = of.activate(0, of.add("Add", r, recurrent_r))
    if of.is_reset_late:
        recurrent_h = of.add("Mul", r, of.add("Add", of.add("MatMul", of.state, hidden), of.bias))
    else:
        recurrent_h = of.add("MatMul", of.add("Mul", r, of.state), hidden)
    h = of.activate(1, of.add("Add", h, recurrent_h))
    of.state = of.add("Add", of.add("Mul", of.add("Sub", 1.0, z), h), of.add("Mul", z, of.state))


def _lstm_step(of: Direction, product: str) -> None:
    i, o, f, c = of.split(of.add("Add", product, of.add("MatMul", of.state, of.recurrent)), 4, 1)
    if of.peepholes:
        i, f = (of.add("Add", x, of.add("Mul", of.peepholes[at], of.cell)) for x, at in ((i, 0), (f, 2)))
    i = of.activate(0, i)
    f = of.add("Sub", 1.0, i) if of.is_coupled else of.activate(0, f)
    of.cell = of.add("Add", of.add("Mul", f, of.cell), of.add("Mul", i, of.activate(1, c)))
    if of.peepholes:
        o = of.add("Add", o, of.add("Mul", of.peepholes[1], of.cell))
    o = of.activate(0, o)
    of.state = of.add("Mul", o, of.activations[2](of.add, of.cell))


# Operator -> what adds the nodes of one step, which get the step's product.
STEPS: dict[str, Callable[[Direction, str], None]] = {"RNN": _rnn_step, "GRU": _gru_step, "LSTM": _lstm_step}
