"""A Ray cluster of two real nodes of one core each on this machine."""

import os
from contextlib import contextmanager, suppress

import psutil
import ray
from ray.cluster_utils import Cluster


@contextmanager
def cluster_of_two(with_idle_head):
    """A cluster and its nodes; this process has joined it, and leaves it again.

    The first node is the head, which cannot be killed, unless there is one that runs nothing, which takes longer.
    """
    # Nobody is told that Ray is used.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    cores = 0 if with_idle_head else 1
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cores, "include_dashboard": False})
    try:
        others = [cluster.add_node(num_cpus=1) for _ in range(2 - cores)]
        yield cluster, others if with_idle_head else [cluster.head_node, *others]
    finally:
        ray.shutdown()
        cluster.shutdown()


def kill(cluster, node):
    """End a node as a power cut does: nothing that ran there answers any more."""
    (raylet,) = node.all_processes["raylet"]
    workers = psutil.Process(raylet.process.pid).children(recursive=True)
    assert workers
    cluster.remove_node(node, allow_graceful=False)
    for worker in workers:
        with suppress(psutil.NoSuchProcess):
            worker.kill()
    psutil.wait_procs(workers)
