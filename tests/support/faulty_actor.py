"""An actor in place of `ray_cluster.TunerActor`, with the kernels of `faulty_worker`: times do not vary."""

import sys

from faulty_device import FAULTY_WORKER

from tvm_sparse.autotune.fleet.ray_cluster import TunerActor
from tvm_sparse.measure.worker import Worker


class FaultyActor(TunerActor):
    """Its trials take no time to build or run."""

    def __init__(self):
        super().__init__()
        Worker.command = (sys.executable, FAULTY_WORKER)
