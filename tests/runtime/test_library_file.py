"""Libraries are written where there is room for them: LLVM ends the process where it finds none."""

import errno
from pathlib import Path

import pytest
from limits import largest_file

from tvm_sparse.runtime.library_file import CODE_BYTES, export


class Executable:
    """Writes a library of nothing, and a file on the way."""

    def export_library(self, path, workspace_dir):
        """As TVM does."""
        for name in (Path(path), Path(workspace_dir, "lib0.o")):
            name.touch()


def test_nothing_is_left_but_the_library(tmp_path):
    export(Executable(), tmp_path / "model.so")
    assert [path.name for path in tmp_path.iterdir()] == ["model.so"]


def test_without_room_nothing_is_tried(tmp_path):
    with largest_file(CODE_BYTES + 2000):
        export(Executable(), tmp_path / "model.so", 1000)
        with pytest.raises(OSError, match="File too large") as raised:
            export(Executable(), tmp_path / "other.so", 1001)
    assert raised.value.errno == errno.EFBIG
    assert not (tmp_path / "other.so").exists()
