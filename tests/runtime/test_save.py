"""`save` replaces artifacts of its own alone, and whatever happens to it, there is a whole one and nothing else."""

import itertools
import json
import os
import random
import signal
import sys
import threading
import time

import pytest
import torch
import zoo
from killed import is_killed_at
from limits import with_tmpfs

from tvm_sparse.compiler import build_model
from tvm_sparse.errors import ArtifactError
from tvm_sparse.files.staging import PREFIX
from tvm_sparse.runtime import artifact
from tvm_sparse.runtime.artifacts import manifest
from tvm_sparse.runtime.artifacts.manifest import digest


@pytest.fixture(scope="module")
def models():
    """Two, of different libraries."""
    sources = [zoo.TORCH[name] for name in ("two_consumers", "plain")]
    return [build_model.compile(module, torch.zeros(shapes[0])) for module, shapes in sources]


def whole(place):
    """The decisions of the artifact at `place`, all of whose files are as they were saved."""
    content = manifest.read(place)
    manifest.check_libraries(place, content)
    return content["variants"][0]["decisions"]


def names(folder):
    return {path.name for path in folder.iterdir()}


def others(place):
    """What is in or beside the artifact at `place`, if there is one, and is not of it."""
    if not place.exists():
        return names(place.parent)
    return (names(place.parent) - {place.name}) | (names(place) - {manifest.NAME, *manifest.read(place)["files"]})


WEB_APP = {"name": "my web app", "start_url": "/"}
FOREIGN = {
    "a web app's": json.dumps(WEB_APP),
    "with our words in it": json.dumps({**WEB_APP, "schema": 3, "versions": {}, "files": {}, "digest": ""}),
    "listing other files": json.dumps(
        {"schema": 3, "versions": {"tvm_sparse": "1"}, "files": {"index.html": ""}, "digest": ""}
    ),
    "no JSON": "schema: 3",
    "empty": "",
}


@pytest.mark.parametrize("text", FOREIGN.values(), ids=FOREIGN)
def test_a_manifest_of_something_else_is_left_alone(models, tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    (tmp_path / "index.html").write_text("hi")
    with pytest.raises(ArtifactError, match=r"its manifest.json is not one of an artifact; choose a directory that"):
        artifact.save(models[0], tmp_path)
    assert (tmp_path / "manifest.json").read_text() == text and names(tmp_path) == {"manifest.json", "index.html"}


def test_links_are_left_alone(models, tmp_path):
    """To an artifact, to nothing, and a manifest that is one."""
    place = artifact.save(models[0], tmp_path / "net")
    for name, target in (("link", place), ("dangling", tmp_path / "nothing")):
        (tmp_path / name).symlink_to(target)
        with pytest.raises(ArtifactError, match="is a link; give the directory that it leads to, or remove the link"):
            artifact.save(models[1], tmp_path / name)
    (place / manifest.NAME).rename(tmp_path / "moved")
    (place / manifest.NAME).symlink_to(tmp_path / "moved")
    with pytest.raises(ArtifactError, match="not one of an artifact"):
        artifact.save(models[1], place)


@pytest.mark.parametrize("change", [{"schema": 1}, {"schema": 99}, {"versions": {"tvm_sparse": "0"}}, {"system": 3}])
def test_artifacts_of_other_versions_and_damaged_ones_are_replaced(models, tmp_path, change):
    """As their messages tell a user to do."""
    place = artifact.save(models[0], tmp_path / "net")
    content = {**manifest.read(place), **change}
    (place / manifest.NAME).write_text(json.dumps({**content, "digest": digest(content)}))
    artifact.save(models[1], place)
    assert whole(place) == models[1].report()
    assert not others(place)


def test_nobody_else_may_write_what_is_saved(models, tmp_path):
    """Whatever the umask says, or it would not be loaded."""
    mask = os.umask(0)
    try:
        place = artifact.save(models[0], tmp_path / "net")
    finally:
        os.umask(mask)
    assert {path.stat().st_mode & 0o022 for path in (place, *place.iterdir())} == {0}
    artifact.load(place)


def test_an_empty_folder_is_filled(models, tmp_path):
    """Also a mount, which nothing can be renamed to."""
    (tmp_path / "net").mkdir(mode=0o750)
    artifact.save(models[0], tmp_path / "net")
    assert (tmp_path / "net").stat().st_mode & 0o777 == 0o750
    assert not others(tmp_path / "net")


@pytest.mark.parametrize("is_there", [False, True], ids=["new", "replaced"])
@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.conformance)])
def test_a_kill_at_any_step_leaves_a_whole_artifact(models, tmp_path, stride, is_there):
    place, (old, new), left = tmp_path / "net", models, 0
    for step in itertools.count(4, stride):
        if is_there:
            artifact.save(old, place)
        is_killed = is_killed_at(step, lambda: artifact.save(new, place))
        if is_there or place.exists():
            assert whole(place) in ([old.report(), new.report()] if is_there else [new.report()])
        left += bool(others(place))
        artifact.save(new, place)
        assert whole(place) == new.report()
        assert not others(place)
        if not is_killed:
            break
        if not is_there:
            for path in place.iterdir():
                path.unlink()
            place.rmdir()
    assert step > 20 and left * stride > 5, "the kills hit nothing"


def saving(models, place, rounds):
    """Start a process in which two threads save both models by turns."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        failures = []

        def work(model):
            try:
                for _ in range(rounds):
                    artifact.save(model, place)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(model,)) for model in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        code = len(failures)
        print(*failures, sep="\n", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def read_while_saved(models, place, rounds):
    """How often each model was loaded while two processes of two threads saved both."""
    children, found = [saving(models, place, rounds) for _ in range(2)], [0, 0]
    reports = [model.report() for model in models]
    while children:
        for child in list(children):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                children.remove(child)
                assert status == 0
        if place.exists():
            found[reports.index(artifact.load(place).report())] += 1
    assert not others(place)
    return found


def test_threads_and_processes_save_while_others_load(models, tmp_path):
    assert sum(read_while_saved(models, tmp_path / "net", 15)) > 3


@pytest.mark.conformance
def test_many_threads_and_processes_save_while_others_load(models, tmp_path):
    assert min(read_while_saved(models, tmp_path / "net", 500)) > 20


@pytest.mark.parametrize("kills", [8, pytest.param(100, marks=pytest.mark.conformance)])
def test_kills_at_random_moments_tear_nothing(models, tmp_path, kills):
    """And leave nothing after the next `save`."""
    place, moments = tmp_path / "net", random.Random(0)
    reports = [model.report() for model in models]
    artifact.save(models[0], place)
    started_s = time.monotonic()
    artifact.save(models[0], place)
    save_s = time.monotonic() - started_s
    for _ in range(kills):
        child = saving(models, place, 10**9)
        time.sleep(moments.uniform(save_s, 5 * save_s))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert artifact.load(place).report() in reports
        artifact.save(models[0], place)
        assert not others(place)


def test_leftovers_of_others_are_not_removed(models, tmp_path):
    """A folder that is only named like one of ours is the user's."""
    mine = tmp_path / f"{PREFIX}my-models", tmp_path / f"{PREFIX}abcdefgh"
    for folder in mine:
        folder.mkdir()
        (folder / "notes.txt").write_text("the user's own")
    artifact.save(models[0], tmp_path / "net")
    assert names(tmp_path) == {"net", *(folder.name for folder in mine)}


DISKS = {
    "full": ("size=8k", "cannot be written (No space left on device); check the place, its rights and its free space"),
    "without inodes": ("nr_inodes=5", "cannot be written (No space left on device); check the place, its rights"),
    "read-only": ("ro", "cannot be written (Read-only file system); check the place, its rights"),
    "noexec": ("noexec", "cannot be loaded ("),
    "usual": ("rw", "saved and loaded"),
}
SAVE = f"""
DISKS = {list(DISKS)}
import os, shutil, sys, tempfile
from pathlib import Path
from tvm_sparse.errors import TvmSparseError
from tvm_sparse.frontend.optional_imports import without_torch
with without_torch():
    from tvm_sparse.runtime import artifact
    from tvm_sparse.runtime.library_file import LibraryFile
source, *disks = map(Path, sys.argv[1:])
model = artifact.load(source)
model.library = LibraryFile.of(lambda path: shutil.copy(*source.glob("*.so"), path))
for disk in disks:
    try:
        artifact.load(artifact.save(model, disk / "net"))
        print("saved and loaded", end="")
    except TvmSparseError as error:
        print(error, end="")
    print("", sorted(each.name for each in disk.iterdir()))
tempfile.tempdir = str(disks[DISKS.index("noexec")])
for name in ("usual", "noexec"):
    os.environ["TVM_SPARSE_HOME"] = str(disks[DISKS.index(name)] / "home")
    try:
        LibraryFile.of(lambda path: shutil.copy(*source.glob("*.so"), path))
        print("loaded")
    except TvmSparseError as error:
        print(error)
"""


def test_disks_that_are_full_or_forbid_something(models, tmp_path):
    """One sentence each, and nothing left; a library is loaded from where files are executed."""
    source, disks = artifact.save(models[0], tmp_path / "source"), [tmp_path / name for name in DISKS]
    mounts = {disk: options for disk, (options, _) in zip(disks, DISKS.values(), strict=True)}
    *lines, elsewhere, nowhere = with_tmpfs(mounts, SAVE, source, *disks).splitlines()
    for disk, line, (_, message) in zip(disks, lines, DISKS.values(), strict=True):
        assert message in line and line.endswith("['net']" if disk.name in ("noexec", "usual") else "[]"), line
    assert elsewhere == "loaded" and nowhere.startswith("TMPDIR: nothing may be executed in ")
