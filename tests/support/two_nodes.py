"""A Ray cluster of real nodes on this machine: a head that runs nothing, and nodes of one core each."""

import os
from contextlib import contextmanager, suppress

import psutil
import ray
from ray.cluster_utils import Cluster


@contextmanager
def cluster_of(nodes):
    """A cluster with so many nodes, and these; this process has joined it, and leaves it again."""
    # Nobody is told that Ray is used.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        yield cluster, [cluster.add_node(num_cpus=1) for _ in range(nodes)]
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
