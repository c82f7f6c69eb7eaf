"""The pass that makes functions of operators: of some in our own way, of all others in TVM's."""

import tvm
from tvm import relax

from tvm_sparse.compiler.rewriting.extremes import EXTREMES
from tvm_sparse.compiler.rewriting.resize_by_axes import RESIZE_BY_AXES
from tvm_sparse.compiler.rewriting.roi_align import ROI_ALIGN


def own_functions(is_cpu: bool) -> tvm.transform.Pass:
    """For a CPU or a GPU; run it once nothing else looks at operators."""
    return relax.transform.LegalizeOps({**EXTREMES, **ROI_ALIGN, **(RESIZE_BY_AXES if is_cpu else {})})
