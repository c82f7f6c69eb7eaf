"""Run kernels that were chosen by another weight's record against the float64 reference, with this weight."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm.target import Target

from tvm_sparse.compiler.building.emulator import emulated, why_not_emulated
from tvm_sparse.compiler.building.kernel_store import KernelRequest, KernelStore
from tvm_sparse.compiler.layouts.plan_scratch import scratch_of
from tvm_sparse.compiler.plan.decision import Decision
from tvm_sparse.compiler.rewriting.replace_convolutions import PREFIX, function_names, names_of_parts
from tvm_sparse.conv import reference
from tvm_sparse.conv.byte_form import ByteForm, as_fours, fours_shape, of_bytes
from tvm_sparse.conv.codes import CODES
from tvm_sparse.conv.error_bounds import EXACT
from tvm_sparse.conv.sparsity import digest
from tvm_sparse.conv.volumes import Volumes
from tvm_sparse.cudnn import library, packed_function
from tvm_sparse.errors import BuildError
from tvm_sparse.frontend.passes.find_convolutions import ConvLayer
from tvm_sparse.runtime.cpu.core_shares import CORE_SHARES
from tvm_sparse.schedules.lookup import arithmetic_of, family_of
from tvm_sparse.scheduling.argument_views import shape_of
from tvm_sparse.scheduling.kernel import Kernel
from tvm_sparse.target.compatibility import device_of, why_not_here
from tvm_sparse.target.cpu import available_cores
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.resolve import thread_count

# Arguments that transferred kernels are verified with are drawn from this seed.
VERIFICATION_SEED = 2020
# Volumes that differ, at least; each has many images.
LEAST_VOLUMES = 2
# References computed side by side, at most: those of a large batch take hundreds of megabytes each.
REFERENCES = 8


def verify(
    layers: Sequence[ConvLayer],
    decisions: Sequence[Decision],
    kernels: Mapping[str, Kernel],
    executable: Any,
    target: Target,
    store: KernelStore | None = None,
    prefix: str = PREFIX,
) -> dict[str, str]:
    """Run each transferred kernel of the compiled model once; layer name -> what is wrong with it.

    What is run is the very function that the model calls, of the module that `executable` is, in memory or loaded; not
    again where `store` knows that it was right. Functions' names begin with `prefix`. Code for a processor of another
    architecture is emulated.
    """
    # What a log's kernel computed of floats says nothing of what it makes of bytes.
    of_bytes = {name for name, kernel in kernels.items() if kernel.form is not None}
    pairs = [(layer.name, each) for layer, each in zip(layers, decisions, strict=True)]
    chosen = {name: each for name, each in pairs if each.transferred or name in of_bytes}
    proofs = {name: _proof(layer, chosen[name], target, store) for layer in layers if (name := layer.name) in chosen}
    known = {name for name, proof in proofs.items() if store is not None and store.is_proven(proof)}
    open_ = [layer for layer in layers if layer.name in proofs and layer.name not in known]
    if not open_:
        return {}
    is_elsewhere = bool(why_not_here(target))
    if is_elsewhere and (obstacle := why_not_emulated(target)):
        return {layer.name: f"it cannot be verified with this weight: {obstacle}" for layer in open_}
    packed_function.register()
    schedules = {decision.layer: decision.schedule for decision in decisions}
    names = function_names(layers, kernels, prefix)
    wrong: dict[str, str] = {}
    side_by_side = min(REFERENCES, available_cores())
    functions = emulated(executable, target) if is_elsewhere else nullcontext(_functions_of(executable))
    with ThreadPoolExecutor(side_by_side) as pool, functions as function_of:
        for first in range(0, len(open_), side_by_side):
            some = open_[first : first + side_by_side]
            own = [kernels[layer.name] for layer in some]
            forms, volumes = [each.form for each in own], list(map(_volumes, some, own))
            for layer, kernel, case in zip(some, own, pool.map(_Case.of, some, forms, volumes), strict=True):
                *before, function = map(function_of, names_of_parts(names[layer.name], kernel))
                schedule, machine = schedules[layer.name], (device_of(target), thread_count(target))
                try:
                    worst = case.worst_error(function, kernel, schedule, *machine, before)
                except BuildError as error:
                    # Of a library, which may not compute this convolution.
                    wrong[layer.name] = str(error)
                    continue
                if not worst <= 1:
                    wrong[layer.name] = f"the transferred kernel is wrong by {worst:.3g} times the error bound"
                elif store is not None:
                    store.keep_proof(proofs[layer.name])
    return wrong


def _functions_of(executable: Any) -> Callable[[str], Any]:
    """What gives a function of a compiled model by its name, here."""
    module = executable.jit() if hasattr(executable, "jit") else executable
    return lambda name: module.get_function(name, query_imports=True)


def _proof(layer: ConvLayer, decision: Decision, target: Target, store: KernelStore | None) -> dict[str, Any]:
    """What a kernel is verified with, and where, as JSON values."""
    if store is None:
        return {}
    return {
        "verified": store.key(KernelRequest.of(layer, decision)),
        "on": fingerprint_of(target),
        "library": library.version() if family_of(decision.schedule).is_library else None,
        "seed": VERIFICATION_SEED,
        "bias": digest(layer.bias) if layer.bias is not None else None,
    }


@dataclass(frozen=True)
class _Case:
    """Arguments of a layer's kernel and the result; of a large batch only the distinct images.

    `images` says which one each is, and `maps` the same of the input, where that is maps of volumes.
    """

    layer: ConvLayer
    arguments: dict[str, np.ndarray]
    images: np.ndarray
    maps: np.ndarray
    expected: reference.Reference

    @classmethod
    def of(cls, layer: ConvLayer, form: ByteForm | None, volumes: Volumes | None = None) -> "_Case":
        if form is not None and form.stages:
            # What is done to sums is the form's.
            layer = replace(layer, bias=None, spec=replace(layer.spec, bias=False, relu=False))
        spec = replace(layer.spec, volumes=volumes)
        maps, outputs = volumes[:2] if volumes is not None else (1, 1)
        most = max(LEAST_VOLUMES, reference.DISTINCT_IMAGES // outputs)
        which = reference.repetition(spec.n // outputs, VERIFICATION_SEED, most)
        distinct = replace(spec, n=(int(which.max()) + 1) * outputs)
        arguments = reference.random_arguments(distinct, VERIFICATION_SEED)
        if layer.bias is not None:
            arguments["bias"] = layer.bias
        expected = reference.reference(distinct, weight=layer.weight, **arguments)
        return cls(layer, arguments, _each(which, outputs), _each(which, maps), expected)

    def worst_error(
        self,
        function: Any,
        kernel: Kernel,
        schedule: str,
        device: Any,
        threads: int = 1,
        before: Sequence[Any] = (),
    ) -> float:
        """Largest error of a kernel, run with `threads` threads, as a fraction of its bound.

        `before` are the functions of those that come before it.
        """
        if kernel.form is not None:
            return self._worst_of_bytes(function, kernel, kernel.form, threads)
        layouts = kernel.layouts
        places = {"x": self.maps, "residual": self.images}
        images = {name: array[places[name]] for name, array in self.arguments.items() if name in places}
        laid_out = {name: layouts.laid_out(name, array) for name, array in (self.arguments | images).items()}
        if kernel.before:
            laid_out["x"] = laid_out["x"].reshape(shape_of(kernel.func.params[0]))
        given = {name: tvm.runtime.tensor(array, device) for name, array in laid_out.items()}
        # An element that the kernel does not write stays NaN, which is infinitely wrong.
        expected = self.expected.pooled() if family_of(schedule).computes_pool else self.expected
        expected = expected.interleaved(kernel.interleaving) if kernel.interleaving is not None else expected
        shape = (len(self.images), *expected.value.shape[1:])
        poison = layouts.laid_out("y", np.full(shape, np.nan, self.layer.spec.dtype))

        def constants(of: Kernel) -> list[Any]:
            return [tvm.runtime.tensor(each, device) for each in of.constants]

        for part, each in zip(kernel.before, before, strict=True):
            added = tvm.runtime.tensor(poison, device)
            each(given["x"], *constants(part), *([given["residual"]] if "residual" in given else []), added)
            given["residual"] = added
        y = tvm.runtime.tensor(poison, device)
        arrays = scratch_of(kernel.func) if device.type == "cuda" else []
        scratch = [tvm.runtime.empty(map(int, array.ty.shape), str(array.ty.dtype), device) for array in arrays]
        x, *epilogue = given.values()
        inputs = [x, *constants(kernel), *epilogue]
        CORE_SHARES.run(threads, lambda: function(*inputs, y, *scratch))
        device.sync()
        return expected.within(arithmetic_of(schedule), self.layer.weight).worst(
            layouts.as_nchw("y", y.numpy(), shape), self.images
        )

    def _worst_of_bytes(self, function: Any, kernel: Kernel, form: ByteForm, threads: int) -> float:
        """Largest error of a kernel on bytes: in steps where it may be off by one, else 0 or infinite."""
        spec, images = self.layer.spec, self.images
        rest: list[np.ndarray] = [] if form.stages or self.layer.bias is None else [self.layer.bias]
        residual = None
        if form.residual_least is not None:
            shape = (int(images.max()) + 1, *spec.output_shape[1:])
            codes = np.random.default_rng(VERIFICATION_SEED).integers(0, CODES, shape)
            residual = codes + form.residual_least
            rest.append(as_fours(residual[images], form.residual_least))
        y = np.full(spec.output_shape, np.nan, np.float32)
        y = np.zeros(fours_shape(spec.output_shape), np.int32) if form.stages else y
        x = as_fours(self.arguments["x"][images], spec.least)
        arrays = [tvm.runtime.tensor(each) for each in (x, *kernel.constants, *rest, y)]
        CORE_SHARES.run(threads, lambda: function(*arrays))
        if not form.stages:
            return self.expected.within(EXACT, self.layer.weight).worst(arrays[-1].numpy(), images)
        expected = form.of(self.expected.value, residual)[images]
        steps = float(np.abs(of_bytes(arrays[-1].numpy(), form.least) - expected).max())
        # Products of scales may be added in one operation, or in two.
        return steps if steps == 0 or not form.is_exact else float(np.inf)


def _volumes(layer: ConvLayer, kernel: Kernel) -> Volumes | None:
    """What a layer's kernels read together."""
    if not kernel.before:
        return kernel.volumes
    return layer.volumes.within if layer.volumes is not None else None


def _each(which: np.ndarray, count: int) -> np.ndarray:
    """The numbers of all images of some volumes, of `count` images each."""
    found: np.ndarray = which[:, None] * count + np.arange(count)
    return found.ravel()
