"""What a killed writer leaves is removed by the next, what a living one writes or a user keeps is not."""

import os
import threading
from pathlib import Path

import pytest
from killed import leave_staging

from tvm_sparse.files import locks, staging
from tvm_sparse.files.staging import PREFIX, Staging, sweep


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_only_abandoned_ones_are_removed(tmp_path):
    left = leave_staging(tmp_path)
    with Staging(tmp_path) as living:
        (living / "file").write_text("half")
        sweep(tmp_path)
        assert not left.exists() and (living / "file").exists()
    assert not names(tmp_path)


def test_one_that_was_killed_before_it_was_locked_is_removed(tmp_path):
    (tmp_path / f"{PREFIX}abcdefgh").mkdir()
    sweep(tmp_path)
    assert not names(tmp_path)


def test_what_is_a_user_s_is_not_removed(tmp_path):
    """With files and no lock of ours, of another name, a link."""
    kept = [tmp_path / f"{PREFIX}{name}" for name in ("01234567", "longer-than-ours")]
    for folder in kept:
        folder.mkdir()
        (folder / "notes.txt").write_text("the user's own")
    (kept[1] / "lock").touch()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    leave_staging(elsewhere).rename(elsewhere / "content")
    (tmp_path / f"{PREFIX}abcdefgh").symlink_to(elsewhere / "content")
    before = {path: names(path) for path in (tmp_path, *kept, elsewhere / "content")}
    sweep(tmp_path)
    assert before == {path: names(path) for path in before}


def test_a_sweep_of_each_moment_between_making_and_locking(tmp_path, monkeypatch):
    """The writer makes another folder where its first was swept."""
    real, swept = locks.open_locked, []

    def late(path):
        if not swept:
            swept.append(path.parent)
            sweep(tmp_path)
        return real(path)

    monkeypatch.setattr(staging, "open_locked", late)
    with Staging(tmp_path) as folder:
        assert folder.is_dir() and not swept[0].exists() and folder.parent != swept[0]
    assert not names(tmp_path)


def test_a_sweep_makes_no_lock_in_a_folder_that_is_being_removed(tmp_path, monkeypatch):
    """It puts nothing in the way of who removes his own."""
    real = Path.rmdir

    def late(self):
        # A sweep that has seen the lock before it was removed.
        with pytest.raises(FileNotFoundError):
            locks.open_unheld(self / "lock")
        real(self)

    with Staging(tmp_path):
        monkeypatch.setattr(Path, "rmdir", late)
    assert not names(tmp_path)


def test_threads_make_and_sweep_side_by_side(tmp_path):
    failures = []

    def work():
        try:
            for _ in range(100):
                sweep(tmp_path)
                with Staging(tmp_path) as folder:
                    (folder / "file").write_text("text")
                    sweep(tmp_path)
                    assert (folder / "file").read_text() == "text"
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and not names(tmp_path)


def test_file_systems_without_locks_serve_and_are_not_swept(tmp_path, monkeypatch):
    left = leave_staging(tmp_path)

    def without(*_arguments):
        raise OSError(staging._NO_LOCKS[0], "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", without)
    sweep(tmp_path)
    with Staging(tmp_path) as folder:
        (folder / "file").write_text("text")
    assert names(tmp_path) == [left.name]


def test_nothing_is_left_where_there_is_no_room(tmp_path, monkeypatch):
    def full(self, *_arguments, **_options):
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(OSError, match="No space left"):
        Staging(tmp_path)
    assert not names(tmp_path)


def test_places_that_cannot_be_swept_are_passed_by(tmp_path):
    sweep(tmp_path / "missing")
    (tmp_path / "file").touch()
    sweep(tmp_path / "file")


def test_a_lock_is_of_the_file_that_is_there(tmp_path):
    """Not of one that was removed or replaced while it was waited for."""
    path, found = tmp_path / "lock", []
    held = locks.open_locked(path)
    with pytest.raises(BlockingIOError):
        locks.open_unheld(path)
    waiting = threading.Thread(target=lambda: found.append(locks.open_locked(path)))
    waiting.start()
    path.unlink()
    path.touch()
    held.close()
    waiting.join()
    with found[0] as file:
        assert os.path.samestat(os.fstat(file.fileno()), path.stat())
