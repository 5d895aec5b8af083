"""What mkdocs.yml cannot say: pages that lie outside docs/, links to them, and a menu that follows the files."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
PICTURES = {".png", ".svg"}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """Leave out of the menu what is not there yet; pages that nobody listed come last."""
    there = {file.name for file in Path(config.docs_dir).glob("*.md")} | set(OUTSIDE.values())
    listed: set[str] = set()

    def known(entries: list) -> list:
        kept: list = []
        for entry in entries:
            ((title, value),) = entry.items()
            if isinstance(value, list):
                kept += [{title: inside}] if (inside := known(value)) else []
            elif value in there:
                listed.add(value)
                kept.append(entry)
        return kept

    config.nav = known(config.nav)
    if more := sorted(there - listed):
        config.nav.append({"More": more})
    return config


def on_files(files: Any, config: Any) -> Any:
    """README and its like are pages, and a picture that a page shows is there, wherever it lies."""
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for page in Path(config.docs_dir).glob("*.md"):
        for _, _, target, _ in LINK.findall(page.read_text(encoding="utf-8")):
            place = normpath(f"docs/{target}")
            if not place.startswith("docs/") and PurePosixPath(place).suffix in PICTURES and (ROOT / place).is_file() \
                    and files.get_file_from_path(place) is None:
                files.append(File.generated(config, place, abs_src_path=str(ROOT / place)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links are written for a reader of the repository; here they lead to the same page, or are words alone."""
    folder = "docs" if page.file.src_uri not in OUTSIDE.values() else "."

    def link(found: re.Match) -> str:
        picture, text, target, anchor = found.group(1, 2, 3, 4)
        place = normpath(f"{folder}/{target}")
        inside = OUTSIDE.get(place, place.removeprefix("docs/"))
        if place in OUTSIDE or place.startswith("docs/") or picture:
            return f"{picture}[{text}]({relpath(inside, page.file.src_uri.rpartition('/')[0] or '.')}{anchor or ''})"
        return text if (ROOT / place).exists() else found[0]  # source files are no part of the site

    return LINK.sub(link, markdown)
