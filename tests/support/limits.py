"""What a machine may withhold: files of any size, disks with room, file systems that execute."""

import contextlib
import resource
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest


@contextlib.contextmanager
def largest_file(size_bytes: int):
    """No file may become larger meanwhile, as with a quota; Python ignores the signal and gets an error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def with_tmpfs(mounts: Mapping[Path, str], code: str, *arguments: object) -> str:
    """What Python prints for `code` where at each of the paths a tmpfs with these options is mounted, for it alone.

    Skips the test, saying so, where this process may not mount.
    """
    for place in mounts:
        place.mkdir(exist_ok=True)
    each = (f"mount -t tmpfs -o mode=755,{options} none {shlex.quote(str(place))}" for place, options in mounts.items())
    script = " && ".join(each) + ' && exec "$@" || exit 77'
    python = (sys.executable, "-c", code, *map(str, arguments))
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", *python]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip("mounting is not allowed here")
    assert done.returncode == 0, done.stderr
    return done.stdout
