"""Device: who tunes layers elsewhere, for one device; what is known of several, and whether they are alike."""

import contextlib
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.target import Target

from tvm_sparse.autotune.fleet.device_tuner import versions
from tvm_sparse.autotune.fleet.job import Job
from tvm_sparse.target.resolve import target_json

# A tuner's first answer waits for its imports, which take many seconds on a busy machine.
START_TIMEOUT_S = 180.0


class DeviceLost(Exception):
    """A device's tuner gives no answer any more; the text says why."""


class Device(ABC):
    """A `DeviceTuner` somewhere.

    * `name`: what the user knows it by.
    * `builders`: processes that build side by side there.
    * `tuners`: tuners that share the memory of its machine.
    """

    def __init__(self, name: str, builders: int, tuners: int):
        self.name, self.builders, self.tuners = name, builders, tuners

    @abstractmethod
    def ask(self, request: dict[str, Any], weight: np.ndarray | None = None) -> dict[str, Any]:
        """The tuner's answer to `request`, which `weight` goes with; waits for it.

        DeviceLost where there is none, and will be none.
        """

    @abstractmethod
    def kill(self) -> None:
        """End the tuner, from any thread: who waits for an answer gets `DeviceLost`; again changes nothing."""

    def first(self, job: Job) -> dict[str, Any]:
        """Give the tuner a job: the answer with its first record."""
        request = {"action": "begin", "job": job.to_json(), "builders": self.builders, "tuners": self.tuners}
        answer = self.ask(request, job.weight)
        return answer or self.next()

    def next(self) -> dict[str, Any]:
        """The answer with the job's next record."""
        return self.ask({"action": "advance"})

    def close(self) -> None:
        """End the tuner and its workers."""
        # One that was lost or killed has nothing left that could be ended.
        with contextlib.suppress(DeviceLost):
            self.ask({"action": "end"})
        self.kill()


@dataclass(frozen=True)
class Roster:
    """Devices that agree, the target that they have in common, and sentences on those that cannot be used."""

    devices: list[Device]
    target: Target | None
    refused: list[str]


def roster(devices: Sequence[Device], target: str | dict[str, Any] | Target | None) -> Roster:
    """Ask each device what it is. Those that are used are the most that are alike; of equally many, the first's."""
    text = target_json(target) if isinstance(target, Target) else target
    request = {"action": "hello", "target": text, "versions": versions()}
    with ThreadPoolExecutor(max(len(devices), 1)) as pool:
        answers = list(pool.map(lambda device: _hello(device, request), devices))
    kinds = [_kind(answer) for answer in answers]
    counts = Counter(kind for kind in kinds if kind)
    best = max(counts, key=lambda kind: counts[kind]) if counts else ""
    used, refused = [], []
    for device, answer, kind in zip(devices, answers, kinds, strict=True):
        if kind and kind == best:
            used.append(device)
        else:
            refused.append(f"{device.name} is not used: {answer.get('failure') or _difference(answer, best)}")
    return Roster(used, Target(json.loads(best)["target"]) if best else None, refused)


def _hello(device: Device, request: dict[str, Any]) -> dict[str, Any]:
    try:
        return device.ask(request)
    except DeviceLost as error:
        return {"failure": str(error)}


def _kind(answer: dict[str, Any]) -> str:
    """What must be the same of all, as text; empty for one that cannot be used."""
    if answer.get("versions") != versions():
        return ""
    return json.dumps({name: answer[name] for name in ("target", "fingerprint")}, sort_keys=True)


def _difference(answer: dict[str, Any], best: str) -> str:
    """In what a device differs: versions from this process's, else its fingerprint or target from the others'."""
    own, others = versions(), answer["versions"]
    if own == others:
        common = json.loads(best)
        own, others = ({**each["target"], **each["fingerprint"]} for each in (common, answer))
    names = sorted(name for name in own.keys() | others.keys() if own.get(name) != others.get(name))
    return "; ".join(f"its {name} is {others.get(name)}, not {own.get(name)}" for name in names)
