"""Runs many cases in processes of their own, so that none can crash or hang the others.

    python tests/support/without_torch.py tests/support/conformance.py NAMES RESULTS

runs the cases that NAMES names, one each line, and appends their outcomes to RESULTS, one JSON line each; `outcomes`
starts such processes.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import without_torch
from made_cases import made_cases, merged
from more_cases import more_cases
from node_tests import Case, Outcome, as_networks_have_it, onnx_cases, operators_of, run_case, run_form

TIME_LIMIT_S = 120
# Cases in one model.
GROUP = 16
# Instead of names: one node test of each of some operators, which stand in modules of onnx of that name: those in the
# table of operators, and others.
SAMPLED = "sampled"
KNOWN = (
    *("abs", "atan", "clip", "dynamicquantizelinear", "gatherelements", "hardsigmoid"),
    *("less", "mul", "reducel2", "reshape", "sin", "sum"),
)
OTHERS = ("adagrad", "cosh", "maxunpool", "rotaryembedding")


def outcomes(names: Sequence[str], folder: Path, processes: int = 1) -> list[Outcome]:
    """What became of cases, which are given by name: node tests, those made from them, and more."""
    runs = []
    for index in range(processes):
        chosen, results = folder / f"names{index}", folder / f"results{index}"
        chosen.write_text("\n".join(names[index::processes]))
        results.touch()
        command = without_torch.command(__file__, chosen, results)
        runs.append((subprocess.Popen(command, stderr=subprocess.DEVNULL), results))
    found = []
    for process, results in runs:
        assert process.wait() == 0, "the process that runs the cases failed"
        found += [Outcome(**json.loads(line)) for line in results.read_text().splitlines()]
    return found


def sample() -> list[Case]:
    """The first test of a single node of each operator of `KNOWN` and `OTHERS`."""
    cases = (each for each in onnx_cases(*KNOWN, *OTHERS) if not each.name.endswith("_expanded"))
    single = [each for each in cases if len(each.model.graph.node) == 1]
    return list({each.model.graph.node[0].op_type: each for each in reversed(single)}.values())


def named_cases(names: Sequence[str]) -> Iterator[Case]:
    """The cases of some names: node tests, those that are made from them, and more; of `SAMPLED` a sample."""
    if names == [SAMPLED]:
        yield from sample()
        return
    known = {case.name: case for case in onnx_cases()}
    if any(name.startswith("more|") for name in names):
        known |= {case.name: case for case in more_cases()}
    for name in names:
        if name.startswith("made|"):
            yield from made_cases(name)
        else:
            yield known[name]


def groups(cases: Iterable[Case]) -> Iterator[list[Case]]:
    """Cases that can be one model: of the same operator sets and floating-point types."""
    found: dict[Any, list[Case]] = defaultdict(list)
    for case in cases:
        if not all(isinstance(each, np.ndarray | np.generic) for each in (*case.inputs, *case.expected)):
            yield [case]
            continue
        sets = sorted((each.domain, each.version) for each in case.model.opset_import)
        types = sorted({str(each.dtype) for each in case.inputs if str(each.dtype).endswith("float16")})
        found[str((sets, types))].append(case)
    for each in found.values():
        yield from (each[at : at + GROUP] for at in range(0, len(each), GROUP))


def run(cases: list[Case]) -> Iterator[Outcome]:
    """The outcomes of cases, as one model if that is right, else of the halves."""
    if len(cases) == 1:
        yield run_apart(cases[0], run_case)
        return
    together = run_apart(merged([as_networks_have_it(case) for case in cases]), run_form)
    if together.kind == "right":
        yield from (replace(together, name=case.name, operators=operators_of(case)) for case in cases)
        return
    half = len(cases) // 2
    yield from (*run(cases[:half]), *run(cases[half:]))


def run_apart(case: Case, way: Callable[[Case], Outcome]) -> Outcome:
    """The outcome of a case in a process of its own; this one must have a single thread, as it forks."""
    start = time.perf_counter()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(way, case, theirs))
    process.start()
    theirs.close()
    try:
        outcome = ours.recv() if ours.poll(TIME_LIMIT_S) else Outcome(case.name, operators_of(case), "hang")
    except EOFError:
        outcome = Outcome(case.name, operators_of(case), "raw", "the process ended")
    process.kill()
    process.join()
    return replace(outcome, seconds=round(time.perf_counter() - start, 2))


def _child(way: Callable[[Case], Outcome], case: Case, connection: Any) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    connection.send(way(case))


def main() -> None:
    """Run what the command line names."""
    # What the cases need is imported once, here.
    import tvm_sparse.compiler.build_model  # noqa: F401

    with Path(sys.argv[2]).open("a") as results:
        for group in groups(named_cases(Path(sys.argv[1]).read_text().splitlines())):
            for outcome in run(group):
                results.write(json.dumps(asdict(outcome)) + "\n")
                results.flush()


if __name__ == "__main__":
    main()
