"""Chains for AVX-512 and for AVX2 with FMA. Inputs are operands in memory unless they are kept in registers."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from tvm_sparse.codegen.folding.chain_writer import FLOAT_BYTES, ChainWriter, Vector
from tvm_sparse.codegen.folding.fma_chains import Chain
from tvm_sparse.target.cpu_info import CpuInfo


class X86Writer(ChainWriter):
    """Writes AT&T syntax: destinations are last."""

    def __init__(self, cpu: CpuInfo, chain: Chain, unit_floats: Sequence[int]):
        super().__init__(cpu, chain, unit_floats)
        self._factor, *self._free = self._others

    def lines(self) -> list[str]:
        """Accumulators in, products, accumulators out."""
        places = [(self._place(vector, 1), register) for vector, register in self._accumulators.items()]
        first = [f"vmovups {place}, {register}" for place, register in places]
        last = [f"vmovups {register}, {place}" for place, register in places]
        return [*first, *self._multiply_adds(), *last]

    def _register(self, index: int) -> str:
        return f"%{super()._register(index)}"

    def _multiply_adds(self) -> Iterator[str]:
        for _, run in groupby(self._products, lambda product: self._values[product.weight]):
            products = list(run)
            for product in products:
                if product.x not in self._held and product.is_x_kept and self._free:
                    register = self._held[product.x] = self._free.pop()
                    yield f"vmovups {self._place(product.x, 0)}, {register}"
            weight = f"{products[0].weight * FLOAT_BYTES}($2)"
            if self._cpu.has_memory_broadcast and len(products) == 1 and products[0].x in self._held:
                factor = f"{weight}{{1to{self._cpu.lanes}}}"
            else:
                factor = self._factor
                yield f"vbroadcastss {weight}, {factor}"
            for product in products:
                x = self._held.get(product.x)
                # Only the first of the three operands may be in memory.
                operands = (factor, x) if x is not None else (self._place(product.x, 0), factor)
                yield f"vfmadd231ps {operands[0]}, {operands[1]}, {self._accumulators[product.acc]}"
                if x is not None and not product.is_x_kept:
                    self._free.append(self._held.pop(product.x))

    def _place(self, vector: Vector, pointer: int) -> str:
        return f"{self._byte(vector, pointer)}(${pointer})"
