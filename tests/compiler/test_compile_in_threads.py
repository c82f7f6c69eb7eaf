"""Several threads compile at once, while others print, warn and call models; none notices the others."""

import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
import torch
import zoo
from torch import nn

import tvm_sparse
from tvm_sparse.errors import ModelError

X = torch.randn(1, 4, 9, 9, generator=torch.Generator().manual_seed(0))


def compiled(source):
    """A `CompiledModel` that was compared with `source`."""
    example = X if isinstance(source, nn.Module) else None
    return tvm_sparse.compile(source, example, target=zoo.UNOPTIMISED, compare=True)


def pruned(filters):
    model = nn.Sequential(nn.Conv2d(4, filters, 3), nn.ReLU(), nn.Conv2d(filters, 4, 3)).eval()
    model[0].weight.data *= torch.rand_like(model[0].weight) < 0.3
    return model


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Models of torch, one of them twice, and a file, each with its outputs."""
    path = tmp_path_factory.mktemp("models") / "m.onnx"
    onnx.save(zoo.ONNX["block"], path)
    models = [pruned(filters) for filters in (3, 4, 5)]
    with torch.no_grad():
        expected = [model(X).numpy() for model in models]
    return [
        *zip(models, expected, strict=True),
        (models[0], expected[0]),
        (path, zoo.run_onnx(zoo.ONNX["block"], X.numpy())[0]),
    ]


class Bystander(threading.Thread):
    """Does something over and over, until it is stopped."""

    def __init__(self, act):
        super().__init__()
        self._act, self._is_stopped, self.count = act, threading.Event(), 0

    def run(self):
        while not self._is_stopped.wait(0.001):
            self._act(self.count)
            self.count += 1

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._is_stopped.set()
        self.join()


def test_all_models_are_right_and_nobody_else_is_disturbed(sources, capsys):
    calls, streams = compiled(sources[0][0]), {id(sys.stdout), id(sys.stderr)}
    results = []

    def look(count):
        print("still here")
        warnings.warn(f"warning {count}", stacklevel=1)
        streams.update((id(sys.stdout), id(sys.stderr)))

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with (
            Bystander(look) as printing,
            Bystander(lambda _: results.append(calls(X))),
            ThreadPoolExecutor(4) as pool,
        ):
            models = list(pool.map(lambda pair: compiled(pair[0]), sources))
    for model, (_, expected) in zip(models, sources, strict=True):
        assert model.comparison.reference is not None
        assert np.allclose(np.asarray(model(X)), expected, atol=1e-4)
    assert all(np.allclose(result, sources[0][1], atol=1e-4) for result in results) and results
    assert len(streams) == 2 and capsys.readouterr().out == "still here\n" * printing.count
    assert [str(each.message) for each in warned] == [f"warning {count}" for count in range(printing.count)]


def test_one_that_fails_keeps_no_other_from_compiling(sources):
    with ThreadPoolExecutor(2) as pool:
        failing = pool.submit(compiled, nn.Sequential(nn.Conv2d(8, 4, 3)).eval())
        working = pool.submit(compiled, sources[0][0])
    with pytest.raises(ModelError, match=r"torch\.export cannot trace it"):
        failing.result()
    assert np.allclose(working.result()(X), sources[0][1], atol=1e-4)


FORK = """
import os, threading
from tvm_sparse.errors import UsageError
from tvm_sparse.frontend.one_at_a_time import one_at_a_time

alone, begun, end = one_at_a_time(lambda work: work()), threading.Event(), threading.Event()

def in_child(work):
    if os.fork() == 0:
        try:
            os._exit(alone(work))
        except UsageError as error:
            print(error, flush=True)
            os._exit(1)
    return os.waitstatus_to_exitcode(os.wait()[1])

assert in_child(lambda: 7) == 7
assert alone(lambda: in_child(lambda: 8)) == 8
other = threading.Thread(target=alone, args=(lambda: (begun.set(), end.wait()),))
other.start(), begun.wait()
assert in_child(lambda: 9) == 1
end.set(), other.join()
assert in_child(lambda: 10) == 10
"""


def test_a_fork_while_another_thread_compiles_does_not_hang():
    done = subprocess.run([sys.executable, "-c", FORK], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("compile: another thread was compiling when this process was forked; fork before")
