"""Layers that are tuned as one, and what a display is told of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.logs.record import TuningRecord


@dataclass(frozen=True)
class Task:
    """Layers that are tuned as one: their names, and the convolution and weight of the first."""

    names: tuple[str, ...]
    spec: ConvSpec
    weight: np.ndarray
    pattern: SparsityPattern


class Progress:
    """What a display is told while a model is tuned; this one shows nothing."""

    def start(self, tasks: Sequence[Task], trials: int) -> None:
        """Tuning begins: `trials` a task."""

    def task(self, task: Task, known: Sequence[TuningRecord]) -> None:
        """A task begins; `known` records of it are in the log already."""

    def trial(self, record: TuningRecord) -> None:
        """A trial of the current task has ended and is in the log."""

    def out_of_time(self) -> None:
        """The current task has ended because its time is over, before its trials were made."""

    def ended_early(self, sentence: str) -> None:
        """The current task has ended because nothing more was gained; `sentence` says so."""

    def note(self, text: str) -> None:
        """Something that the user should know."""

    def on(self, _device: str) -> "Progress":
        """What is told of the device's tasks, where several devices tune at once."""
        return self

    def end(self) -> None:
        """The tuning has ended, or was interrupted."""
