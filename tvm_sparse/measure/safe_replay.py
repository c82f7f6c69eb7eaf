"""Whether a log's trace can be replayed here: one that TVM crashes on is found out by another process."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from tvm.s_tir import Schedule
from tvm.target import Target

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import BuildError
from tvm_sparse.measure.worker import Worker
from tvm_sparse.scheduling import trace
from tvm_sparse.scheduling.space import Space
from tvm_sparse.scheduling.trace import replay
from tvm_sparse.target.resolve import target_json

REPLAY_TIMEOUT_S = 60.0


class Vetting:
    """Vets traces before this process replays them; a context manager that ends its worker, if it needed one."""

    def __init__(self) -> None:
        self._worker = Worker({"TVM_NUM_THREADS": "1"})

    def __enter__(self) -> Vetting:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._worker.stop()

    def check(self, space: Space, spec: ConvSpec, pattern: SparsityPattern, target: Target, found: Any) -> Schedule:
        """The schedule that `found`, a trace from a log, makes of `space`, one of `spec`'s.

        Raises
        ------
        BuildError
            It is damaged or does not fit.
        """
        reason = trace.problem(found)
        if not reason and not trace.is_own(space, found):
            request = {
                "action": "replay",
                "schedule": space.name,
                "spec": spec.to_json(),
                "pattern": pattern.to_json(),
                "target": target_json(target),
                "trace": found,
            }
            answer = self._worker.ask(request, REPLAY_TIMEOUT_S)
            reason = answer.get("failure") or ("TVM takes too long over it" if "timeout" in answer else "")
        if reason:
            raise BuildError(f"schedule {space.name}", f"the trace cannot be used: {reason}")
        return replay(space, found)
