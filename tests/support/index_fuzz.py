"""Runs models of `index_models` and `layer_models` on hostile inputs; a process of its own, which a wrong address ends.

    python index_fuzz.py llvm|cuda SEED TURNS [NAME ...]

The last line is JSON: how many calls were right, refused, and not compared, and what was wrong. TVM shares memory
between tensors and rounds sizes up; not here.
"""

import json
import sys
import tempfile
import warnings
from collections import Counter
from functools import partial
from pathlib import Path

import index_models
import layer_models
import numpy as np
import tvm
from tvm import relax

import tvm_sparse
from tvm_sparse.errors import InputError, ModelError

LARGE = 1e4
CASES = {**index_models.CASES, **layer_models.CASES}
TARGETS = {"llvm": {"kind": "llvm", "opt-level": 0}, "cuda": "cuda"}


def keep_tensors_apart():
    """Give every tensor of a model memory of its own, of its own size."""

    @tvm.transform.module_pass(opt_level=0, name="StaticPlanBlockMemory")
    def unplanned(module, _context):
        return module

    relax.transform.StaticPlanBlockMemory = lambda: unplanned
    relax.VirtualMachine = partial(relax.VirtualMachine, memory_cfg="naive")


def compiled(case, target, is_loaded):
    """The model, compiled, or saved and loaded again."""
    source, example = case.source()
    model = tvm_sparse.compile(source, example, target=TARGETS[target], progress=False)
    if is_loaded:
        with tempfile.TemporaryDirectory() as folder:
            model = tvm_sparse.load(tvm_sparse.save(model, Path(folder) / "model"))
    return model


def answer(function, arrays):
    """What `function` gives, or the error it raises."""
    try:
        return function(arrays)
    # ONNX Runtime and torch raise errors of many kinds.
    except Exception as error:
        return error


def judged(case, model, arrays):
    """``right``, ``refused``, ``not compared``, or what is wrong."""

    def call(given):
        found = model(*(tvm.runtime.tensor(array, model.device) for array in given))
        return [each.numpy() for each in ([found] if model.signature.single else found)]

    found = answer(call, arrays)
    if isinstance(found, Exception) and not isinstance(found, InputError):
        return f"{type(found).__name__}: {found}"
    if case.reference is None:
        return "refused" if isinstance(found, InputError) else "not compared"
    expected = answer(case.reference, arrays)
    if isinstance(expected, Exception) or isinstance(found, InputError):
        is_same = isinstance(expected, Exception) and isinstance(found, InputError)
        return "refused" if is_same else f"gives {str(found)[:200]!r} where the reference gives {str(expected)[:200]!r}"
    # What is computed of NaN, infinity and numbers that overflow is promised elsewhere.
    if not case.is_of_indices and not all((np.abs(array) < LARGE).all() for array in arrays):
        return "not compared"
    same = all(np.allclose(*pair, rtol=1e-4, atol=1e-4, equal_nan=True) for pair in zip(found, expected, strict=True))
    return "right" if same else f"is wrong for {arrays}"


def main(target, seed, turns, names):
    """Run each model `turns` times, every other one after it was saved and loaded."""
    keep_tensors_apart()
    counts, wrong = Counter(), []
    for number, name in enumerate(names or CASES):
        case, rng = CASES[name](), np.random.default_rng([seed, number])
        # What is running, should it be the last.
        print(name, flush=True)
        try:
            model = compiled(case, target, is_loaded=number % 2 == 1)
        except ModelError as error:
            counts["not imported"] += 1
            print(f"  {error}")
            continue
        for turn in range(turns):
            arrays = [each.draw(rng, hostile=turn > 0) for each in case.inputs]
            found = judged(case, model, arrays)
            if found in ("right", "refused", "not compared"):
                counts[found] += 1
            else:
                wrong.append(f"{name}: {found}")
    print(json.dumps({"counts": counts, "wrong": wrong}))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
