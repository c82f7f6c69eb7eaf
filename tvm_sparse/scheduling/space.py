"""What a schedule space is: a dense PrimFunc, and a schedule of it whose decisions have names.

A hand-made space schedules in a straight line and asks for its decisions by name (`Choose`). MetaSchedule samples them
in a search; otherwise they are given, or the space's defaults. A generated space has MetaSchedule's rules instead, and
its decisions are MetaSchedule's trace. Either is what a tuning log keeps (`Decisions`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T

from tvm_sparse.errors import BuildError, UsageError
from tvm_sparse.scheduling.decision_kinds import OneOf, Split
from tvm_sparse.scheduling.trace import replayed, trace_to_json

# Decisions by name as JSON values; of a generated space a JSON trace.
Decisions = dict[str, Any] | list[Any]
MakeFunc = Callable[[], tirx.PrimFunc]


class NotApplicable(Exception):
    """Why a schedule does not serve a convolution, as a sentence."""


class Choose:
    """Asks for the decisions of one schedule: as given by name, else the default, else as MetaSchedule samples."""

    def __init__(self, sch: Schedule, where: str, given: Mapping[str, Any] | None = None):
        self.sch, self.where, self.given = sch, where, given
        self.choices: dict[str, OneOf | Split] = {}

    def one_of(self, name: str, candidates: Iterable[int], default: int) -> Any:
        """One of `candidates`, all equally likely in a search."""
        choice = OneOf(tuple(sorted(set(candidates))))
        decision = choice.values.index(self._value(name, choice, default))
        values, likely = [int(value) for value in choice.values], [1.0 / len(choice.values)] * len(choice.values)
        return self.sch.sample_categorical(values, likely, decision=decision)

    def split(self, name: str, loop: LoopRV, parts: int, most_innermost: int, default: list[int]) -> Any:
        """How `loop` is split into `parts`, without remainder."""
        choice = Split(int(self.sch.get(loop).extent), parts, most_innermost)
        decision = self._value(name, choice, default)
        return self.sch.sample_perfect_tile(loop, n=parts, max_innermost_factor=most_innermost, decision=decision)

    def _value(self, name: str, choice: OneOf | Split, default: Any) -> Any:
        self.choices[name] = choice
        if self.given is None:
            return default
        if name not in self.given:
            raise BuildError(self.where, f"decision {name} is missing", allowed=str(choice))
        value = choice.from_json(self.given[name])
        if value is None:
            raise BuildError(self.where, f"decision {name} does not fit", repr(self.given[name])[:80], str(choice))
        return value

    def end(self) -> None:
        """Raise BuildError where something was given that nobody asked for."""
        unknown = [name for name in self.given or () if name not in self.choices]
        if unknown:
            raise BuildError(self.where, "unknown decision", unknown[0][:80], ", ".join(self.choices) or "none")


class Space(ABC):
    """One search space for one convolution.

    * `schedule`, `variant`: name of the schedule and of the layout or structure within it that the search does not
      change.
    * `make_func`: makes `func`, when it is needed: of most spaces only the name or an estimate is asked for.
    * `fold`: whether the weight, argument 1, is folded into the code afterwards.
    """

    # Whether `features` describe a schedule; else TVM's of the loop nest do, which know nothing of folding.
    has_features = False

    def __init__(self, schedule: str, variant: str, make_func: MakeFunc, fold: bool = True):
        self.schedule, self.variant, self.fold = schedule, variant, fold
        self._make_func = make_func

    @cached_property
    def func(self) -> tirx.PrimFunc:
        """Unscheduled, with arguments x, then the weight or the arrays of `constants`, [bias], [residual], y."""
        return self._make_func()

    @property
    def name(self) -> str:
        """``schedule`` or ``schedule:variant``."""
        return f"{self.schedule}:{self.variant}" if self.variant else self.schedule

    def constants(self, weight: np.ndarray) -> tuple[np.ndarray, ...]:
        """The arrays that the kernel takes in the place of the weight (K, C / groups, R, S)."""
        return () if self.fold else (weight,)

    @abstractmethod
    def scheduled(self, decisions: Decisions | None = None) -> Schedule:
        """`func`, scheduled as `decisions` say, or by default; BuildError where they do not fit."""

    @abstractmethod
    def decisions_of(self, sch: Schedule) -> Decisions:
        """The decisions of a schedule of this space, with which `scheduled` makes it again."""

    @abstractmethod
    def starts(self) -> list[Decisions]:
        """Decisions that a search begins with, the default first; a generated space has none."""

    def more_starts(self, _time_us: Callable[[Decisions], float | None]) -> list[Decisions]:
        """What is worth trying too, by the times that `starts` took; None of one that failed."""
        return []

    def finished(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """`func`, scheduled, with the arguments that a kernel has."""
        return func

    def obstacle_of(self, sch: Schedule) -> str:
        """Why a schedule is not worth a trial, judged before it is built, or ""."""
        return ""

    def features(self, sch: Schedule) -> Sequence[float]:
        """What the cost model is told of a schedule, where `has_features`."""
        raise NotImplementedError(f"{self.name} has no features of its own")

    def estimate(self, sch: Schedule) -> float | None:
        """Estimated time of a schedule in microseconds; None where nothing estimates it."""
        return None

    @property
    def estimate_us(self) -> float | None:
        """Estimated time of the default decisions; None where nothing estimates it."""
        return None

    @property
    def starts_us(self) -> list[float | None]:
        """Estimated times of `starts` in a model, whose other layers displace a kernel's code between two calls."""
        return [None if rank else self.estimate_us for rank in range(len(self.starts()))]


class HandMadeSpace(Space):
    """A space whose schedule is written by hand; `apply` is all that one has to define."""

    @abstractmethod
    def apply(self, sch: Schedule, choose: Choose) -> None:
        """Schedule `func`, which `sch` holds, in a straight line, with the decisions that `choose` gives."""

    def sample(self, sch: Schedule) -> None:
        """Apply the schedule so that MetaSchedule may sample its decisions anew."""
        self.apply(sch, Choose(sch, f"schedule {self.name}"))

    def decide(self, sch: Schedule, choose: Choose, name: str, candidates: Iterable[int], default: int) -> Any:
        """Ask for a decision that no step of the schedule takes as an argument, and note it in the schedule.

        MetaSchedule drops samples that nothing depends on.
        """
        value = choose.one_of(name, candidates, default)
        _note(sch, name, value)
        return value

    def decide_most(
        self, choose: Choose, name: str, candidates: Iterable[int], default: int, best: Callable[[int], int]
    ) -> Any:
        """Ask for a decision of which the schedule takes what is `best` up to it."""
        value = choose.one_of(name, candidates, default)
        most = int(choose.sch.get(value))
        taken = best(most)
        if taken == most:
            return value
        # Nothing else depends on it.
        _note(choose.sch, name, value)
        return taken

    def scheduled(self, decisions: Decisions | None = None) -> Schedule:
        if decisions is not None and not isinstance(decisions, dict):
            raise BuildError(f"schedule {self.name}", "takes decisions by name", type(decisions).__name__, "an object")
        sch = Schedule(self.func, debug_mask="none")
        choose = Choose(sch, f"schedule {self.name}", decisions)
        self.apply(sch, choose)
        choose.end()
        return sch

    @cached_property
    def _by_default(self) -> tuple[dict[str, OneOf | Split], list[Any]]:
        """What is asked for when it is scheduled by default, and the values that are taken."""
        sch = Schedule(self.func, debug_mask="none")
        choose = Choose(sch, f"schedule {self.name}")
        self.apply(sch, choose)
        return choose.choices, sampled(sch)

    @cached_property
    def choices(self) -> dict[str, OneOf | Split]:
        """Its decisions in the order in which they are asked for."""
        return self._by_default[0]

    def decisions_of(self, sch: Schedule) -> dict[str, Any]:
        return self._named(sampled(sch))

    def _named(self, values: list[Any]) -> dict[str, Any]:
        return {name: each.to_json(value) for (name, each), value in zip(self.choices.items(), values, strict=True)}

    def starts(self) -> list[Decisions]:
        return [self._named(self._by_default[1])]


class WrittenSpace(HandMadeSpace):
    """A space whose kernel is written for its decisions instead of scheduled; its `apply` does nothing but `decide`.

    MetaSchedule samples steps of schedules only: they are of a block that computes nothing and never runs. So TVM has
    no features of it, and the cost model is told the decisions.
    """

    has_features = True

    def __init__(self, schedule: str, variant: str):
        super().__init__(schedule, variant, _nothing, fold=False)

    def features(self, sch: Schedule) -> Sequence[float]:
        return [float(value) for value in sampled(sch)]

    @abstractmethod
    def written(self, decisions: Mapping[str, Any]) -> tirx.PrimFunc:
        """The function with arguments x, the arrays of `packed`, [bias], [residual], y."""

    @abstractmethod
    def packed(self, weight: np.ndarray, decisions: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
        """The arrays that the kernel takes in the place of the weight."""


class GeneratedSpace(Space):
    """A space that MetaSchedule generates; its decisions are a trace."""

    @abstractmethod
    def generator(self, postprocs: list) -> Any:
        """MetaSchedule's rules around the given postprocessors."""

    @abstractmethod
    def finish(self, sch: Schedule) -> None:
        """What is done to a schedule after its trace."""

    def scheduled(self, decisions: Decisions | None = None) -> Schedule:
        if decisions is None:
            hint = "give a trace from a tuning log"
            raise UsageError(f"schedule {self.name}", "has no default decisions", hint=hint)
        return replayed(self.func, f"schedule {self.name}", decisions)

    def decisions_of(self, sch: Schedule) -> Decisions:
        trace: Decisions = trace_to_json(sch.trace)
        return trace

    def starts(self) -> list[Decisions]:
        return []


@cache
def _nothing() -> tirx.PrimFunc:
    """A block that decisions may be noted at."""
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        y = T.arg("y", T.buffer((1,), "float32"))
        with T.sblock("root"), T.serial(1) as loop, T.sblock("conv"):
            T.buffer_store(y, tirx.const(0.0, "float32"), [T.axis.spatial(1, loop)])
    return builder.get()


def _note(sch: Schedule, name: str, value: Any) -> None:
    """Let something depend on a decision."""
    sch.annotate(sch.get_sblock("conv"), f"tvm_sparse.decision.{name}", value)


def sampled(sch: Schedule) -> list[Any]:
    """The values of a schedule's sampled decisions in their order: integers, or lists of them."""
    outputs = (each.outputs for each in sch.trace.insts if each.kind.name.startswith("Sample"))
    values = ([int(sch.get(output)) for output in each] for each in outputs)
    return [each[0] if len(each) == 1 else each for each in values]


def divisors(number: int, most: int | None = None) -> list[int]:
    """Divisors of `number`, ascending, up to `most`."""
    return [d for d in range(1, min(number, most or number) + 1) if number % d == 0]


def nearest(candidates: Sequence[int], wish: float) -> int:
    """The candidate nearest to `wish`, the larger of two."""
    return min(candidates, key=lambda candidate: (abs(candidate - wish), -candidate))
