"""Vectors of one bfloat16 number, which TVM alone does not compile."""

import numpy as np
import tvm
import zoo
from tvm import s_tir, te, tirx

from tvm_sparse.codegen.lowering import PIPELINE, register


def test_a_constant_is_stored_in_vectors():
    y = te.compute((64,), lambda _: tirx.const(1.5, "bfloat16"), name="y")
    sch = s_tir.Schedule(te.create_prim_func([y]).with_attr("global_symbol", "main"))
    sch.vectorize(sch.split(*sch.get_loops(sch.get_sblock("y")), [None, 16])[1])
    register()
    library = tvm.compile(sch.mod, tvm.target.Target(zoo.UNOPTIMISED), tir_pipeline=PIPELINE)
    found = tvm.runtime.empty((64,), "bfloat16")
    library["main"](found)
    assert (found.numpy().astype(np.float32) == 1.5).all()
