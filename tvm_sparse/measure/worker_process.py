"""One worker process and the line of JSON that goes each way: nothing it does can hang, fill or end this process.

An exchange ends with an answer, or with why there is none: the process took too long, took too much memory, died, or
wrote something else.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tvm_sparse.measure import memory

# How often the memory of a worker is looked at; also how fast one that allocates can overshoot its limit.
POLL_S = 0.1
# Of what a worker and its compilers print, the end is kept.
KEPT_BYTES = 8192
# A longer answer is none.
MAX_ANSWER_BYTES = 1 << 20


class Channel:
    """A process that answers one JSON line with one JSON line; `variables` are added to its environment."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str]):
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, **variables},
            # A group of its own: compilers that the worker starts die with it, and Ctrl-C reaches only the tuner.
            start_new_session=True,
        )
        # It leads a group of this number.
        self.pid = self._process.pid
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._in, False)
        self._printed = b""
        # Whether a request went without an answer; the process is of no use then.
        self.is_broken = False
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def memory_bytes(self) -> int:
        """What the process and its compilers hold now."""
        return memory.used_bytes(self.pid)

    def ask(
        self,
        request: Any,
        timeout_s: float,
        memory_bytes: float = float("inf"),
        stop: threading.Event | None = None,
    ) -> dict[str, Any]:
        """The answer to `request`; ``{"timeout": s}`` or ``{"failure": cause}`` where there is none.

        Once `stop` is set, none is waited for: KeyboardInterrupt is raised.
        """
        self.is_broken = True
        unsent = json.dumps(request).encode() + b"\n"
        answer = b""
        end_s = time.monotonic() + timeout_s
        # Not select, which knows no descriptor above 1023.
        with selectors.PollSelector() as selector:
            selector.register(self._out, selectors.EVENT_READ)
            selector.register(self._in, selectors.EVENT_WRITE)
            while not answer.endswith(b"\n"):
                if stop is not None and stop.is_set():
                    raise KeyboardInterrupt
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    return {"timeout": timeout_s}
                ready = {key.fd for key, _ in selector.select(min(left_s, POLL_S))}
                if self.memory_bytes() > memory_bytes:
                    return {"failure": f"the worker process took more than {memory_bytes / 2**30:.3g} GiB of memory"}
                if self._in in ready:
                    try:
                        unsent = unsent[os.write(self._in, unsent) :]
                    except BrokenPipeError:
                        return {"failure": self._cause_of_death()}
                    if not unsent:
                        selector.unregister(self._in)
                if self._out in ready:
                    received = os.read(self._out, 1 << 16)
                    answer += received
                    if not received:
                        return {"failure": self._cause_of_death()}
                    if len(answer) > MAX_ANSWER_BYTES:
                        break
        return self._parsed(answer)

    def _parsed(self, answer: bytes) -> dict[str, Any]:
        """The object in `answer`; a failure where it is none, or too long for one."""
        try:
            found = json.loads(answer) if len(answer) <= MAX_ANSWER_BYTES else None
        except ValueError:
            found = None
        if not isinstance(found, dict):
            return {"failure": f"the worker process wrote nonsense: {answer[:80]!r}"}
        self.is_broken = False
        return found

    def kill(self) -> None:
        """Kill the process and everything it started; it is not waited for."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill the process, wait for it and free what it held here."""
        self.kill()
        self._process.wait()
        # Whoever else holds the other end, such as a program that left the group, is not waited for.
        self._reader.join(POLL_S)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _read_errors(self) -> None:
        """Keep the end of what is printed, and never let the printer wait."""
        assert self._process.stderr is not None
        with self._process.stderr as pipe:
            while received := pipe.read(1 << 16):
                self._printed = (self._printed + received)[-KEPT_BYTES:]

    def _cause_of_death(self) -> str:
        """How the process ended, after it closed its pipes, and the last it printed."""
        try:
            code = self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return "the worker process closed its pipes"
        self._reader.join(1)
        text = " ".join(self._printed.decode(errors="replace")[-800:].split())
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        if code == -signal.SIGKILL:
            how += ", as Linux does where memory runs out"
        return f"the worker process {how}; last output: {text or 'none'}"
