"""Reads or writes the element of a tensor that is said, by TVM's own code, without any check of ours.

python planted_access.py read|write INDEX ELEMENTS
"""

import sys

import numpy as np
import tvm
from tvm import relax


def main(access, index, elements):
    """Print the tensor or the element."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((elements,), "float32"))
    i = relax.Var("i", relax.TensorType((1,), "int64"))
    u = relax.Var("u", relax.TensorType((1,), "float32"))
    with builder.function("main", [x, i, u]):
        call = relax.op.take(x, i, 0) if access == "read" else relax.op.scatter_elements(x, i, u, 0)
        builder.emit_func_output(builder.emit(call))
    executable = tvm.compile(builder.get(), tvm.target.Target({"kind": "llvm", "opt-level": 0}))
    run = relax.VirtualMachine(executable, tvm.cpu(), memory_cfg="naive")["main"]
    arrays = (np.ones(elements, np.float32), np.array([index]), np.full(1, 2, np.float32))
    print(run(*map(tvm.runtime.tensor, arrays)).numpy().tolist())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
