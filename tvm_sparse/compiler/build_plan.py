"""A plan -> compiled model: make the kernels, replace the convolutions, compile, verify."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import tvm
from tvm.target import Target

from tvm_sparse.codegen import lowering
from tvm_sparse.codegen.cuda.launches import launched
from tvm_sparse.codegen.cuda.nvcc import leaves_files
from tvm_sparse.codegen.kernel_cache import KernelCache
from tvm_sparse.codegen.kernel_source import BuiltKernel
from tvm_sparse.compiler.building.build_kernels import KernelBuilder, OnProgress
from tvm_sparse.compiler.building.dense_products import DenseProducts
from tvm_sparse.compiler.building.kernel_store import KernelStore
from tvm_sparse.compiler.building.library_cache import LibraryCache, loadable
from tvm_sparse.compiler.building.make_kernels import kernels_of, scheduled
from tvm_sparse.compiler.building.verify import verify
from tvm_sparse.compiler.building.verify_bottlenecks import wrong_bottlenecks
from tvm_sparse.compiler.dump import dump_module, dump_plan, is_dumped
from tvm_sparse.compiler.layouts.blocked_layers import with_blocks
from tvm_sparse.compiler.layouts.byte_tensors import byte_layers
from tvm_sparse.compiler.layouts.fuse_bottlenecks import fuse_bottlenecks, names_of
from tvm_sparse.compiler.layouts.join_residuals import join_residuals
from tvm_sparse.compiler.layouts.keep_nhwc import keep_nhwc, results_in_nhwc
from tvm_sparse.compiler.layouts.plan_scratch import plan_scratch
from tvm_sparse.compiler.plan.bottlenecks import joined_bottlenecks, without_bottlenecks
from tvm_sparse.compiler.plan.decision import Decision
from tvm_sparse.compiler.plan.dense_fallback import to_dense
from tvm_sparse.compiler.plan.plan import Plan
from tvm_sparse.compiler.relax_pipeline import relax_pipeline
from tvm_sparse.compiler.rewriting.as_turns import as_turns
from tvm_sparse.compiler.rewriting.half_means import half_means
from tvm_sparse.compiler.rewriting.replace_convolutions import PREFIX, replace_convolutions
from tvm_sparse.compiler.signature_of import signature_of
from tvm_sparse.cudnn import library
from tvm_sparse.errors import BuildError, last_line
from tvm_sparse.frontend.one_at_a_time import one_at_a_time
from tvm_sparse.frontend.passes.relax_graph import cleaned, constants_bytes
from tvm_sparse.runtime.compiled_model import CompiledModel
from tvm_sparse.runtime.libraries import CUDNN
from tvm_sparse.runtime.library_file import export
from tvm_sparse.schedules.lookup import family_of
from tvm_sparse.scheduling.annotations import KERNEL_LIBRARY
from tvm_sparse.scheduling.kernel import Kernel
from tvm_sparse.target.compatibility import why_not_here
from tvm_sparse.target.gpu import gpu_info


@one_at_a_time
def build_plan(plan: Plan, on_progress: OnProgress | None = None, allow_tf32: bool = False) -> CompiledModel:
    """Compile a plan; a transferred kernel that is not correct gives way to dense.

    `allow_tf32` is for dense linear layers, about which nothing is decided.
    """
    prepared, decisions, target = plan.prepared, plan.decisions, plan.target
    cache = None if is_dumped() else LibraryCache.of_user(target)
    # What calls a library is as that is found here and now.
    if cache is None or any(family_of(decision.schedule).is_library for decision in decisions):
        return _built(plan, on_progress, allow_tf32, in_file=not why_not_here(target))
    key, signature = cache.key(prepared, decisions, allow_tf32), signature_of(prepared)
    found = cache.find(key, signature)
    if found is not None:
        rows = [decision.to_json() for decision in decisions]
        return CompiledModel(found.module, target, signature, rows, library=found, checks=prepared.checks)
    model = _built(plan, on_progress, allow_tf32, in_file=True)
    # What was wrong is found out again, and said again.
    if model.library is not None and model.decisions == [decision.to_json() for decision in decisions]:
        cache.keep(key, model.library, signature)
    return model


def _built(plan: Plan, on_progress: OnProgress | None, allow_tf32: bool, in_file: bool = False) -> CompiledModel:
    """As `build_plan`, without looking for what was built before.

    `in_file`: the code is a library, where it can be linked. TVM generates code when it is asked for a library, and
    again to have it in memory. What runs in memory and is saved then says a line for each constant, and again whenever
    it is loaded.
    """
    prepared, decisions, target = plan.prepared, list(plan.decisions), plan.target
    # Files that compilers leave would overwrite each other's if they ran side by side.
    is_apart = target.kind.name == "cuda" and not leaves_files()
    store = KernelStore(KernelCache.of_user(), target) if is_apart else None
    make = KernelBuilder(target, store, on_progress).build if store is not None else partial(scheduled, target=target)
    left: set[str] = set()
    while True:
        of_bytes = byte_layers(prepared, decisions)
        kernels = kernels_of(prepared.layers, decisions, target, make, of_bytes)
        in_nhwc = results_in_nhwc(prepared, kernels)
        module = dump_module(
            "kernels", replace_convolutions(prepared.mod, kernels, prepared.groups, of_bytes=of_bytes, target=target)
        )
        products = DenseProducts.of(module, target, left, allow_tf32)
        of_products = products.kernels(make)
        module = dump_module("products", products.replace(module, of_products))
        module = dump_module("layouts", keep_nhwc(module, in_nhwc, target))
        bottlenecks = names_of(joined_bottlenecks(prepared, decisions), PREFIX)
        if bottlenecks:
            module = dump_module("bottlenecks", fuse_bottlenecks(module, bottlenecks, gpu_info(target)))
        module = join_residuals(cleaned(module)) if in_nhwc else module
        with store.remembered() if store is not None else nullcontext():
            if target.kind.name == "cuda":
                module = dump_module("scratch", half_means(plan_scratch(module)))
            module = dump_module("turns", as_turns(module, prepared.turns))
            executable = compiled_module(module, target, [*kernels.values(), *of_products.values()])
        file = loadable(partial(export, executable, constants_bytes=constants_bytes(prepared.mod))) if in_file else None
        made = executable if file is None else file.module
        wrong = verify(prepared.layers, decisions, kernels, made, target, store)
        wrong_products = products.wrong(of_products, made, target, store)
        apart = wrong_bottlenecks(bottlenecks, made, target, store)
        if not wrong and not wrong_products and not apart:
            break
        decisions = without_bottlenecks(decisions, apart)
        left.update(wrong_products)
        decisions = list(_without(wrong, plan.with_decisions(decisions)).decisions)
    rows = [_row(decision, kernels.get(decision.layer)) for decision in decisions]
    of_three = {layer.name: each.kernel for each in bottlenecks.values() for layer in each}
    rows = [row | ({"kernels": [of_three[row["layer"]]]} if row["layer"] in of_three else {}) for row in rows]
    is_called = products.calls_cudnn or any(family_of(decision.schedule).is_library for decision in decisions)
    libraries = {CUDNN: library.version() or "9"} if is_called else {}
    parts = (made, target, signature_of(prepared), rows)
    return CompiledModel(*parts, libraries=libraries, library=file, checks=prepared.checks)


def _without(wrong: Mapping[str, str], plan: Plan) -> Plan:
    """`plan`, where wrong kernels give way to the log's dense ones, and these to defaults, which need no record."""
    decisions = (
        to_dense(each, plan.target, wrong[each.layer]) if each.layer in wrong else each for each in plan.decisions
    )
    plan = with_blocks(plan.with_decisions(decisions))
    dump_plan("dense_for_wrong", plan)
    return plan


def _row(decision: Decision, kernel: Kernel | None) -> dict[str, Any]:
    """The row of the decision table; with the names of its kernels where they are not made from the layer's."""
    names: list[str] = []
    for each in kernel.all if kernel is not None else ():
        if isinstance(each, BuiltKernel):
            names += each.names
        elif KERNEL_LIBRARY in each.func.attrs:
            names += launched(each.func)
    return decision.to_json() | ({"kernels": names} if names else {})


def compiled_module(module: tvm.IRModule, target: Target, kernels: Iterable[Kernel] = ()) -> Any:
    """The executable of `module`, with the code of those of `kernels` that were built before."""
    every = (part for each in kernels for part in each.all)
    modules = {each.names: each.module for each in every if isinstance(each, BuiltKernel)}
    if modules:
        module = module.with_attr("external_mods", list(modules.values()))
    try:
        return lowering.compiled(module, target, relax_pipeline(target))
    except (RuntimeError, ValueError, TypeError) as error:
        hint = "report it with the model and what -v shows"
        raise BuildError("model", f"TVM cannot compile it: {last_line(error)}", hint=hint) from error
