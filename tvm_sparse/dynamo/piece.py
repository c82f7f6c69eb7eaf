"""One graph of a model, compiled when it is called: for each shape of its inputs, and again when its weights change."""

import functools
import logging
import threading
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from tvm_sparse.compiler.build_model import compile as compile_model
from tvm_sparse.dynamo.graph import GraphInputs, GraphWithWeights, fixed_results, shares_memory, wants_gradients
from tvm_sparse.dynamo.options import WHERE, Options
from tvm_sparse.dynamo.weights import Weights
from tvm_sparse.errors import BuildError, ModelError, UsageError
from tvm_sparse.frontend.relax_import import export_module
from tvm_sparse.target.resolve import resolve_target

logger = logging.getLogger(__name__)
# What runs a graph: all of its arguments to all of its results.
Run = Callable[[Sequence[Any]], Sequence[Any]]
# Target kind of the devices of torch that there are schedules for.
_KINDS = {"cpu": "llvm", "cuda": "cuda"}


@functools.cache
def say(sentence: str) -> None:
    """Warn the user, once of each thing: a model may consist of many graphs."""
    warnings.warn(sentence, stacklevel=2)


class Piece:
    """Calls a graph with the arguments that Dynamo found for it; from several threads at once if need be.

    Parameters
    ----------
    gm, inputs
        The graph.
    options
        See `Options`.
    """

    def __init__(self, gm: torch.fx.GraphModule, inputs: GraphInputs, options: Options):
        self._gm, self._inputs, self._options = gm, inputs, options
        self._weights: Weights | None = None
        self._lock = threading.Lock()

    def __call__(self, *arguments: Any) -> Sequence[Any]:
        """Run the graph.

        Raises
        ------
        ModelError
            The weights are others than before, and `Options.on_change` is ``refuse``.
        UsageError, LogError
            An argument of `tvm_sparse.compile` that came with the options is not usable.
        """
        constants = [arguments[i] for i in self._inputs.constants]
        weights = self._weights
        if weights is None or not weights.are(constants):
            weights = self._renewed(constants)
        key = tuple(getattr(arguments[i], "shape", arguments[i]) for i in self._inputs.others)
        run = weights.table.get(key)
        if run is None:
            run = self._added(weights, key, arguments)
        return run(arguments)

    def _eager(self, arguments: Sequence[Any]) -> Sequence[Any]:
        return self._gm.forward(*arguments)

    def _renewed(self, constants: Sequence[Any]) -> Weights:
        """The weights as they are now, with nothing compiled for them."""
        with self._lock:
            if self._weights is not None and self._weights.table:
                name = self._inputs.names[self._weights.first_changed(constants)]
                if self._options.on_change == "refuse":
                    problem = "it was written to, or is another tensor, since the model was compiled for its values"
                    hint = "call torch.compiler.reset(), or pass options={'on_change': 'rebuild'}"
                    raise ModelError(f"parameter {name}", problem, hint=hint)
                logger.info("parameter %s changed, so the graph is compiled again", name)
            self._weights = Weights(constants)
            return self._weights

    def _added(self, weights: Weights, key: Hashable, arguments: Sequence[Any]) -> Run:
        """What runs the graph on arguments of these shapes, which are new."""
        with self._lock:
            if key in weights.table:
                return weights.table[key]
            if len(weights.table) >= self._options.max_shapes:
                say(f"{WHERE}: a graph was called with more than {self._options.max_shapes} shapes, so it runs eagerly "
                    "with others; option max_shapes allows more")  # fmt: skip
                return self._eager
            try:
                run = self._compiled(arguments)
            except (ModelError, BuildError) as error:
                say(f"{error}; this graph runs eagerly")
                run = self._eager
            weights.table[key] = run
            return run

    def _compiled(self, arguments: Sequence[Any]) -> Run:
        constants = [arguments[i] for i in self._inputs.constants]
        if not any(_density(tensor) <= self._options.density for tensor in constants if tensor.ndim >= 2):
            return self._eager
        _check(self._gm)
        target = self._target(arguments)
        tensors = [i for i in self._inputs.others if isinstance(arguments[i], torch.Tensor)]
        with torch.inference_mode(False), torch.no_grad():
            module = GraphWithWeights(self._gm, self._inputs, arguments)
            program = export_module(module, [torch.zeros_like(arguments[i]) for i in tensors])
        signature = program.graph_signature
        if signature.buffers_to_mutate or signature.user_inputs_to_mutate:
            raise ModelError(WHERE, "it writes to its inputs or to the state of the model", hint="write to a copy")
        compiled = compile_model(program, **{**self._options.compile, "target": target})
        if all(row["density"] > self._options.density for row in compiled.report()):
            return self._eager
        logger.info("compiled a graph:\n%s", compiled.report_text())
        if self._options.on_compiled is not None:
            self._options.on_compiled(compiled)
        fixed, returned = fixed_results(self._gm, self._inputs), module.returned

        def run(arguments: Sequence[Any]) -> Sequence[Any]:
            found = compiled(*[arguments[i] for i in tensors])
            values = iter([found] if compiled.signature.single else found)
            results = [next(values) if value is None else value for value in returned]
            # A result that depends on no input is the artifact's own constant.
            return [value.clone() if i in fixed else value for i, value in enumerate(results)] if fixed else results

        return run

    def _target(self, arguments: Sequence[Any]) -> Any:
        """The target for the device that the tensors are on.

        Raises
        ------
        ModelError
            There is no code for that device.
        UsageError
            The options name a target that does not run there.
        """
        devices = sorted({str(value.device) for value in arguments if isinstance(value, torch.Tensor)})
        kind = _KINDS.get(devices[0].removesuffix(":0")) if len(devices) == 1 else None
        if kind is None:
            raise ModelError(WHERE, "its tensors are not all on one usable device", ", ".join(devices), "cpu, cuda:0")
        given = self._options.compile.get("target")
        target = resolve_target(kind if given is None else given)
        if target.kind.name != kind:
            hint = "move the model and its inputs, or leave the option target out"
            raise UsageError(WHERE, f"target {target.kind.name} does not run on {devices[0]}", hint=hint)
        return target


def _density(tensor: torch.Tensor) -> float:
    return int(torch.count_nonzero(tensor)) / max(tensor.numel(), 1)


def _check(gm: torch.fx.GraphModule) -> None:
    """Raise ModelError where results must be such as a compiled model does not give."""
    if wants_gradients(gm):
        hint = "call the model under torch.no_grad() or torch.inference_mode()"
        raise ModelError(WHERE, "gradients are wanted, and tvm_sparse compiles for inference only", hint=hint)
    if any(torch.is_autocast_enabled(kind) for kind in _KINDS):
        raise ModelError(WHERE, "autocast is on, and tvm_sparse computes in float32 only", hint="turn it off")
    if shares_memory(gm):
        problem = "results share memory with each other or with inputs"
        raise ModelError(WHERE, problem, hint="return copies")
