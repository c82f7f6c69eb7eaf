"""What the site needs beside docs/: pages that lie elsewhere or are notebooks, and links that leave docs/.

MkDocs calls the functions ``on_*``. A link to a file that is no page becomes the name of that file.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
# Name in the site -> file in the repository.
ELSEWHERE = {
    "index.md": ROOT / "README.md",
    # The site has one page at its root, and that is the README of the repository.
    "pages.md": DOCS / "README.md",
    "tutorial.md": DOCS / "tutorial.ipynb",
    "api.md": DOCS / "site" / "api.md",
    "changelog.md": ROOT / "CHANGELOG.md",
    "examples.md": ROOT / "examples" / "README.md",
    "contributing.md": ROOT / "CONTRIBUTING.md",
    "report.md": ROOT / "SECURITY.md",
    "tuning-logs.md": ROOT / "tuning_logs" / "README.md",
}
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:)([^)#\s]+)(#[^)]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of `ELSEWHERE`."""
    # The tests read pages with this module, and have no MkDocs.
    from mkdocs.structure.files import File

    for name, path in ELSEWHERE.items():
        files.append(File.generated(config, name, content=text_of(path)))
    return files


def text_of(path: Path) -> str:
    """A page as Markdown; of a notebook its texts, and its cells of code, each with what it printed."""
    if path.suffix != ".ipynb":
        return path.read_text()
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        printed = "".join(line for each in cell.get("outputs", []) for line in each.get("text", []))
        if printed:
            parts.append(f"```text\n{printed.rstrip()}\n```")
    return "\n\n".join(parts)


def on_page_markdown(text: str, page: Any, config: Any, files: Files) -> str:
    """Links as the site has its pages."""
    name = page.file.src_uri
    source = ELSEWHERE.get(name, DOCS / name)

    def linked(match: re.Match[str]) -> str:
        words, target, anchor = match.groups()
        path = Path(os.path.normpath(source.parent / target))
        inside = next((each for each, found in ELSEWHERE.items() if found == path), None)
        if inside is None and path.is_relative_to(DOCS):
            inside = path.relative_to(DOCS).as_posix()
        if inside is None or files.get_file_from_path(inside) is None:
            shown = f"`{path.relative_to(ROOT)}`"
            return shown if words in (path.name, shown) else f"{words} ({shown})"
        return f"[{words}]({os.path.relpath(inside, Path(name).parent)}{anchor or ''})"

    return LINK.sub(linked, text)
