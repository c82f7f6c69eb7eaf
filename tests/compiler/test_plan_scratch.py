"""What kernels compute for themselves lies in memory that Relax plans."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import zoo
from tvm.target import Target

from tvm_sparse.codegen.kernel_source import BuiltKernel
from tvm_sparse.compiler import build_plan
from tvm_sparse.compiler.layouts.plan_scratch import plan_scratch, scratch_of
from tvm_sparse.compiler.plan.choice import Default
from tvm_sparse.compiler.plan.kernel_selection import decide
from tvm_sparse.compiler.rewriting.replace_convolutions import replace_convolutions
from tvm_sparse.frontend.prepare import prepare
from tvm_sparse.schedules.lookup import make_kernel

CUDA = {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024, "max_shared_memory_per_block": 49152}
# What TVM's generated code calls for memory of its own.
FROM_THE_POOL = "load ptr, ptr @__TVMBackendAllocWorkspace"


def replaced(name, schedule, target):
    """A model of the zoo with all convolutions by one schedule, and their kernels."""
    module, shapes = zoo.TORCH[name]
    prepared = prepare(module, tuple(torch.zeros(shape) for shape in shapes))
    kernels = {layer.name: make_kernel(schedule, layer.spec, layer.weight, target) for layer in prepared.layers}
    return replace_convolutions(prepared.mod, kernels), list(kernels.values())


def host_code(executable):
    def modules(module):
        yield module
        for imported in module.imports:
            yield from modules(imported)

    return "".join(module.inspect_source("ll") for module in modules(executable.mod) if module.kind == "llvm")


@pytest.mark.parametrize("name", ["residual_two_convs", "shared", "two_consumers"])
def test_results_are_the_same(name):
    """The pass knows nothing of GPUs, so a CPU shows it."""
    module, kernels = replaced(name, "dense_cpu", Target("llvm"))
    assert any(scratch_of(kernel.func) for kernel in kernels)
    planned = plan_scratch(module)
    names, before = ({each.name_hint for each in found.get_global_vars()} for found in (planned, module))
    assert names == before
    torch_module, shapes = zoo.TORCH[name]
    arrays = zoo.inputs_of(shapes)
    for got, want in zip(zoo.run_relax(planned, *arrays), zoo.run_torch(torch_module, *arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_no_kernel_of_a_gpu_takes_memory_of_its_own():
    target = Target(CUDA, host={"kind": "llvm"})
    module, kernels = replaced("residual_two_convs", "csr_cuda", target)
    assert any(scratch_of(kernel.func) for kernel in kernels)
    assert FROM_THE_POOL in host_code(build_plan.compiled_module(module, target))
    assert FROM_THE_POOL not in host_code(build_plan.compiled_module(plan_scratch(module), target))
    assert not any(scratch_of(func) for func in plan_scratch(module).functions.values() if hasattr(func, "body"))


def test_no_built_kernel_takes_memory_of_its_own():
    """Its function is not scheduled, it only launches."""
    target = Target(CUDA, host={"kind": "llvm"})
    module, shapes = zoo.TORCH["residual_two_convs"]
    prepared = prepare(module, tuple(torch.zeros(shape) for shape in shapes))
    decisions = [replace(each, choice=Default("csr_cuda")) for each in decide(prepared.layers, target, None)]
    builder = build_plan.KernelBuilder(target, build_plan.KernelStore(None, target))
    kernels = build_plan.kernels_of(prepared.layers, decisions, target, builder.build)
    assert all(isinstance(kernel, BuiltKernel) for kernel in kernels.values())
    assert any(scratch_of(kernel.func) for kernel in kernels.values())
    module = replace_convolutions(prepared.mod, kernels)
    assert FROM_THE_POOL in host_code(build_plan.compiled_module(module, target, kernels.values()))
    assert FROM_THE_POOL not in host_code(build_plan.compiled_module(plan_scratch(module), target, kernels.values()))


def test_a_model_without_scratch_is_left_as_it_is():
    module, shapes = zoo.TORCH["residual"]
    prepared = prepare(module, torch.zeros(shapes[0])).mod
    assert plan_scratch(prepared).script() == prepared.script()
