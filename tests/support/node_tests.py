"""ONNX's own node tests: each is compiled, called and compared with what it expects."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper
from onnx_zoo import UNOPTIMISED

from tvm_sparse.frontend.onnx.rules.operator_table import OPERATORS

# ONNX's own for its node tests, where a case says nothing else; the former fails for zeros that are not exact.
RTOL, ATOL = 1e-3, 1e-6
# Of types that round coarsely: as much as two steps of them, relative to the number.
COARSE_RTOL = {"float16": 2 * 2**-10, "bfloat16": 2 * 2**-7}


@dataclass(frozen=True)
class Case:
    """A model, arrays for its inputs in order, and what it shall give."""

    name: str
    model: Any
    inputs: list[Any]
    expected: list[Any]
    rtol: float = RTOL


@dataclass(frozen=True)
class Outcome:
    """What became of a case: `kind` is right, refused, wrong, raw or hang, `reason` why; `evidence` what it showed."""

    name: str
    operators: list[str]
    kind: str
    reason: str = ""
    evidence: list[list[Any]] = ()
    seconds: float = 0.0


@cache
def onnx_cases(*modules: str) -> list[Case]:
    """All node tests that the installed onnx has, or those of some of its modules: to make all takes five seconds."""
    from onnx.backend.test.case import node

    for name in modules:
        import_module(f"{node.__name__}.{name}")
    return [
        Case(each.name, each.model, *([_plain(a) for a in arrays] for arrays in each.data_sets[0]), rtol=each.rtol)
        for each in (node._NodeTestCases if modules else node.collect_testcases())
    ]


def _plain(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def frozen(case: Case, open_inputs: list[str]) -> Case:
    """`case` with all inputs as constants but for `open_inputs`."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    given = list(zip(case.model.graph.input, case.inputs, strict=True))
    del model.graph.input[:]
    model.graph.input.extend(value for value, _ in given if value.name in open_inputs)
    constants = [(np.asarray(array), value.name) for value, array in given if value.name not in open_inputs]
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for array, name in constants)
    return replace(case, model=model, inputs=[array for value, array in given if value.name in open_inputs])


def forms(case: Case) -> Iterator[Case]:
    """`case` as it is, then with more and more of its inputs as constants, as networks have shapes and weights."""
    yield case
    names = [value.name for value in case.model.graph.input]
    if len(names) < 2 or not all(isinstance(array, np.ndarray | np.generic) for array in case.inputs):
        return
    is_number = [np.asarray(array).dtype.kind not in "iub" for array in case.inputs]
    numbers = [name for at, (name, is_one) in enumerate(zip(names, is_number, strict=True)) if at == 0 or is_one]
    yield from (frozen(case, each) for each in ([numbers] if len(numbers) not in (1, len(names)) else []))
    yield frozen(case, names[:1])


def as_networks_have_it(case: Case) -> Case:
    """`case` with constants for those inputs that the table of operators wants so."""
    wanted = set()
    opset = next((each.version for each in case.model.opset_import if each.domain == ""), 1)
    for node in case.model.graph.node:
        rules = {key: value for each in OPERATORS.get(node.op_type, ()) for key, value in each.items()}
        formals = onnx.defs.get_schema(node.op_type, opset, "").inputs if rules else []
        for name, formal in zip(node.input, formals, strict=False):
            if ("constant",) in (rules.get(f"input_{formal.name}"), rules.get(f"optional_{formal.name}")):
                wanted.add(name)
    names = [value.name for value in case.model.graph.input]
    left = [name for name in names if name not in wanted]
    return frozen(case, left) if left and len(left) < len(names) else case


def operators_of(case: Case) -> list[str]:
    """The operators of its model."""
    return sorted({node.op_type for node in case.model.graph.node})


def run_form(case: Case) -> Outcome:
    """The outcome of `case` as it is, in this process."""
    return Outcome(case.name, operators_of(case), *_attempt(case))


def run_case(case: Case) -> Outcome:
    """The outcome of the first form of `case` that is right, or else of the worst, in this process."""
    worst = None
    for form in forms(case):
        outcome = run_form(form)
        if outcome.kind == "right":
            return outcome if worst is None or worst.kind == "refused" else worst
        if worst is None or (worst.kind == "refused" and outcome.kind != "refused") or outcome.kind == "wrong":
            worst = outcome
    assert worst is not None
    return worst


def _attempt(case: Case) -> tuple[str, str, list[list[Any]]]:
    """Compile and call one form of a case."""

    import tvm_sparse

    evidence: list[list[Any]] = []
    try:
        with tempfile.TemporaryDirectory() as folder, _noting(evidence):
            path = Path(folder) / "model.onnx"
            onnx.save(case.model, path)
            shapes = {
                v.name: np.shape(a)
                for v, a in zip(case.model.graph.input, case.inputs, strict=True)
                if isinstance(a, np.ndarray | np.generic)
            }
            compiled = tvm_sparse.compile(path, shapes=shapes, target=UNOPTIMISED, progress=False, compare=False)
            found = compiled(*map(np.asarray, case.inputs))
    except tvm_sparse.TvmSparseError as error:
        kind = "raw" if "internal error" in str(error) else "refused"
        return kind, f"{type(error).__name__}: {str(error).replace(str(path), 'model')[:400]}", []
    except Exception as error:
        return "raw", f"{type(error).__name__}: {str(error)[:400]}", []
    outputs = list(found) if isinstance(found, list | tuple) else [found]
    difference = difference_of(case, outputs)
    return ("wrong", difference, []) if difference else ("right", "", evidence)


@contextlib.contextmanager
def _noting(evidence: list[list[Any]]) -> Iterator[None]:
    """Append to `evidence` the operators and traits of every model that is given to TVM's importer."""
    from tvm_sparse.frontend.onnx import import_model
    from tvm_sparse.frontend.onnx.rules.traits import nodes_with_traits

    original = import_model.from_onnx

    def noted(model: Any, *rest: Any) -> Any:
        for node, traits in nodes_with_traits(model):
            evidence.extend([node.op_type, key, value] for key, value in traits or ())
        return original(model, *rest)

    import_model.from_onnx = noted
    try:
        yield
    finally:
        import_model.from_onnx = original


def difference_of(case: Case, outputs: list[Any]) -> str:
    """How `outputs` differ from what `case` expects, empty where they do not."""
    if len(outputs) != len(case.expected):
        return f"{len(outputs)} outputs, not {len(case.expected)}"
    for index, (wanted, found) in enumerate(zip(map(np.asarray, case.expected), map(np.asarray, outputs), strict=True)):
        if (wanted.shape, wanted.dtype) != (found.shape, found.dtype):
            return f"output {index} is {found.dtype}{found.shape}, not {wanted.dtype}{wanted.shape}"
        is_float = wanted.dtype.kind in "fc" or wanted.dtype in (ml_dtypes.bfloat16,)
        a, b = (each.astype(np.float64) if is_float else each for each in (wanted, found))
        coarse = COARSE_RTOL.get(str(wanted.dtype), 0)
        # What is a small difference of larger numbers has their rounding.
        atol = max(ATOL, coarse / 2 * np.max(np.abs(a), initial=0, where=np.isfinite(a))) if coarse else ATOL
        rtol = max(case.rtol, coarse)
        same = np.isclose(b, a, rtol=rtol, atol=atol, equal_nan=True) if is_float else a == b
        if not same.all():
            return f"output {index} is {b[~same].ravel()[0]}, not {a[~same].ravel()[0]}, at {(~same).sum()} places"
    return ""
