"""Activations of the recurrent layers of ONNX, which name them in an attribute, as nodes."""

from collections.abc import Callable, Mapping
from typing import Any

from tvm_sparse.errors import ModelError

# Adds nodes, by a function of an operator, its inputs and attributes, that compute of a tensor; the result's name.
Activation = Callable[[Callable[..., str], str], str]

# Operator -> activations of one direction where the layer names none.
DEFAULTS = {"RNN": ["tanh"], "GRU": ["sigmoid", "tanh"], "LSTM": ["sigmoid", "tanh", "tanh"]}
# Activation in small letters -> ONNX's operator, and the attributes that it takes with their defaults.
_OPERATORS: dict[str, tuple[str, dict[str, float | None]]] = {
    "relu": ("Relu", {}),
    "tanh": ("Tanh", {}),
    "sigmoid": ("Sigmoid", {}),
    "softsign": ("Softsign", {}),
    "softplus": ("Softplus", {}),
    "leakyrelu": ("LeakyRelu", {"alpha": 0.01}),
    "thresholdedrelu": ("ThresholdedRelu", {"alpha": 1.0}),
    "elu": ("Elu", {"alpha": 1.0}),
    "hardsigmoid": ("HardSigmoid", {"alpha": 0.2, "beta": 0.5}),
    # No operators: alpha * x + beta, and alpha * tanh(beta * x). The standard has no defaults for them.
    "affine": ("", {"alpha": None, "beta": None}),
    "scaledtanh": ("", {"alpha": None, "beta": None}),
}


def activations_of(where: str, kind: str, directions: int, attributes: Mapping[str, Any]) -> list[list[Activation]]:
    """The activations of each direction of a layer of that `kind`, a key of `DEFAULTS`.

    ModelError where one is unknown or lacks a parameter, or they are too few.
    """
    count = len(DEFAULTS[kind])
    given = [each.decode(errors="replace") for each in attributes.get("activations", [])]
    names = given or DEFAULTS[kind] * directions
    if len(names) != count * directions:
        raise ModelError(where, "it has another number of activations", len(names), str(count * directions))
    values = {key: iter(attributes.get(f"activation_{key}", [])) for key in ("alpha", "beta")}
    found = []
    for name in names:
        if name.lower() not in _OPERATORS:
            raise ModelError(where, "its activation is unknown", name, ", ".join(_OPERATORS))
        operator, defaults = _OPERATORS[name.lower()]
        # Each takes the next value of those that are given, if it takes one at all.
        parameters = {key: next(values[key], default) for key, default in defaults.items()}
        if None in parameters.values():
            raise ModelError(where, f"its activation {name} has no parameters", hint="give activation_alpha and _beta")
        found.append(
            _activation(
                name.lower(), operator, {key: float(value) for key, value in parameters.items() if value is not None}
            )
        )
    return [found[index * count : (index + 1) * count] for index in range(directions)]


def _activation(name: str, operator: str, parameters: Mapping[str, float]) -> Activation:
    def activate(add: Callable[..., str], x: str) -> str:
        if operator:
            return add(operator, x, **parameters)
        alpha, beta = parameters["alpha"], parameters["beta"]
        if name == "affine":
            return add("Add", add("Mul", x, alpha), beta)
        return add("Mul", add("Tanh", add("Mul", x, beta)), alpha)

    return activate
