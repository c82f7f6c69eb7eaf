"""Files of a folder that is here or on a server, which may be down, slow, or send more than was agreed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, BinaryIO

from tvm_sparse.errors import LogError, UsageError, first_line
from tvm_sparse.frontend.optional_imports import require
from tvm_sparse.untrusted.regular_file import read_regular

# To begin to answer, and for a whole file.
CONNECT_S, FILE_S = 10, 120


def is_url(place: str | Path) -> bool:
    """Whether a place is one that fsspec knows, and no path."""
    return "://" in str(place)


def is_folder(name: str | Path) -> bool:
    """Whether it is a URL or the path of a folder, and no file's."""
    return is_url(name) or Path(name).is_dir()


def shown(place: str) -> str:
    """A place as messages have it: without the name and password that a URL may hold."""
    return re.sub("//[^/]*@", "//", place)


def fetch(place: str, name: str, most_bytes: int) -> bytes:
    """The content of a file of a folder.

    LogError where it cannot be read, or is larger than `most_bytes`; UsageError where fsspec, or what it needs for such
    a place, is not installed.
    """
    where = f"{shown(place)}, {name}"
    try:
        if not is_url(place):
            return read_regular(Path(place, name), most_bytes)
        with _opened(place, name) as file:
            data = _read(file, most_bytes)
    except (UsageError, LogError):
        raise
    # Each library behind fsspec has errors of its own, and fsspec says of all that there is no such file.
    except Exception as error:
        cause = shown(first_line(error.__cause__ or error))
        raise LogError(where, f"it cannot be read ({getattr(error, 'strerror', None) or cause})") from None
    if len(data) > most_bytes:
        raise LogError(where, f"it has more than {most_bytes} bytes")
    return data


def _opened(place: str, name: str) -> BinaryIO:
    fsspec = require("fsspec", "remote")
    url, options = f"{place.rstrip('/')}/{name}", dict[str, Any]()
    if place.startswith(("http:", "https:")):
        timeout = require("aiohttp", "remote").ClientTimeout(total=FILE_S, sock_connect=CONNECT_S, sock_read=CONNECT_S)
        options = {"client_kwargs": {"timeout": timeout, "trust_env": True}}
    try:
        files, path = fsspec.core.url_to_fs(url, **options)
    except (ImportError, ValueError) as error:
        problem, allowed = f"no installed package fetches from there ({first_line(error)})", "what fsspec knows"
        raise UsageError(shown(place), problem, allowed=allowed) from None
    # Without blocks a server sends the file once, and need not know its size.
    opened: BinaryIO = files.open(path, "rb", block_size=0)
    return opened


def _read(file: BinaryIO, most_bytes: int) -> bytes:
    """At most one byte more than that, as a stream gives less than it is asked for."""
    data = bytearray()
    while len(data) <= most_bytes and (part := file.read(most_bytes + 1 - len(data))):
        data += part
    return bytes(data)
