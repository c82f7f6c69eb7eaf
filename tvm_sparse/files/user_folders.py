"""Folders that belong to the user who runs this: where they are, and whether nobody else can put files into them."""

import contextlib
import os
import tempfile
from pathlib import Path

from tvm_sparse.errors import UsageError
from tvm_sparse.files.ownership import make_private

# Environment variable: where tvm-sparse keeps what it can make again.
HOME = "TVM_SPARSE_HOME"


def cache_folder() -> Path:
    """$TVM_SPARSE_HOME, else $XDG_CACHE_HOME/tvm-sparse, else ~/.cache/tvm-sparse; it need not exist.

    Relative paths in these variables are ignored, as the XDG base directory specification asks.

    Of a user without a home it is a folder among temporary files. UsageError where somebody else could put files, or
    links to files, there.
    """
    home, cache = (Path(os.environ.get(name, "")) for name in (HOME, "XDG_CACHE_HOME"))
    if home.is_absolute():
        return home
    if cache.is_absolute():
        return cache / "tvm-sparse"
    with contextlib.suppress(RuntimeError):
        user = Path.home()
        if user.is_absolute():
            return user / ".cache" / "tvm-sparse"
    own = Path(tempfile.gettempdir(), f"tvm-sparse-{os.getuid()}")
    if not make_private(own):
        hint = "remove it, or set TVM_SPARSE_HOME to a folder of your own"
        raise UsageError(str(own), "the folder of a user without a home is not this user's alone", hint=hint)
    return own
