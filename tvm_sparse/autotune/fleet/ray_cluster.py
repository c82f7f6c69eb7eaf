"""Devices of a Ray cluster: an actor for each GPU, or for each node's processor, in which a `DeviceTuner` runs.

What goes over Ray is text (JSON) and arrays of numbers. Ray itself is imported where it is used: it is optional.
"""

import contextlib
import json
import os
import socket
import time
from collections import Counter
from typing import Any

import numpy as np
from tvm.target import Target

from tvm_sparse.autotune.fleet.device_tuner import DeviceTuner
from tvm_sparse.autotune.fleet.devices import START_TIMEOUT_S, Device, DeviceLost, roster
from tvm_sparse.autotune.fleet.fleet import Fleet
from tvm_sparse.errors import BuildError, UsageError, last_line
from tvm_sparse.target.resolve import resolve_target

# How long the port of a cluster may take to answer. Ray itself would wait for two minutes and then end this process.
CONNECT_TIMEOUT_S = 10.0
# How often the head node is asked for a sign of life, and how long it may give none. Ray ends this process after 60.
HEAD_INTERVAL_S, HEAD_TIMEOUT_S = 2.0, 12.0
TOKEN_HINT = "where the cluster asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to it"
START_HINT = "start one with: ray start --head, or give local for one on this machine"


class TunerActor:
    """A `DeviceTuner` as Ray runs it."""

    def __init__(self) -> None:
        self._tuner = DeviceTuner()

    def answer(self, request: str, weight: np.ndarray | None) -> str:
        """See `DeviceTuner.answer`; JSON both ways."""
        return json.dumps(self._tuner.answer({**json.loads(request), "weight": weight}))


class RayDevice(Device):
    """An actor on a node; `resources` are those of the node that it takes."""

    def __init__(self, name: str, builders: int, tuners: int, node: str, resources: dict[str, float]):
        super().__init__(name, builders, tuners)
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # Neither the actor nor a call is tried again by Ray: where they go then, the driver decides.
        where = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        actor = ray.remote(**resources, max_restarts=0, max_task_retries=0, scheduling_strategy=where)(TunerActor)
        self._actor = actor.remote()

    def ask(self, request: dict[str, Any], weight: np.ndarray | None = None) -> dict[str, Any]:
        """See `Device.ask`; a search has no time limit here, as its builds and runs have theirs."""
        import ray

        is_first = request["action"] == "hello"
        try:
            answer = self._actor.answer.remote(json.dumps(request), weight)
            return dict(json.loads(ray.get(answer, timeout=START_TIMEOUT_S if is_first else None)))
        except ray.exceptions.GetTimeoutError:
            raise DeviceLost(f"no actor started there within {START_TIMEOUT_S:g} s; others may hold it") from None
        except (ray.exceptions.RayError, ConnectionError) as error:
            raise DeviceLost(last_line(error)) from None

    def kill(self) -> None:
        """See `Device.kill`; its workers notice within a second."""
        import ray

        # A cluster that is gone has no actors.
        with contextlib.suppress(ray.exceptions.RayError, ConnectionError):
            ray.kill(self._actor)


def ray_fleet(address: str, target: str | dict[str, Any] | Target | None) -> Fleet:
    """All devices of a cluster on which the target's kernels run, those that are alike; `notes` say which are not.

    UsageError where Ray is not installed, or no cluster answers. BuildError where the cluster has no device that can be
    used.

    * `address`: ``auto`` (the cluster of this machine, or of RAY_ADDRESS), ``host:port``, ``ray://host:port``, or
      ``local``.
    * `target`: None: ``llvm``. Missing parts are the nodes', not this machine's.
    """
    is_owned = _connect(address)
    import ray

    try:
        kind = resolve_target(target).kind.name
        devices = _devices(kind)
        if not devices:
            raise BuildError("ray", f"no node has a {'GPU' if kind == 'cuda' else 'processor'} for Ray to give away")
        found = roster(devices, "llvm" if target is None else target)
        for device in devices:
            if device not in found.devices:
                device.kill()
        if found.target is None:
            raise BuildError("ray", "no device can be used", "; ".join(found.refused))
    except BaseException:
        if is_owned:
            ray.shutdown()
        raise
    head = _HeadWatch(_connected_to(address))
    return Fleet(found.devices, found.target, found.refused, head.check, ray.shutdown if is_owned else lambda: None)


class _HeadWatch:
    """Notices that a cluster's head node is gone."""

    def __init__(self, place: tuple[str, int]):
        self._place = place
        self._asked_s = self._answered_s = time.monotonic()

    def check(self) -> None:
        """BuildError where the head has not answered for too long; asks at most every `HEAD_INTERVAL_S`."""
        now_s = time.monotonic()
        if now_s - self._asked_s < HEAD_INTERVAL_S:
            return
        try:
            socket.create_connection(self._place, HEAD_INTERVAL_S).close()
            self._answered_s = now_s
        except OSError as error:
            if now_s - self._answered_s > HEAD_TIMEOUT_S:
                hint = "what was measured is in the log: run again to go on"
                raise BuildError("Ray cluster", f"its head node is lost ({error})", hint=hint) from None
        self._asked_s = time.monotonic()


def _connect(address: str) -> bool:
    """Join the cluster; False where this process had joined one before."""
    try:
        import ray
    except ModuleNotFoundError:
        raise UsageError("ray", "the package is not installed", hint="run: pip install 'tvm-sparse[ray]'") from None
    if ray.is_initialized():
        return False
    place = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        # A cluster of our own tells nobody that it is used, and shows no page.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        settings["include_dashboard"] = False
    elif place != "auto":
        _require_answer(place)
    try:
        ray.init(address=place, **settings)
    except (ConnectionError, RuntimeError, ValueError) as error:
        # Something listens there, unless it is to be found or started.
        hint = START_HINT if place in ("auto", "local") else TOKEN_HINT
        reason = f"it cannot be joined: {last_line(error)}"
        raise UsageError(f"Ray cluster {address}", reason, hint=hint) from None
    return True


def _connected_to(address: str) -> tuple[str, int]:
    """Host and port of what this process has joined: Ray's client server where it is a client, else the head."""
    import ray

    return _host_and_port(address if "://" in address else ray.get_runtime_context().gcs_address)


def _host_and_port(place: str) -> tuple[str, int]:
    """Those of ``host:port`` or ``ray://host:port``; UsageError where it is neither."""
    host, _, port = place.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError("Ray cluster", "no address of one", place, "auto, local, host:port or ray://host:port")
    return host.strip("[]"), int(port)


def _require_answer(place: str) -> None:
    """UsageError unless something listens there."""
    try:
        socket.create_connection(_host_and_port(place), CONNECT_TIMEOUT_S).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"Ray cluster {place}", f"none answers ({reason})", hint=START_HINT) from None


def _devices(kind: str) -> list[Device]:
    """A device for each GPU of the cluster, or for each node's processor, with its share of the node's cores."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    nodes.sort(key=lambda node: (node["NodeManagerHostname"], node["NodeID"]))
    hosts = Counter(node["NodeManagerHostname"] for node in nodes)
    devices: list[Device] = []
    for node in nodes:
        host, node_id = node["NodeManagerHostname"], node["NodeID"]
        # Several nodes on one machine are for trying things out.
        name = host if hosts[host] == 1 else f"{host}/{node_id[:6]}"
        cores, gpus = (int(node["Resources"].get(resource, 0)) for resource in ("CPU", "GPU"))
        if kind == "cuda":
            share = cores // gpus if gpus else 0
            resources = {"num_gpus": 1, "num_cpus": share}
            names = [f"{name}/gpu{number}" for number in range(gpus)]
            devices += [RayDevice(each, max(1, share), gpus, node_id, dict(resources)) for each in names]
        elif cores:
            devices.append(RayDevice(name, cores, hosts[host], node_id, {"num_cpus": cores}))
    return devices
