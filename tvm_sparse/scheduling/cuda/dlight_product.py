"""Dense linear layers on many images, as TVM's own DLight schedules matrix products: tiles in shared memory."""

from tvm.s_tir import Schedule
from tvm.s_tir.dlight.gpu import Matmul
from tvm.target import Target

from tvm_sparse.conv.conv2d_product import conv2d_product
from tvm_sparse.conv.spec import ConvSpec
from tvm_sparse.scheduling.space import Choose, HandMadeSpace


class DlightProductSpace(HandMadeSpace):
    """The one schedule that DLight has for a convolution that `conv2d_product.is_linear`; it has no decisions."""

    def __init__(self, name: str, spec: ConvSpec, target: Target):
        super().__init__(name, "dlight", conv2d_product(spec), fold=False)
        self.target = target

    def apply(self, sch: Schedule, choose: Choose) -> None:
        with self.target:
            scheduled = Matmul().apply(sch.mod["main"], self.target, False)
        scheduled.trace.apply_to_schedule(sch, remove_postproc=False)
