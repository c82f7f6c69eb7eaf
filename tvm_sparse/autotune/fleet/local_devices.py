"""Several devices of this machine: a tuner process for each, which sees only its GPU."""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tvm.target import Target

from tvm_sparse.autotune.fleet.devices import START_TIMEOUT_S, Device, DeviceLost, roster
from tvm_sparse.autotune.fleet.fleet import Fleet
from tvm_sparse.errors import UsageError
from tvm_sparse.files.temporary import TemporaryFolder
from tvm_sparse.measure.worker import Worker
from tvm_sparse.measure.worker_process import Channel
from tvm_sparse.target.resolve import resolve_target

ALLOWED = "cpu, or GPUs as CUDA numbers them: cuda:0,cuda:1"


def kind_of(names: Sequence[str]) -> str:
    """The target kind of devices by their names: ``llvm`` of ``cpu``, ``cuda`` of ``cuda:0``.

    UsageError where one is no device's name, or is there twice, or they are of both kinds.
    """
    for name, count in Counter(names).items():
        if not re.fullmatch(r"cpu|cuda:\d{1,4}", name):
            raise UsageError("--devices", "not a device", name, ALLOWED)
        if count > 1:
            reason = "all cores work for it already" if name == "cpu" else "one kernel at a time is timed on it"
            raise UsageError("--devices", f"{name} is there {count} times, and {reason}", hint="name it once")
    kinds = {"llvm" if name == "cpu" else "cuda" for name in names}
    if len(kinds) != 1:
        raise UsageError("--devices", "one run tunes for one target", ", ".join(names) or "none", ALLOWED)
    return kinds.pop()


def local_fleet(names: Sequence[str], target: str | dict[str, Any] | Target | None, builders: int) -> Fleet:
    """The devices called `names`, which share so many `builders`; without a target it is the first device's.

    UsageError where a name is wrong, a device is not there, or they differ: a log's records hold for one target and
    machine.
    """
    kind = kind_of(names)
    if target is not None and (other := resolve_target(target).kind.name) != kind:
        raise UsageError("--devices", f"{names[0]} is of another kind than the target", other, kind)
    share = max(1, builders // len(names))
    places = [(name, _environment(name)) for name in names]
    devices = [ProcessDevice(name, share, len(names), variables) for name, variables in places]
    try:
        found = roster(devices, kind if target is None else target)
        if found.refused or found.target is None:
            hint = "name those that are alike, and tune others into the same log afterwards"
            raise UsageError("--devices", "; ".join(found.refused), hint=hint)
    except BaseException:
        for device in devices:
            device.kill()
            device.close()
        raise
    return Fleet(devices, found.target)


def _environment(name: str) -> dict[str, str]:
    """Environment of a process for which the device is the only one.

    CUDA counts among what CUDA_VISIBLE_DEVICES lists; the variable itself counts all, in the same order.
    """
    if name == "cpu":
        return {}
    number = int(name.partition(":")[2])
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return {"CUDA_VISIBLE_DEVICES": str(number)}
    entries = [entry.strip() for entry in listed.split(",") if entry.strip()]
    if number >= len(entries):
        allowed = f"{len(entries)} device(s), which CUDA_VISIBLE_DEVICES lists"
        raise UsageError("--devices", "no such GPU", name, allowed, "CUDA numbers them from 0")
    return {"CUDA_VISIBLE_DEVICES": entries[number]}


class ProcessDevice(Device):
    """A tuner process with an environment of its own, and a folder for the weights that it is given."""

    command: Sequence[str] = (*Worker.command, "tvm_sparse.autotune.fleet.device_tuner")

    def __init__(self, name: str, builders: int, tuners: int, variables: Mapping[str, str]):
        super().__init__(name, builders, tuners)
        self._folder = TemporaryFolder()
        self._channel = Channel(self.command, variables)
        self._is_closed = False

    def ask(self, request: dict[str, Any], weight: np.ndarray | None = None) -> dict[str, Any]:
        """See `Device.ask`; a search has no time limit here, as its builds and runs have theirs."""
        if self._is_closed:
            raise DeviceLost("its process was ended")
        if weight is not None:
            path = str(Path(self._folder.name) / "weight.npy")
            np.save(path, weight)
            request = {**request, "weight": path}
        timeout_s = START_TIMEOUT_S if request["action"] == "hello" else float("inf")
        answer = self._channel.ask(request, timeout_s)
        if self._channel.is_broken:
            raise DeviceLost(answer.get("failure") or f"its process does not answer within {timeout_s:g} s")
        return answer

    def kill(self) -> None:
        """See `Device.kill`; its workers notice within a second."""
        self._channel.kill()

    def close(self) -> None:
        """End the process, its workers and the folder."""
        if not self._is_closed:
            super().close()
            self._is_closed = True
            self._channel.close()
            self._folder.cleanup()
