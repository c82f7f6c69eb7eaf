"""Contenders in turns, each in a process of its own: what disturbs the machine disturbs them all alike."""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tvm_sparse.errors import BuildError
from tvm_sparse.files.temporary import TemporaryFolder
from tvm_sparse.measure.worker import Worker
from tvm_sparse.runtime.signature import Signature
from tvm_sparse.verdict.machine_load import MachineLoad, Snapshot

COMMAND = (sys.executable, "-m", "tvm_sparse.verdict.worker")
# For loading a model and running it, and for a round.
TIME_LIMIT_S = 300.0
# Of each contender in a round: the clock of a processor that slept takes milliseconds to rise, which is all of a fast
# model's first call and a small part of a slow one's.
MIN_ROUND_MS = 100.0
# However slow a model is, so many rounds are made.
FEWEST_ROUNDS = 3


@dataclass(frozen=True)
class Contender:
    """A file with a model.

    * `name`: what a table calls it.
    * `engine`: one of `worker.ENGINES`.
    * `path`: where it is.
    * `options`: what the engine takes beside inputs.
    """

    name: str
    engine: str
    path: Path
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Inputs:
    """Random inputs of a signature, drawn from a seed by each process itself."""

    signature: Signature
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        """As a worker takes them."""
        return {"specs": json.loads(json.dumps(self.signature.to_json()["inputs"])), "seed": self.seed}


class Running:
    """A contender's process, with its model loaded; `outputs` are what it makes of the inputs."""

    def __init__(self, contender: Contender, inputs: Inputs, folder: Path):
        self.name, self.cpu_s = contender.name, 0.0
        self._worker = Worker({}, command=COMMAND)
        path = folder / "outputs.npz"
        request = {"engine": contender.engine, "path": str(contender.path), "outputs": str(path)}
        try:
            self._call_us = self._ask({"action": "open", **request, **inputs.to_json(), **contender.options})
            with np.load(path, allow_pickle=False) as arrays:
                self.outputs = [arrays[name] for name in arrays.files]
        except BuildError:
            self.close()
            raise

    def time_us(self, min_round_ms: float) -> float:
        """The mean time of as many calls as fill a round."""
        number = max(1, math.ceil(min_round_ms * 1e3 / max(self._call_us, 0.1)))
        return self._ask({"action": "time", "number": number})

    def close(self) -> None:
        """End the process."""
        self._worker.stop()

    def _ask(self, request: dict[str, Any]) -> float:
        answer = self._worker.ask(request, TIME_LIMIT_S)
        if "time_us" not in answer:
            cause = answer.get("failure", f"it took more than {TIME_LIMIT_S:.0f} s")
            raise BuildError(self.name, f"cannot be timed ({cause})")
        self.cpu_s = float(answer["cpu_s"])
        return float(answer["time_us"])


class Turns:
    """Contenders that were loaded and ran once; a context manager that ends their processes."""

    def __init__(self, inputs: Inputs):
        self._inputs, self._folder = inputs, TemporaryFolder()
        self.running: list[Running] = []
        # Of the machine while the rounds were made.
        self.load: MachineLoad | None = None

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.running:
            each.close()
        self._folder.cleanup()

    @property
    def folder(self) -> Path:
        """For files of contenders."""
        return Path(self._folder.name)

    def add(self, contender: Contender) -> Running:
        """Load one more; BuildError where it cannot be loaded or run."""
        self.running.append(Running(contender, self._inputs, self.folder))
        return self.running[-1]

    def times_us(
        self, rounds: int, min_round_ms: float = MIN_ROUND_MS, limit_s: float = math.inf
    ) -> dict[str, tuple[float, ...]]:
        """The mean time of one call in each round, by the name of the contender.

        After `limit_s` no round begins but the first few. BuildError where a contender's process ends.
        """
        times: dict[str, list[float]] = {each.name: [] for each in self.running}
        end_s, start, ran_s = time.monotonic() + limit_s, Snapshot.take(), self._cpu_s()
        for number in range(rounds):
            if number >= FEWEST_ROUNDS and time.monotonic() > end_s:
                break
            for each in self.running:
                times[each.name].append(each.time_us(min_round_ms))
        self.load = MachineLoad.between(start, Snapshot.take(), self._cpu_s() - ran_s)
        return {name: tuple(values) for name, values in times.items()}

    def _cpu_s(self) -> float:
        """For how long our processes have run on cores."""
        return time.process_time() + sum(each.cpu_s for each in self.running)
