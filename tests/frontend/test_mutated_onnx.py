"""Models of which something is wrong or strange, at random, compile or are refused in one sentence."""

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import mutated_onnx
import pytest
import without_torch

# Seeds of the sample that every run of the tests takes, and of all.
SAMPLE, ALL, AT_ONCE = 6, 3000, 100


def outcomes(first, last, folder):
    """What became of each model, as `mutated_onnx` says it."""
    done = subprocess.run(
        without_torch.command(mutated_onnx.__file__, first, last),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TVM_SPARSE_HOME": str(folder)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def assert_ours(rows, count):
    assert len(rows) == count
    wrong = [row for row in rows if row["kind"] not in ("compiled", "refused")]
    assert not wrong, json.dumps(wrong[:3], indent=1)
    # Neither all are valid, nor all so wrong that nothing looks at them.
    assert all(any(row["kind"] == kind for row in rows) for kind in ("compiled", "refused"))


def test_a_sample(tmp_path):
    assert_ours(outcomes(0, SAMPLE, tmp_path), SAMPLE)


@pytest.mark.conformance
def test_all(tmp_path):
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        parts = pool.map(lambda first: outcomes(first, first + AT_ONCE, tmp_path), range(0, ALL, AT_ONCE))
        assert_ours([row for part in parts for row in part], ALL)


def test_every_seed_model_compiles(tmp_path):
    """Otherwise what is changed in it is not what it is refused for."""
    found = [mutated_onnx.outcome(made, tmp_path) for made in mutated_onnx.SEEDS]
    assert [each for each in found if each[0] != "compiled"] == []
