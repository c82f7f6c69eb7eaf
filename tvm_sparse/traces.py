"""Check a MetaSchedule trace in JSON before TVM replays it.

Traces come from logs, and logs come from anywhere. TVM trusts them: an instruction with an argument too few, or of
another type, ends the process. So each instruction is held against the form that TVM writes it in, each variable must
have been made before it is used, and what a split divides by must be positive.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

# Kinds of values: block, loop and sampled integer (variables), none, bool, int, float, string, lists of int and of
# float, of blocks, and the empty list. An instruction's values, one letter each, must match its pattern.
_LISTS = {"b": "B", "i": "I", "f": "F"}
# Instruction -> patterns of its inputs, its attributes and its outputs.
FORMS: dict[str, tuple[str, str, str]] = {
    "EnterPostproc": ("", "", ""),
    "GetSBlock": ("", "ss", "b"),
    "GetLoops": ("b", "", "l*"),
    "GetChildBlocks": ("[bl]", "", "b*"),
    "GetProducers": ("b", "", "b*"),
    "GetConsumers": ("b", "", "b*"),
    "GetOutputBlocks": ("b", "", "b*"),
    "SampleCategorical": ("", "IF", "v"),
    "SamplePerfectTile": ("l", "ii", "v+"),
    "SampleComputeLocation": ("b", "", "l"),
    "Split": ("l[nvi]{2,}", "[ti]{2}", "l{2,}"),
    "Fuse": ("l+", "[ti]", "l"),
    "Reorder": ("l+", "", ""),
    "ReorderBlockIterVar": ("b", "I", ""),
    "AddUnitLoop": ("[lb]", "", "l"),
    "Parallel": ("l", "", ""),
    "Vectorize": ("l", "", ""),
    "Unroll": ("l", "", ""),
    "Bind": ("l", "s", ""),
    "ComputeAt": ("bl", "[ti]i", ""),
    "ReverseComputeAt": ("bl", "[ti]i", ""),
    "ComputeInline": ("b", "", ""),
    "ReverseComputeInline": ("b", "", ""),
    "CacheRead": ("b[BE]", "is", "b"),
    "CacheWrite": ("b[BE]", "is", "b"),
    "DecomposeReduction": ("bl", "", "b"),
    "RFactor": ("l", "i", "b"),
    "SetScope": ("b", "is", ""),
    "StorageAlign": ("b", "i{4}", ""),
    "TransformLayout": ("bs", "ii[nfi][ti]", ""),
    "Blockize": ("[lb]", "[ti]", "b"),
    "Tensorize": ("[lb]", "s[ti]", ""),
    "PadEinsum": ("b", "I", ""),
    "DecomposePadding": ("bl", "", "b"),
    "Annotate": ("[lb][vtifsI]", "s", ""),
    "Unannotate": ("[lb]", "s", ""),
}
_VARIABLE = re.compile(r"[blv]\d+")
MAX_INSTRUCTIONS = 5000


def check_trace(trace: Any, layouts: Collection[str] = ()) -> None:
    """Raise ValueError, with the reason, unless TVM can replay `trace` without ending the process.

    Whether the trace fits the function that it is replayed on, TVM says itself.

    Parameters
    ----------
    trace
        JSON values ``[instructions, decisions]``.
    layouts
        Index maps that ``TransformLayout`` may use: they are TVM objects in a format of their own.
    """
    if not _has_types(trace, list, list):
        raise ValueError("it is not a list of instructions and a list of decisions")
    instructions, decisions = trace
    if len(instructions) > MAX_INSTRUCTIONS:
        raise ValueError(f"it has {len(instructions)} instructions, more than {MAX_INSTRUCTIONS}")
    chosen = _chosen(decisions, len(instructions))
    state = _State(layouts)
    for position, instruction in enumerate(instructions):
        try:
            state.take(instruction, chosen.get(position))
        except ValueError as error:
            raise ValueError(f"instruction {position}: {error}") from None
        chosen.pop(position, None)
    if chosen:
        raise ValueError("a decision belongs to no instruction that samples")


def _chosen(decisions: list[Any], count: int) -> dict[int, Any]:
    chosen = {}
    for decision in decisions:
        if not isinstance(decision, list) or len(decision) != 2 or type(decision[0]) is not int or decision[1] is None:
            raise ValueError("a decision is not a position and a value")
        if not 0 <= decision[0] < count or decision[0] in chosen:
            raise ValueError(f"decision for position {decision[0]}, which is none or taken")
        chosen[decision[0]] = decision[1]
    return chosen


def _has_types(value: Any, *types: type) -> bool:
    """Whether `value` is a list of elements of just these types."""
    return isinstance(value, list) and len(value) == len(types) and all(map(isinstance, value, types))


class _State:
    """What a trace has made so far: variables, and the values that sampled ones may have."""

    def __init__(self, layouts: Collection[str]):
        self.layouts = layouts
        self.made: set[str] = set()
        self.values: dict[str, list[int]] = {}

    def take(self, instruction: Any, decision: Any) -> None:
        """Check one instruction; ValueError where it is not as TVM writes it."""
        if not _has_types(instruction, str, list, list, list):
            raise ValueError("it is not a name with inputs, attributes and outputs")
        name, inputs, attributes, outputs = instruction
        if name not in FORMS:
            raise ValueError(f"{name[:40]!r} is unknown")
        letters = ["".join(map(self._input, inputs)), "".join(map(_attribute, attributes)), _outputs(outputs)]
        for what, found, form in zip(("inputs", "attributes", "outputs"), letters, FORMS[name], strict=True):
            if not re.fullmatch(form, found):
                raise ValueError(f"{name} has other {what}")
        _check_decision(name, attributes, outputs, decision)
        if name == "TransformLayout" and inputs[1] not in self.layouts:
            raise ValueError("TransformLayout has a layout that the schedule does not use")
        if name == "Split":
            self._check_split(inputs[1:], outputs)
        self._remember(name, attributes, outputs, decision)
        self.made.update(outputs)

    def _input(self, value: Any) -> str:
        if isinstance(value, str) and _VARIABLE.fullmatch(value):
            if value not in self.made:
                raise ValueError(f"{value} is used before it is made")
            return value[0]
        if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
            return _LISTS["b"] if all(self._input(each) == "b" for each in value) else "?"
        return "n" if value == "None" else _attribute(value)

    def _check_split(self, factors: list[Any], outputs: list[str]) -> None:
        if len(factors) != len(outputs) or sum(factor in (None, "None") for factor in factors) > 1:
            raise ValueError("Split has other factors than loops, or several to be inferred")
        for factor in factors:
            values = self.values.get(factor, []) if isinstance(factor, str) else [factor]
            if any(type(value) is int and value < 1 for value in values):
                raise ValueError("Split has a factor below 1")

    def _remember(self, name: str, attributes: list[Any], outputs: list[str], decision: Any) -> None:
        if name == "SampleCategorical":
            self.values[outputs[0]] = attributes[0] if decision is None else [attributes[0][decision]]
        elif name == "SamplePerfectTile" and decision is not None:
            self.values.update({output: [value] for output, value in zip(outputs, decision, strict=True)})


def _attribute(value: Any) -> str:
    """The letter of a JSON value."""
    if value is None:
        return "n"
    if isinstance(value, bool):
        return "t"
    if isinstance(value, int):
        return "i" if abs(value) < 2**31 else "?"
    if isinstance(value, float | str):
        return "f" if isinstance(value, float) else "s"
    if not isinstance(value, list):
        return "?"
    letters = set(map(_attribute, value))
    # Whole probabilities are written as integers.
    letters = {"f"} if letters == {"f", "i"} else letters
    return "E" if not value else _LISTS.get(letters.pop(), "?") if len(letters) == 1 else "?"


def _outputs(outputs: list[Any]) -> str:
    if not all(isinstance(each, str) and _VARIABLE.fullmatch(each) for each in outputs):
        return "?"
    return "".join(each[0] for each in outputs)


def _check_decision(name: str, attributes: list[Any], outputs: list[str], decision: Any) -> None:
    """A sampled value is one of those offered."""
    if name == "SampleCategorical":
        if len(attributes[0]) != len(attributes[1]):
            raise ValueError("SampleCategorical has other probabilities than candidates")
        is_valid = decision is None or (type(decision) is int and 0 <= decision < len(attributes[0]))
    elif name == "SamplePerfectTile":
        if attributes[0] != len(outputs) or attributes[1] < 1:
            raise ValueError("SamplePerfectTile has other factors than outputs")
        is_valid = decision is None or (
            isinstance(decision, list)
            and len(decision) == len(outputs)
            and all(type(value) is int and 1 <= value < 2**31 for value in decision)
        )
    elif name == "SampleComputeLocation":
        is_valid = decision is None or (type(decision) is int and -2 <= decision < MAX_INSTRUCTIONS)
    else:
        is_valid = decision is None
    if not is_valid:
        raise ValueError(f"{name} cannot have decided for {str(decision)[:40]}")
