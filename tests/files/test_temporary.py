"""Where temporary files go when the usual folder does not serve."""

import tempfile

import pytest

from tvm_sparse.errors import BuildError
from tvm_sparse.files import temporary
from tvm_sparse.files.temporary import TemporaryFolder
from tvm_sparse.files.user_folders import HOME


@pytest.fixture
def usual(tmp_path, monkeypatch):
    """The folder for temporary files; the cache is in ``home`` beside it."""
    (tmp_path / "usual").mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "usual"))
    monkeypatch.setenv(HOME, str(tmp_path / "home"))
    return tmp_path / "usual"


def test_the_usual_folder_serves(usual):
    with TemporaryFolder() as folder:
        assert folder.is_relative_to(usual) and folder.is_dir()
    assert not list(usual.iterdir()) and not (usual.parent / "home").exists()


def test_what_others_could_change_is_not_used(usual):
    """Unless there is nothing else."""
    usual.chmod(0o777)
    with TemporaryFolder() as folder:
        assert folder.is_relative_to(usual.parent / "home" / "temporary")
    (usual.parent / "home" / "temporary").chmod(0o777)
    with TemporaryFolder() as folder:
        assert folder.is_relative_to(usual)


NO_PLACE = "TMPDIR: nothing may be executed in .*usual, the folder for temporary files; set it to a folder on a"


def test_where_nothing_executes_another_folder_is_used(usual, monkeypatch):
    monkeypatch.setattr(temporary, "_executes", lambda folder: folder != usual)
    with TemporaryFolder() as folder:
        assert folder.is_relative_to(usual.parent / "home" / "temporary")
    monkeypatch.setattr(temporary, "_executes", lambda folder: False)
    with pytest.raises(BuildError, match=NO_PLACE):
        TemporaryFolder()


def test_without_a_place_it_is_one_sentence(usual, monkeypatch):
    usual.rmdir()
    with pytest.raises(BuildError, match=r"no temporary folder can be made \(No such file or directory\)"):
        TemporaryFolder()
