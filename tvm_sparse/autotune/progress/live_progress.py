"""Progress of tuning on a console, on one device or several."""

import math
import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.text import Text

from tvm_sparse.autotune.progress.progress import Progress, Task
from tvm_sparse.autotune.progress.task_progress import TaskProgress
from tvm_sparse.display.consoles import watched_console
from tvm_sparse.display.live_line import Interval, LiveLine
from tvm_sparse.display.words import duration
from tvm_sparse.logs.record import TuningRecord


def progress_of(progress: Progress | bool | None, limit_s: float | None = None) -> Progress:
    """What `tune` tells: `progress` where it is an object; else as `watched_console` says."""
    if progress is not None and not isinstance(progress, bool):
        return progress
    console = watched_console(progress)
    return Progress() if console is None else LiveProgress(console, limit_s=limit_s)


class LiveProgress(Progress):
    """Shows how tuning goes on: one line a layer, the last one live; of several devices, one live line each.

    Where `console` cannot renew lines, a layer's is printed when it ends, and every `PLAIN_INTERVAL_S` until then.
    `limit_s` is how long a layer may take, for the time that is left.
    """

    def __init__(
        self,
        console: Console,
        clock: Callable[[], float] = time.monotonic,
        limit_s: float | None = None,
        allow_tf32: bool = False,
    ):
        self.allow_tf32, self.console, self.clock = allow_tf32, console, clock
        self._limit_s = math.inf if limit_s is None else limit_s
        self.tasks: list[TaskProgress] = []
        self._devices: dict[str, DeviceProgress] = {}
        self._count = self._trials = 0
        self._has_batches = False
        self._start_s = clock()
        self.live = LiveLine(console, self._live_text)

    def start(self, tasks: Sequence[Task], trials: int) -> None:
        """Tuning begins: `trials` a task."""
        self._count, self._trials = len(tasks), trials
        self._has_batches = len({task.spec.n for task in tasks}) > 1
        self._start_s = self.clock()
        self.live.start()

    def on(self, device: str) -> "DeviceProgress":
        """The part that shows one device's tasks; "" where there is only one device."""
        if device not in self._devices:
            self._devices[device] = DeviceProgress(self, device)
        return self._devices[device]

    def task(self, task: Task, known: Sequence[TuningRecord]) -> None:
        """A task begins; `known` records of it are in the log already."""
        self.on("").task(task, known)

    def trial(self, record: TuningRecord) -> None:
        """A trial of the current task has ended and is in the log."""
        self.on("").trial(record)

    def out_of_time(self) -> None:
        """The current task has ended because its time is over, before its trials were made."""
        self.on("").out_of_time()

    def ended_early(self, sentence: str) -> None:
        """The current task has ended because nothing more was gained."""
        self.on("").ended_early(sentence)

    def note(self, text: str) -> None:
        """Something that the user should know."""
        self.console.print(Text(text))

    def end(self) -> None:
        """The tuning has ended, or was interrupted."""
        for device in self._devices.values():
            device.finish()
        self.live.stop()

    def begin(self, task: TaskProgress, device: str) -> None:
        """A device begins a task; one that was lost had begun it, so it is the same task still."""
        for each in self._devices.values():
            if each.current is not None and each.current.is_same(task):
                task.new += each.current.new
                self.tasks[self.tasks.index(each.current)] = task
                each.current = None
                break
        else:
            self.tasks.append(task)
        if device:
            self.note(f"{device}: {task.names[0]}" + (f", batch {task.batch}" if self._has_batches else ""))

    def eta_s(self) -> float | None:
        """Seconds until all tasks are done, as fast as so far; None before the first trial."""
        new = sum(task.new for task in self.tasks)
        if not new:
            return None
        # Of all devices together.
        trial_s = (self.clock() - self._start_s) / new
        busy = [device for device in self._devices.values() if device.current is not None]
        current_s = sum(
            min(max(self._trials - device.current.done, 0) * trial_s, self._left_s(device) / len(busy))
            for device in busy
            if device.current is not None
        )
        limit_s = self._limit_s / max(len(busy), 1)
        return current_s + (self._count - len(self.tasks)) * min(self._trials * trial_s, limit_s)

    def _left_s(self, device: "DeviceProgress") -> float:
        """Time that the limit leaves to a device's task."""
        return max(self._limit_s - (self.clock() - device.start_s), 0)

    def line(self, task: TaskProgress, device: str, with_eta: bool = False) -> str:
        """A task's line, with its number and where it is tuned."""
        width = len(str(self._count))
        text = f"[{self.tasks.index(task) + 1:{width}}/{self._count}] {device}{': ' * bool(device)}"
        text += task.line(self._trials, self._has_batches)
        eta_s = self.eta_s() if with_eta else None
        return text + (f"  about {duration(eta_s)} left" if eta_s is not None else "")

    def _live_text(self) -> str:
        busy = [(device.current, name) for name, device in self._devices.items() if device.current is not None]
        lines = [self.line(task, name, with_eta=number == 0) for number, (task, name) in enumerate(busy)]
        return "\n".join(lines or ["starting"])


class DeviceProgress(Progress):
    """The part of a `LiveProgress` that shows one device's tasks, one after the other."""

    def __init__(self, shown: LiveProgress, name: str):
        self._shown, self._name = shown, name
        self.current: TaskProgress | None = None
        self.start_s = shown.clock()
        self._interval = Interval(shown.clock)

    def task(self, task: Task, known: Sequence[TuningRecord]) -> None:
        """The device begins a task, and is done with its last."""
        self.finish()
        current = TaskProgress(task.names, known, task.spec, self._shown.allow_tf32)
        self._shown.begin(current, self._name)
        self.current = current
        self.start_s = self._shown.clock()
        self._interval.restart()

    def trial(self, record: TuningRecord) -> None:
        """A trial of the device's task has ended and is in the log."""
        assert self.current is not None
        self.current.add(record)
        if not self._shown.live.is_shown and self._interval.is_due():
            self._shown.note(self._shown.line(self.current, self._name, with_eta=True))

    def out_of_time(self) -> None:
        """The device's task has ended because its time is over."""
        assert self.current is not None
        self.current.is_out_of_time = True

    def ended_early(self, sentence: str) -> None:
        """The device's task has ended because nothing more was gained."""
        assert self.current is not None
        self.current.early_end = sentence

    def note(self, text: str) -> None:
        """Something that the user should know."""
        self._shown.note(text)

    def finish(self) -> None:
        """Show what became of the device's task."""
        if self.current is not None:
            self.note(self._shown.line(self.current, self._name))
            # Said once, of the first layer that it happens to.
            early_ends = [each.early_end for each in self._shown.tasks if each.early_end is not None]
            if self.current.early_end is not None and len(early_ends) == 1:
                self.note(f"    {self.current.early_end}")
            for line in self.current.new_causes.lines():
                self.note(f"    {line}")
            self.current = None
