"""Build a Dockerfile where docker does not run: its steps, one after the other, in a folder that is its root.

As root, with debootstrap: ``python containers/bare_root.py containers/c/Dockerfile out /tmp/image`` leaves the image in
``/tmp/image`` and prints how large it is; ``chroot /tmp/image /main ...`` runs it, with /proc mounted there. ``--with
/etc/pip.conf`` lends a file of this machine to the steps. What it lacks of docker: users, layers, and instructions that
`STEPS` does not list.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

# What Debian's slim images leave out.
NOT_SLIM = ("doc", "info", "lintian", "linda", "locale", "man", "groff")
MIRROR = "http://deb.debian.org/debian"


class Build(NamedTuple):
    """Where a build reads and writes: the context, a folder of bases, files to lend, roots of stages by name."""

    context: Path
    bases: Path
    lent: list[Path]
    stages: dict[str, Path]
    environment: dict[str, str]

    @property
    def root(self) -> Path:
        """Of the stage that is being built."""
        return [*self.stages.values()][-1]


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Each instruction of a Dockerfile, and what follows it."""
    lines = re.sub(r"\\\n", "", re.sub(r"(?m)^#.*\n", "", text)).splitlines()
    for line in filter(str.strip, lines):
        name, _, rest = line.strip().partition(" ")
        yield name, rest.strip()


def begin(build: Build, words: str) -> None:
    """FROM IMAGE [AS NAME]."""
    image, *name = words.split(" AS ")
    root = build.bases / f"stage{len(build.stages)}"
    shutil.rmtree(root, ignore_errors=True)
    if image == "scratch":
        root.mkdir(parents=True)
    else:
        subprocess.run(["cp", "-a", _debian(build, image), root], check=True)
    build.stages[name[0] if name else str(len(build.stages))] = root


def _debian(build: Build, image: str) -> Path:
    suite = re.fullmatch(r"debian:(\w+)-slim", image)
    if suite is None:
        raise SystemExit(f"{image}: only debian:SUITE-slim and scratch are made here")
    base = build.bases / suite[1]
    if not base.exists():
        made = build.bases / "unfinished"
        shutil.rmtree(made, ignore_errors=True)
        subprocess.run(["debootstrap", "--variant=minbase", suite[1], made, MIRROR], check=True)
        for folder in (*(f"usr/share/{name}" for name in NOT_SLIM), "var/cache/apt", "var/lib/apt/lists", "var/log"):
            shutil.rmtree(made / folder, ignore_errors=True)
            (made / folder).mkdir(parents=True)
        made.rename(base)
    return base


def run(build: Build, words: str) -> None:
    """RUN COMMAND, in the root, with this machine's names of hosts and the lent files, which go again."""
    lent = {path: build.root / path.relative_to("/") for path in (Path("/etc/resolv.conf"), *build.lent)}
    new = [inside for inside in lent.values() if not inside.exists()]
    for path, inside in lent.items():
        inside.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, inside)
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", **build.environment}
    try:
        subprocess.run(["chroot", build.root, "sh", "-ec", words], env=environment, check=True)
    finally:
        for inside in new:
            inside.unlink()


def copy(build: Build, words: str) -> None:
    """COPY [--from=STAGE] FROM... TO."""
    *sources, target = shlex.split(words)
    base = build.context
    if sources[0].startswith("--from="):
        base = build.stages[sources.pop(0).partition("=")[2]]
    into = build.root / target.lstrip("/")
    for source in sources:
        path = base / source.lstrip("/")
        if path.is_dir():
            shutil.copytree(path, into, symlinks=True, dirs_exist_ok=True)
        else:
            into.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, into)


def define(build: Build, words: str) -> None:
    """ENV NAME=VALUE, and ARG NAME=VALUE where the build was given no other."""
    for each in shlex.split(words):
        name, _, value = each.partition("=")
        build.environment.setdefault(name, value)


def nothing(_build: Build, _words: str) -> None:
    """What concerns running, not building."""


STEPS: dict[str, Callable[[Build, str], None]] = {
    "FROM": begin,
    "RUN": run,
    "COPY": copy,
    "ARG": define,
    "ENV": define,
    "WORKDIR": nothing,
    "ENTRYPOINT": nothing,
}


def main() -> None:
    """Build, and print the bytes of the files of the image."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dockerfile", type=Path)
    parser.add_argument("context", type=Path)
    parser.add_argument("image", type=Path, help="a folder that does not exist")
    parser.add_argument("--bases", type=Path, default=Path("/var/tmp/bare-roots"), help="where roots are kept")
    parser.add_argument("--with", dest="lent", type=Path, action="append", default=[], help="a file to lend")
    parser.add_argument("--build-arg", action="append", default=[], help="NAME=VALUE")
    arguments = parser.parse_args()
    given = dict(each.split("=", 1) for each in arguments.build_arg)
    build = Build(arguments.context, arguments.bases, arguments.lent, {}, given)
    for name, words in instructions(arguments.dockerfile.read_text()):
        STEPS[name](build, words)
    build.root.rename(arguments.image)
    files = {(found.st_dev, found.st_ino): found.st_size for found in map(os.lstat, arguments.image.rglob("*"))}
    print(json.dumps({"image": str(arguments.image), "mb": round(sum(files.values()) / 1e6, 1)}))


if __name__ == "__main__":
    main()
