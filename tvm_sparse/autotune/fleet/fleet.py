"""Tune layers on several devices at once: each takes the next layer when it is done with its last.

Only the caller's thread hands out layers and learns of trials, so one process alone writes the log; a thread for each
device waits for its answers.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

from tvm.target import Target

from tvm_sparse.autotune.fleet.devices import Device, DeviceLost
from tvm_sparse.autotune.fleet.job import Job
from tvm_sparse.autotune.options import TuneOptions
from tvm_sparse.autotune.progress.progress import Progress
from tvm_sparse.autotune.task_lock import Claims
from tvm_sparse.errors import BuildError
from tvm_sparse.logs.record import TuningRecord

T = TypeVar("T")
In_contra = TypeVar("In_contra", contravariant=True)
# How often an idle device asks whether another process is done with a layer.
POLL_S = 1.0


class Desk(Protocol[In_contra]):
    """Whom the devices work for: says what a task is, and learns what became of it."""

    @property
    def progress(self) -> Progress:
        """What is told of the devices' tasks."""

    def begin(self, task: In_contra, device: str) -> Job:
        """What `device` is to do for a task, which it gets now; what the log holds of it is known."""

    def trial(self, record: TuningRecord, device: str) -> None:
        """A trial of the device's task has ended."""

    def waits(self, task: In_contra) -> None:
        """All tasks that are left are another process's; this one is waited for."""


@dataclass
class Fleet:
    """Devices that are alike, and their target; a context manager that ends them.

    `notes` are sentences for the user. `check` is called every `POLL_S` or oftener while they tune, and raises
    BuildError where they cannot go on; `shut_down` when they have ended.
    """

    devices: Sequence[Device]
    target: Target
    notes: Sequence[str] = ()
    check: Callable[[], None] = field(default=lambda: None)
    shut_down: Callable[[], None] = field(default=lambda: None)

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            with ThreadPoolExecutor(len(self.devices)) as pool:
                list(pool.map(lambda device: device.close(), self.devices))
        finally:
            self.shut_down()

    def options(self, options: TuneOptions) -> TuneOptions:
        """`options` with its batch settled: a search goes the same way on each device, however many builders it has."""
        most = max(options.measure.builders, *(device.builders for device in self.devices))
        return replace(options, batch=options.batch or max(8, most if self.target.kind.name == "cuda" else 0))

    def tune(self, claims: Claims[T], desk: Desk[T]) -> None:
        """Tune every task that is left in `claims`.

        A device that is lost costs the trials that it had not handed over: another begins its task again, with what the
        log holds. BuildError where a search failed, or the devices are lost.
        """
        with ThreadPoolExecutor(len(self.devices)) as pool:
            try:
                _Shift(pool, list(self.devices), claims, desk).run(self.check)
            except BaseException:
                # Leaving the pool waits for its threads, and they for the devices.
                for device in self.devices:
                    device.kill()
                raise


class _Shift(Generic[T]):
    """Which devices are idle, and what the others do."""

    def __init__(self, pool: ThreadPoolExecutor, idle: list[Device], claims: Claims[T], desk: Desk[T]):
        self._pool, self._idle, self._claims, self._desk = pool, idle, claims, desk
        self._busy: dict[Future[dict[str, Any]], tuple[Device, T]] = {}

    def run(self, check: Callable[[], None]) -> None:
        """Until no task is left."""
        while self._claims.left or self._busy:
            check()
            self._hand_out()
            done, _ = wait(self._busy, POLL_S, FIRST_COMPLETED)
            for future in done:
                self._learn(future)

    def _hand_out(self) -> None:
        """A task for each idle device, as far as there are any."""
        while self._idle and self._claims.left:
            task = self._claims.take()
            if task is None:
                if self._busy:
                    return
                self._desk.waits(self._claims.left[0])
                task = self._claims.wait()
            device = self._idle.pop(0)
            job = self._desk.begin(task, device.name)
            self._busy[self._pool.submit(device.first, job)] = device, task

    def _learn(self, future: "Future[dict[str, Any]]") -> None:
        """What a device has answered."""
        device, task = self._busy.pop(future)
        try:
            answer = future.result()
        except DeviceLost as error:
            self._lose(device, task, error)
            return
        if "failure" in answer:
            # A sentence of ours says where; anything else is told with the device.
            told = answer.get("is_told")
            raise (
                BuildError(answer["failure"]) if told else BuildError(device.name, "a search failed", answer["failure"])
            )
        if "record" in answer:
            self._desk.trial(TuningRecord.from_line(answer["record"]), device.name)
            self._busy[self._pool.submit(device.next)] = device, task
            return
        if answer["out_of_time"]:
            self._desk.progress.on(device.name).out_of_time()
        elif sentence := answer.get("ended_early"):
            self._desk.progress.on(device.name).ended_early(sentence)
        self._claims.free(task)
        self._idle.append(device)

    def _lose(self, device: Device, task: T, error: DeviceLost) -> None:
        """Go on without a device."""
        self._claims.free(task, is_done=False)
        device.kill()
        if not self._idle and not self._busy:
            hint = "what was measured is in the log: run again to go on"
            raise BuildError("devices", f"all are lost, the last, {device.name}: {error}", hint=hint)
        self._desk.progress.note(f"{device.name} is lost, another goes on with its layer: {error}")
