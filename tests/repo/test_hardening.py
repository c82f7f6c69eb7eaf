"""Short runs of the experiments of docs/hardening.md, and what they stand on."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest

from tvm_sparse.logs import validate
from tvm_sparse.logs.distill import best
from tvm_sparse.logs.tuning_log import TuningLog

SCRIPTS = Path(__file__).parents[2] / "scripts" / "stress"


def experiment(script, *words):
    """The figures of a script that must end well."""
    command = [sys.executable, SCRIPTS / f"{script}.py", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout[done.stdout.index("{") :])


# In the default run test_tuning_log.py damages logs and has several writers, test_safe_replay.py damages decisions.
@pytest.mark.exhaustive
def test_damaged_logs_lose_nothing():
    cases, decisions = 100, 20
    found = experiment("fuzz_logs", "--cases", cases, "--decisions", decisions, "--writers", 2, "--records", 20)
    assert found["files"]["cases"] == cases
    assert found["files"]["sound_lines"] > 5 * cases and found["files"]["bad_lines"] > cases
    assert [found["files"][name] for name in ("lost", "believed", "bad_lines_not_moved")] == [0, 0, 0]
    assert found["decisions"]["refused"] + found["decisions"]["replayed"] == decisions
    assert found["writers"]["too_many"] == found["writers"]["lost"] == 0


def test_the_experiment_notices_losses(monkeypatch, tmp_path):
    """Without checksums, changed times would be believed: a fuzzer that finds nothing then is no use."""
    import fuzz_logs

    records = fuzz_logs.shared_records()
    monkeypatch.setattr(
        "tvm_sparse.logs.record_codec._check_schema", lambda _where, data, _sealed: data.pop("zlib_crc32", None)
    )
    assert any(fuzz_logs.file_case(str(number), records, tmp_path)["believed"] for number in range(40))


# Ctrl-C in tests/cli/test_commands.py and devices that die in tests/autotune/test_fleet.py are in every run.
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("kills", [1, 3])
def test_a_killed_tuner_ends_like_one_that_nobody_killed(kills):
    found = experiment("kill_tuner", "--kills", kills, "--trials", 2 + kills)
    assert found["kills"] == kills
    assert max(map(int, found["trials_lost_by_a_kill"])) <= 1
    assert found["logs_equal_to_the_unbroken"] == found["logs"]


def test_the_same_log_gives_the_same_kernels():
    """In another process: no seed, address or order of a set decides what is compiled."""
    code = (
        "import json\n"
        "from tvm_sparse.frontend.optional_imports import without_torch\n"
        "with without_torch():\n"
        "    import test_hardening\n"
        "    print(json.dumps(test_hardening.kernels_of_the_demo()))\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    kernels = kernels_of_the_demo()
    assert json.loads(done.stdout.splitlines()[-1]) == kernels
    assert len(kernels) > 5
    assert all(len(kernel) == 64 for kernel in kernels), "a shared record does not fit its schedule any more"


def kernels_of_the_demo():
    """Hashes of the best kernels in the log that the demo ships with."""
    log = TuningLog(Path(str(resources.files("tvm_sparse.tuning_logs"))) / "znver5" / "demo.jsonl.xz")
    foreign = [replace(record, fingerprint={**record.fingerprint, "tvm": "not run"}) for record in best(log.records)]
    return [verdict.kernel for verdict in validate.validate(foreign)]
