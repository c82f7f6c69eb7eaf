"""One graph of a model, compiled when it is called: for each shape of its inputs, and again when its weights change."""

import functools
import logging
import threading
import warnings
from collections.abc import Hashable, Sequence
from typing import Any

import torch

from tvm_sparse.compiler.build_model import compile as compile_model
from tvm_sparse.dynamo import compile_graph, graph
from tvm_sparse.dynamo.compile_graph import Run
from tvm_sparse.dynamo.options import WHERE, Options
from tvm_sparse.dynamo.weights import Weights
from tvm_sparse.errors import BuildError, ModelError, VerificationError
from tvm_sparse.runtime.multi_shape_model import AnyModel
from tvm_sparse.schedules.lookup import family_of

logger = logging.getLogger(__name__)


@functools.cache
def say(sentence: str) -> None:
    """Warn the user, once of each thing: a model may consist of many graphs."""
    warnings.warn(sentence, stacklevel=2)


class Piece:
    """Calls a graph with the arguments that Dynamo found for it.

    Parameters
    ----------
    gm, inputs
        The graph.
    options
        See `Options`.
    """

    def __init__(self, gm: torch.fx.GraphModule, inputs: graph.GraphInputs, options: Options):
        self._gm, self._inputs, self._options = gm, inputs, options
        self._batch = options.batch if graph.counts_samples(gm, inputs) else None
        self._weights: Weights | None = None
        self._is_refused = False
        self._lock = threading.Lock()

    def __call__(self, *arguments: Any) -> Sequence[Any]:
        """Run the graph.

        ModelError where the weights are others than before, and `Options.on_change` is ``refuse``. UsageError, LogError
        where an argument of `tvm_sparse.compile` that came with the options is not usable.
        """
        if self._is_refused:
            return self._eager(arguments)
        constants = [arguments[i] for i in self._inputs.constants]
        weights = self._weights
        if weights is None or not weights.are(constants):
            weights = self._renewed(constants)
        run = weights.table.get(self._key(arguments))
        if run is None:
            run = self._added(weights, arguments)
        return run(arguments)

    def _key(self, arguments: Sequence[Any]) -> Hashable:
        """What differs where other code is needed: numbers, and shapes, but for the batch if there is code for any."""
        first = 0 if self._batch is None else 1
        return (*(arguments[i].shape[first:] for i in self._inputs.tensors), *self._inputs.values(arguments))

    def _eager(self, arguments: Sequence[Any]) -> Sequence[Any]:
        return self._gm.forward(*arguments)

    def _renewed(self, constants: Sequence[Any]) -> Weights:
        """The weights as they are now, with nothing compiled for them."""
        with self._lock:
            if self._weights is not None and self._weights.has_code and self._weights.table:
                name = self._weights.first_changed(constants)
                if self._options.on_change == "refuse":
                    problem = "it was written to, or is another tensor, since the model was compiled for its values"
                    hint = "call torch.compiler.reset(), or pass options={'on_change': 'rebuild'}"
                    raise ModelError(f"parameter {name}", problem, hint=hint)
                logger.info("parameter %s changed, so the graph is compiled again", name)
            self._weights = Weights(self._inputs.names, constants)
            return self._weights

    def _added(self, weights: Weights, arguments: Sequence[Any]) -> Run:
        """What runs the graph on arguments of these shapes, which are new."""
        with self._lock:
            if self._key(arguments) in weights.table:
                return weights.table[self._key(arguments)]
            if len(weights.table) >= self._options.max_shapes:
                most = f"a graph is compiled for {self._options.max_shapes} shapes of its inputs and no more"
                say(f"{WHERE}: {most}, so it runs eagerly with others; option max_shapes allows more")
                return self._eager
            constants = [arguments[i] for i in self._inputs.constants]
            tensors = [arguments[i] for i in self._inputs.tensors]
            has_input = all(tensor.numel() for tensor in tensors)
            is_sparse = has_input and compile_graph.is_sparse(constants, self._options.density)
            # Training changes the weights at each call: no need to look at them again.
            self._is_refused = graph.wants_gradients(self._gm)
            run: Run = self._eager
            if is_sparse:
                try:
                    run = self._compiled(constants, tensors, arguments)
                except (ModelError, BuildError, VerificationError) as error:
                    say(f"{error}; this graph runs eagerly")
            if run != self._eager:
                weights.add_code(constants)
            weights.table[self._key(arguments)] = run
            return run

    def _compiled(self, constants: list[torch.Tensor], tensors: list[torch.Tensor], arguments: Sequence[Any]) -> Run:
        """The graph as compiled for these arguments; eager where no convolution is sparse after all."""
        target = compile_graph.target_for([*constants, *tensors], self._options.compile.get("target"))
        with torch.inference_mode(False), torch.no_grad():
            module = graph.GraphWithWeights(self._gm, self._inputs, arguments)
            examples = [torch.zeros_like(tensor) for tensor in tensors]
            try:
                compile_graph.check(self._gm, constants)
                program = compile_graph.exported(module, examples)
            except ModelError:
                # That lies in the graph, whatever its weights and shapes are.
                self._is_refused = True
                raise
            model = self._model(module, program, examples, {**self._options.compile, "target": target})
        rows = model.report()
        if all(row["density"] > self._options.density for row in rows):
            return self._eager
        if all(family_of(row["schedule"]).is_dense for row in rows):
            hint = "search some with tvm_sparse.optimize or tvm_sparse.tune"
            say(f"{WHERE}: no log knows a kernel that is faster than dense, so all layers run dense; {hint}")
        logger.info("compiled a graph:\n%s", model.report_text())
        if self._options.on_compiled is not None:
            self._options.on_compiled(model)
        return compile_graph.runner(model, self._inputs, module.returned)

    def _model(self, module: Any, program: Any, examples: list[torch.Tensor], options: dict[str, Any]) -> AnyModel:
        """The graph, for all batches of the options if that is possible."""
        if self._batch is not None:
            try:
                return compile_model(module, examples, batch=self._batch, **options)
            except (ModelError, VerificationError) as error:
                say(f"{error}; this graph is compiled for each batch by itself")
                self._batch = None
        return compile_model(program, **options)
