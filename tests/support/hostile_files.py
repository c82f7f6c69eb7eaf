"""Files that mean harm: what never ends, what claims more than it holds, what unpacks to more than a memory."""

from __future__ import annotations

import io
import lzma
import os
import struct
import zipfile
from pathlib import Path

import numpy as np

DIGITS = "9" * 5000


def fifo(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def holes(path: Path) -> None:
    path.touch()
    os.truncate(path, 200 << 30)


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def folder_of_files(path: Path) -> None:
    path.mkdir()
    (path / "file").write_text("text")


def empty(path: Path) -> None:
    path.touch()


def noise(path: Path) -> None:
    path.write_bytes(np.random.default_rng(0).bytes(100_000))


def closed(path: Path) -> None:
    path.touch()
    path.chmod(0)


STRANGE = (fifo, device, holes, loop, folder_of_files, empty, noise, closed)


def bomb(folder: Path, name: str = "l.jsonl.xz", data: bytes = b"\n") -> None:
    """Kilobytes that unpack to 2 GiB."""
    packer, part = lzma.LZMACompressor(preset=0), data * ((1 << 24) // len(data))
    with (folder / name).open("wb") as file:
        for _ in range(128):
            file.write(packer.compress(part))
        file.write(packer.flush())


def npy(header: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """An .npy file with such a header."""
    text = header.encode() + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H" if version[0] == 1 else "<I", len(text)) + text + data


def npz(name: str, content: bytes) -> bytes:
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return found.getvalue()


PLAIN = "{'descr': '<f4', 'fortran_order': False, 'shape': %s}"
INPUTS = {
    "no bytes each": npy("{'descr': '|V0', 'fortran_order': False, 'shape': (1, 4, 9, 9)}"),
    "many of no bytes": npy("{'descr': '|V0', 'fortran_order': False, 'shape': (1000000000000,)}"),
    "void": npy("{'descr': '|V4', 'fortran_order': False, 'shape': (1,)}", bytes(4)),
    "objects": npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", b"cos\nsystem\n(S'false'\ntR."),
    "text": npy("{'descr': '<U4', 'fortran_order': False, 'shape': (1,)}", bytes(16)),
    "fields": npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", bytes(4)),
    "dates": npy("{'descr': '<M8[s]', 'fortran_order': False, 'shape': (1,)}", bytes(8)),
    "long doubles": npy("{'descr': '<f16', 'fortran_order': False, 'shape': (1,)}", bytes(16)),
    "huge": npy(PLAIN % "(1000000000000,)"),
    "negative": npy(PLAIN % "(-1, 4)"),
    "digits": npy(PLAIN % f"({DIGITS},)"),
    "deep": npy(PLAIN % ("(" * 5000 + ")" * 5000)),
    "long header": npy(PLAIN % "(1,)" + " " * 50_000),
    "longest header": npy(PLAIN % "(1,)" + " " * (1 << 20), version=b"\x02\x00"),
    "no header": b"\x93NUMPY\x01\x00\xff\xff",
    "unknown version": npy(PLAIN % "(1,)", version=b"\x09\x00"),
    "archive of noise": npz("x.npy", bytes(1000)),
    "archive of objects": npz("x.npy", npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", b"x")),
    "bomb": npz("x.npy", bytes(1 << 24)),
}
