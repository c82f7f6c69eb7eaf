"""A worker in whose process the schedule of cuDNN serves the host, for a cuDNN that computes there."""

import sys
from types import SimpleNamespace

from tvm_sparse.measure import worker_main
from tvm_sparse.measure.serve import serve


def main():
    """Serve requests, with the schedule changed before the first."""
    # As the worker does, but before TVM is imported.
    sys.modules["torch"] = None
    from tvm_sparse.schedules import dense_cudnn

    dense_cudnn.TARGET = "llvm"
    dense_cudnn.gpu_info = lambda _: SimpleNamespace(compute_capability=90)
    serve(worker_main.ACTIONS)


if __name__ == "__main__":
    main()
