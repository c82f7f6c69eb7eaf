"""What the loader does for a library, by what it reads: linked by this machine's compiler, and damaged."""

import random
import struct
import subprocess
from contextlib import suppress

import pytest

from tvm_sparse.exporter.dynamic_section import Needs

ERRORS = (KeyError, ValueError, IndexError, struct.error)
# A library that calls one function through a table and one by an address in its data, and has one of its own.
CODE = """
int system(const char *), puts(const char *);
int (*kept)(const char *) = puts;
int own(void) { return system("") + kept(""); }
int calls_own(void) { return own(); }
"""


@pytest.fixture(scope="module")
def linked(tmp_path_factory):
    """Links `CODE` with flags; returns the library."""
    folder = tmp_path_factory.mktemp("libraries")
    (folder / "code.c").write_text(CODE)

    def linked(name, *flags):
        command = ["gcc", "-shared", "-fPIC", "-O1", folder / "code.c", "-o", folder / name, f"-L{folder}", *flags]
        subprocess.run(command, check=True)
        return (folder / name).read_bytes()

    linked("libmine.so")
    return linked


def test_functions_and_libraries(linked):
    needs = Needs.of(linked("plain.so", "-Wl,--no-as-needed", "-lm"))
    assert {"system", "puts"} <= set(needs.functions) and "own" not in needs.functions
    assert set(needs.libraries) == {"libc.so.6", "libm.so.6"}
    assert needs.paths == () and not needs.problem


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["-Wl,--no-as-needed", "-lmine"], "loads libmine.so"),
        (["-Wl,--enable-new-dtags,-rpath,/tmp"], "loads RUNPATH /tmp"),
        (["-Wl,--disable-new-dtags,-rpath,/tmp"], "loads RPATH /tmp"),
        (["-Wl,--audit,a.so"], "loads AUDIT a.so"),
        (["-Wl,-f,a.so"], "loads AUXILIARY a.so"),
        (["-Wl,-F,a.so"], "loads FILTER a.so"),
    ],
)
def test_what_nobody_vouches_for(linked, flags, problem):
    assert Needs.of(linked("other.so", *flags)).problem == problem


def test_sections_do_not_count(linked):
    """The loader does not read them: what they hide is found all the same."""
    library = bytearray(linked("hidden.so", "-Wl,-rpath,/tmp"))
    library[40:48], library[60:62] = bytes(8), bytes(2)
    needs = Needs.of(bytes(library))
    assert "system" in needs.functions and needs.problem == "loads RUNPATH /tmp"


def test_damage_ends_in_an_error_that_callers_know(linked):
    library, draw = linked("damaged.so"), random.Random(0)
    for _ in range(500):
        at = draw.randrange(6, 0x400)
        damaged = library[:at] + draw.choice([b"\0", b"\xff", b"\x7f"]) * draw.choice([1, 8]) + library[at + 1 :]
        with suppress(*ERRORS):
            Needs.of(damaged)
    (end,) = struct.unpack_from("<Q", library, 40)
    for cut in range(0, end // 2, 500):
        with pytest.raises(ERRORS):
            Needs.of(library[:cut])
