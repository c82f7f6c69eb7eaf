"""Memory of this machine and of processes, read where Linux keeps it: cheap enough to ask ten times a second."""

import os
from pathlib import Path

# Of a control group (a container), version 2 and 1.
_GROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def total_bytes() -> int:
    """Memory that this process and its children may use together: the machine's, or its container's where less."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in map(Path, _GROUP_LIMITS):
        text = path.read_text().strip() if path.exists() else ""
        if text.isdecimal():
            limits.append(int(text))
    return min(limits)


def used_bytes(pid: int) -> int:
    """Resident memory of a process and all its descendants; 0 for one that has ended.

    Pages that they share count once for each.
    """
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        children = [
            int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in _text(task / "children").split()
        ]
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(map(used_bytes, children))


def _text(path: Path) -> str:
    """The content of a file in /proc; empty where its process has ended."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
