"""Decisions from a log as a schedule: a trace that TVM crashes on is found out by another process.

Decisions by name are checked one by one as the schedule asks for them, so they need none.
"""

from tvm.s_tir import Schedule
from tvm.target import Target

from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.errors import BuildError
from tvm_sparse.measure.worker import Worker
from tvm_sparse.scheduling.space import Decisions, HandMadeSpace, Space
from tvm_sparse.scheduling.trace import problem
from tvm_sparse.target.resolve import target_json

REPLAY_TIMEOUT_S = 60.0


class SafeReplay:
    """Schedules spaces as logs say; a context manager that ends its worker, if it needed one."""

    def __init__(self) -> None:
        self._worker = Worker({"TVM_NUM_THREADS": "1"})

    def __enter__(self) -> "SafeReplay":
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.stop()

    def scheduled(
        self, space: Space, spec: ConvSpec, pattern: SparsityPattern, target: Target, decisions: Decisions | None
    ) -> Schedule:
        """The schedule that `decisions`, from a log, make of `space`, one of `spec`'s.

        BuildError where they are damaged or do not fit.
        """
        if decisions is None or isinstance(space, HandMadeSpace):
            return space.scheduled(decisions)
        reason = problem(decisions)
        if not reason:
            request = {
                "action": "replay",
                "schedule": space.name,
                "spec": spec.to_json(),
                "pattern": pattern.to_json(),
                "target": target_json(target),
                "decisions": decisions,
            }
            answer = self._worker.ask(request, REPLAY_TIMEOUT_S)
            reason = answer.get("failure") or ("TVM takes too long over it" if "timeout" in answer else "")
        if reason:
            raise BuildError(f"schedule {space.name}", f"the trace cannot be used: {reason}")
        return space.scheduled(decisions)
