"""Whatever a model file holds, one sentence and exit code 3 come of it: no traceback, no crash, no endless work."""

import json
import subprocess
import sys

import malformed
import pytest

# Files that are damaged at random, in the default run.
FEW = 4
NAMED = [*(f"{name}.onnx" for name in malformed.ONNX), *(f"{name}.pt2" for name in malformed.PT2)]


def outcomes_of(folder, fuzzed):
    """What the command line makes of each file, so many damaged at random among them, by its name."""
    command = [sys.executable, malformed.__file__, str(fuzzed)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    return outcomes_of(tmp_path_factory.mktemp("malformed"), FEW)


@pytest.fixture(scope="module")
def sentences():
    return {name: sentence for name, (_, sentence) in malformed.files().items()}


@pytest.mark.parametrize("name", NAMED)
def test_each_is_one_sentence(name, outcomes, sentences):
    found = outcomes[name]
    if sentences[name] == "":
        assert found["code"] in (0, 3)
        return
    assert found["code"] == 3, found["err"]
    message = found["err"].splitlines()[-1]
    assert message.startswith("tvm-sparse: ") and sentences[name] in message
    assert "Traceback" not in found["err"] and found["out"] == ""
    assert len(message) < 700


def test_random_damage_never_ends_the_process(outcomes):
    assert_no_crash(outcomes, FEW)


@pytest.mark.exhaustive
def test_more_random_damage_never_ends_the_process(tmp_path):
    assert_no_crash(outcomes_of(tmp_path, malformed.FUZZED), malformed.FUZZED)


def assert_no_crash(outcomes, count):
    """Of the `count` files that were damaged at random."""
    fuzzed = {name: found for name, found in outcomes.items() if name.startswith("fuzz")}
    assert len(fuzzed) == count
    wrong = {name: found for name, found in fuzzed.items() if found["code"] not in (0, 3)}
    assert not wrong
    for found in fuzzed.values():
        assert "Traceback" not in found["err"]
        assert found["code"] == 0 or found["err"].splitlines()[-1].startswith("tvm-sparse: ")


def test_names_from_files_do_not_steer_the_terminal(tmp_path, capsys):
    from tvm_sparse.cli import main

    content = malformed.conv(malformed.random_array(4, 3, 3, 3), lambda made: rename(made, "a\nb\x1b[31m"))
    (tmp_path / "m.onnx").write_bytes(content)
    assert main.main(["inspect", str(tmp_path / "m.onnx")]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert r"node a\nb\x1b[31m" in line and line.isprintable()
    (tmp_path / "good.onnx").write_bytes(malformed.conv(change=lambda made: rename(made, "a\x1b[31m")))
    assert main.main(["inspect", str(tmp_path / "good.onnx")]) == 0
    assert "\x1b" not in capsys.readouterr().out


def rename(made, name):
    made.graph.node[0].name = name
