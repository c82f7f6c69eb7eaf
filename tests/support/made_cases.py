"""Cases of one node for what ONNX's node tests leave out, each made from one of them by a change of one trait."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import onnx
import onnxruntime
from node_tests import Case, difference_of, frozen, onnx_cases
from onnx import helper
from onnx.reference import ReferenceEvaluator

# Attributes that say of which type an output is.
TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")
# Of one name.
CASES = 2


def made_name(operator: str, key: str, value: Any) -> str:
    """Of a case in which a node of `operator` has a trait; see `tvm_sparse.frontend.onnx.rules.traits`."""
    return f"made|{operator}|{key}|{json.dumps(value)}"


def made_cases(name: str) -> Iterator[Case]:
    """Some cases of a name, if there are node tests to make them from."""
    yield from islice(_made_cases(name), CASES)


def _made_cases(name: str) -> Iterator[Case]:
    _, operator, key, text = name.split("|")
    for case in base_cases().get(operator, []):
        changed = _changed(replace(case, name=name, inputs=list(case.inputs)), key, json.loads(text))
        found = changed and with_expected(changed, by_runtime=key == "version")
        if found:
            yield found


@cache
def base_cases() -> dict[str, list[Case]]:
    """Node tests of a single node, by operator."""
    found: dict[str, list[Case]] = {}
    for case in onnx_cases():
        if len(case.model.graph.node) == 1 and all(isinstance(each, np.ndarray | np.generic) for each in case.inputs):
            found.setdefault(case.model.graph.node[0].op_type, []).append(case)
    return found


def _changed(case: Case, key: str, value: Any) -> Case | None:
    """A copy of `case` whose node has another trait, None where it cannot have that."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    case = replace(case, model=model)
    (node,) = model.graph.node
    schema = _schema(model)
    if key == "version":
        return _at_version(case, schema, value)
    if key[0].isupper():
        return _with_type(case, schema, key, value)
    for kind in ("input_", "optional_"):
        if key.startswith(kind):
            return _with_kind(case, schema, key.removeprefix(kind), value)
    if key in schema.attributes:
        kept = [each for each in node.attribute if each.name != key]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(key, value)])
        return case
    names = [each.name for each in schema.outputs]
    if key.removeprefix("output_") not in names:
        return None
    node.output.extend(names[len(node.output) : names.index(key.removeprefix("output_")) + 1])
    return case


def _with_kind(case: Case, schema: Any, name: str, kind: str) -> Case | None:
    """`case` with an input as a constant of the model, or computed; None where the node does without it."""
    (node,) = case.model.graph.node
    at = [each.name for each in schema.inputs].index(name) if name in [each.name for each in schema.inputs] else None
    if at is None or at >= len(node.input) or not node.input[at]:
        return None
    others = [each.name for each in case.model.graph.input if each.name != node.input[at]]
    return frozen(case, others) if kind == "constant" else case


def _schema(model: Any) -> Any:
    opset = next(each.version for each in model.opset_import if each.domain == "")
    return onnx.defs.get_schema(model.graph.node[0].op_type, opset, "")


def _at_version(case: Case, schema: Any, version: int) -> Case | None:
    """`case` of the operator set `version`, in which some inputs were attributes still."""
    (node,) = case.model.graph.node
    old = onnx.defs.get_schema(node.op_type, version, "")
    for each in case.model.opset_import:
        each.version = version
    case.model.ir_version = min(case.model.ir_version, 8)
    known = {each.name for each in old.inputs}
    moved = [(at, each.name) for at, each in enumerate(schema.inputs) if each.name not in known]
    for at, name in [each for each in moved[::-1] if each[1] in old.attributes and each[0] < len(node.input)]:
        if node.input[at]:
            index = [value.name for value in case.model.graph.input].index(node.input[at])
            array = np.asarray(case.inputs.pop(index))
            del case.model.graph.input[index]
            if not array.size:
                return None
            kinds = onnx.defs.OpSchema.AttrType
            is_list = old.attributes[name].type in (kinds.INTS, kinds.FLOATS)
            node.attribute.append(helper.make_attribute(name, array.ravel().tolist() if is_list else array.item()))
        del node.input[at]
    for each in [each for each in node.attribute if each.name not in old.attributes]:
        default = schema.attributes[each.name].default_value
        if default.type and helper.get_attribute_value(default) != helper.get_attribute_value(each):
            return None
        node.attribute.remove(each)
    return case


def _with_type(case: Case, schema: Any, parameter: str, dtype: str) -> Case:
    """`case` with another element type for one type parameter."""
    (node,) = case.model.graph.node
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    formals = [schema.inputs[min(at, len(schema.inputs) - 1)].type_str for at in range(len(node.input))]
    names = {name for name, formal in zip(node.input, formals, strict=True) if formal == parameter}
    for index, value in enumerate(case.model.graph.input):
        if value.name in names:
            case.inputs[index] = array_as(np.asarray(case.inputs[index]), dtype)
            value.type.tensor_type.elem_type = kind
    for attribute in node.attribute:
        if attribute.name in TYPE_ATTRIBUTES and not names:
            attribute.i = kind
            if np.dtype(dtype).kind in "iu":
                # What becomes of other numbers, of infinities and NaN, ONNX leaves open.
                case.inputs[:] = [_in_range(each) for each in case.inputs]
    return case


def _in_range(array: np.ndarray) -> np.ndarray:
    """`array` with numbers that any integer type has."""
    return np.clip(np.nan_to_num(array), 0, 100).astype(array.dtype) if array.dtype.kind == "f" else array


def array_as(array: np.ndarray, dtype: str) -> np.ndarray:
    """`array` in another type, spread so that an integer type has more than a few of its numbers."""
    if array.dtype == dtype:
        return array
    values = array.astype(np.float64)
    if dtype == "bool":
        return values > np.mean(values)
    if np.dtype(dtype).kind in "iu" and array.dtype.kind == "f":
        values *= 10
    return (np.abs(values) if np.dtype(dtype).kind == "u" else values).astype(dtype)


def with_expected(case: Case, by_runtime: bool = False) -> Case | None:
    """`case` with what it shall give, None where it is invalid or nobody computes it.

    ONNX's reference evaluator and ONNX Runtime must agree, but `by_runtime`, where the latter is right: the former
    reads few operators as older operator sets have them, Softmax for one, and mistakes LRN.
    """
    model, feeds = case.model, dict(zip([value.name for value in case.model.graph.input], case.inputs, strict=True))
    names = [name for name in model.graph.node[0].output if name]
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    found = [each for each in (_evaluated(model, feeds), _run(model, feeds)) if each]
    if not found:
        return None
    case = replace(case, expected=found[-1] if by_runtime else found[0])
    if not by_runtime and any(difference_of(case, each) for each in found):
        return None
    del model.graph.output[:]
    for name, array in zip(names, case.expected, strict=True):
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        model.graph.output.append(helper.make_tensor_value_info(name, kind, array.shape))
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return None
    return case


def _evaluated(model: Any, feeds: dict[str, Any]) -> list[Any]:
    try:
        return [np.asarray(each) for each in ReferenceEvaluator(model).run(None, feeds)]
    # It fails in any way where it does not know the types or the version.
    except Exception:
        return []


def _run(model: Any, feeds: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        found = session.run(None, feeds)
        return found if all(isinstance(each, np.ndarray) for each in found) else []
    # As above: its errors have no class in common.
    except Exception:
        return []


def merged(cases: list[Case]) -> Case:
    """The nodes of cases of one operator set in one model: to compile a model takes longer than to compile a node."""
    graph = onnx.GraphProto(name="merged")
    for index, case in enumerate(cases):
        part = onnx.compose.add_prefix(case.model, f"part{index}_").graph
        for field in ("node", "input", "output", "initializer"):
            getattr(graph, field).extend(getattr(part, field))
    first = cases[0].model
    return Case(
        f"{cases[0].name} and {len(cases) - 1} others",
        helper.make_model(graph, opset_imports=first.opset_import, ir_version=first.ir_version),
        [array for case in cases for array in case.inputs],
        [array for case in cases for array in case.expected],
        max(case.rtol for case in cases),
    )
