"""A worker in whose process the schedule of cuDNN serves the host, for a cuDNN that computes there."""

import sys

from tvm_sparse.measure import worker_main
from tvm_sparse.measure.serve import serve


def main():
    """Serve requests, with the schedule changed before the first."""
    # As the worker does, but before TVM is imported.
    sys.modules["torch"] = None
    import cudnn_on_host

    for change in cudnn_on_host.changes():
        setattr(*change)
    serve(worker_main.ACTIONS)


if __name__ == "__main__":
    main()
