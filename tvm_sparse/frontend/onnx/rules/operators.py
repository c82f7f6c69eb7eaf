"""Refuses ONNX models that ask for what no test has seen to be imported right."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from tvm_sparse.errors import ModelError
from tvm_sparse.frontend.onnx.graph.constants import ONNX_DOMAINS
from tvm_sparse.frontend.onnx.rules.operator_table import FREE, OPERATORS, OPSETS, WAYS_OUT, Rules
from tvm_sparse.frontend.onnx.rules.refuse import refuse_training
from tvm_sparse.frontend.onnx.rules.traits import Trait, nodes_with_traits
from tvm_sparse.frontend.optional_imports import onnx

_WAY_OUT = "replace it by other operators, or compute it outside the model"


@dataclass(frozen=True)
class Unknown:
    """A node that the table of operators does not have, for one of its traits if that has a `key`.

    `allowed` are other values of that.
    """

    node: Any
    key: str = ""
    value: Any = None
    allowed: str = ""


def unknown_nodes(model: Any) -> Iterator[Unknown]:
    """The nodes of an `onnx.ModelProto` that ask for more than the table of operators has."""
    for node, traits in nodes_with_traits(model):
        choices = OPERATORS.get(node.op_type) if node.domain in ONNX_DOMAINS else None
        found = _unknown(node, traits, choices) if traits is not None and choices else Unknown(node)
        if found is not None:
            yield found


def _unknown(node: Any, traits: Sequence[Trait], choices: Sequence[Rules]) -> Unknown | None:
    """The first trait of a node that the last of some rules does not allow, None where one of them allows all."""
    first = None
    for rules in choices:
        allowed = {"version": versions(node.op_type), **rules}
        first = next((trait for trait in traits if not _is_allowed(allowed, *trait)), None)
        if first is None:
            return None
    key, value = first or ("", None)
    return Unknown(node, key, value, ", ".join(map(str, allowed.get(key, ()))))


def _is_allowed(allowed: Rules, key: str, value: Any) -> bool:
    if key not in allowed:
        # These matter where the table says so only.
        return key == "rank" or key.startswith("input_")
    return allowed[key] is FREE or value in allowed[key]


@cache
def versions(operator: str) -> tuple[int, ...]:
    """The versions of an operator that the tested operator sets have."""
    schemas = [onnx.defs.get_schema(operator, opset, "") for opset in OPSETS if onnx.defs.has(operator, opset, "")]
    return tuple(sorted({each.since_version for each in schemas if not each.deprecated}))


def require_known(where: str, model: Any) -> None:
    """Raise ModelError where a node of an `onnx.ModelProto` asks for what the table of operators does not have."""
    # Folding has found more constants by now, which may say so.
    refuse_training(where, model)
    found = next(unknown_nodes(model), None)
    if found is None:
        return
    node = found.node
    operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    name = f"{where}, node {node.name or next(filter(None, node.output), operator)}"
    hint = WAYS_OUT.get(node.op_type, _WAY_OUT)
    if not found.key:
        raise ModelError(name, "its operator is not supported", operator, hint=hint)
    problem = f"{operator} is not supported with this {_words(found.key)}"
    raise ModelError(name, problem, found.value, found.allowed or "none", hint)


def _words(key: str) -> str:
    """What a key of a trait stands for."""
    kind, _, name = key.partition("_")
    if kind in ("input", "optional"):
        return f"kind of input {name}"
    if kind == "output":
        return f"use of its output {name}"
    words = {"version": "version of itself", "rank": "number of axes of its input"}
    return words.get(key, f"element type {key}" if key[0].isupper() else key)
