"""Files that a run learns from, told apart by what is in them: a run is another one when they change."""

from __future__ import annotations

import hashlib
from argparse import Namespace
from pathlib import Path

from mammoth_sbs.errors import UserError

from datasets.utils.own import place_of

KNOWN_BY_SIZE = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"}  # there are many of them


def code_of(place: Path) -> str:
    """Twelve characters that change with a file's content; with the names and sizes of a folder's pictures."""
    content = hashlib.sha256()
    files = sorted(place.rglob("*")) if place.is_dir() else [place]
    for file in files:
        inside = file.relative_to(place).parts
        if any(part.startswith(".") for part in inside) or not file.is_file():
            continue
        content.update(f"{'/'.join(inside)}\0{file.stat().st_size}\0".encode(errors="surrogateescape"))
        if file.suffix.lower() not in KNOWN_BY_SIZE:
            with file.open("rb") as opened:
                while block := opened.read(1 << 20):
                    content.update(block)
    return content.hexdigest()[:12]


def name_content(args: Namespace) -> None:
    """`data_code` and `class_order_code`, if the run has such files; who reads them says what is wrong with them."""
    try:
        if getattr(args, "data", None):
            args.data_code = code_of(place_of(args.data, args.base_path))
        if getattr(args, "class_order", None):
            args.class_order_code = code_of(Path(args.class_order))
    except (OSError, UserError):
        pass
