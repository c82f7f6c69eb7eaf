"""The fleet that a user asks for: devices of this machine, or a Ray cluster's."""

from collections.abc import Sequence
from typing import Any

from tvm.target import Target

from tvm_sparse.autotune.fleet.fleet import Fleet
from tvm_sparse.autotune.fleet.local_devices import local_fleet
from tvm_sparse.autotune.fleet.ray_cluster import ray_fleet
from tvm_sparse.autotune.options import TuneOptions
from tvm_sparse.errors import UsageError


def open_fleet(
    devices: Sequence[str] | None,
    ray: str | None,
    target: str | dict[str, Any] | Target | None,
    options: TuneOptions,
) -> Fleet:
    """The devices that `session.tune` is given. What the target leaves open is theirs, not this process's.

    UsageError where both are given, or what is named is not there. BuildError where no device of the cluster can be
    used.
    """
    if devices is not None and ray is not None:
        raise UsageError("devices", "are this machine's, and Ray finds its own", hint="give --devices or --ray")
    if devices is not None:
        return local_fleet(devices, target, options.measure.builders)
    return ray_fleet(ray or "", target)
