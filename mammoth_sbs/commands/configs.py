"""`mammoth-sbs configs list|copy`: the sweeps and examples that come with the package."""

from __future__ import annotations

import json
import shutil
import textwrap
from pathlib import Path

from mammoth_sbs.commands import Parser
from mammoth_sbs.errors import UserError
from mammoth_sbs.files import shipped, write_atomically
from mammoth_sbs.parser import suggest
from mammoth_sbs.values import path, text

KINDS = {"configs": (".yaml",), "examples": (".py", ".ipynb")}


def parser() -> Parser:
    it = Parser(prog="mammoth-sbs configs",
                description="The sweeps of the paper, at its scale and at one for two cores, and the examples.\n"
                            "`mammoth-sbs sweep` takes the names as they are listed; copy what you want to change.")
    actions = it.add_subparsers(dest="action", metavar="ACTION", parser_class=Parser)
    actions.add_parser("list", help="what there is; also without ACTION")
    copy = actions.add_parser("copy", help="copy files or folders, or all of it")
    copy.add_argument("names", type=text, nargs="*", metavar="NAME",
                      help="as listed, or a folder of them (default: all)")
    copy.add_argument("--to", type=path, default=Path(), metavar="DIR", help="where they go")
    return it


def files() -> dict[str, Path]:
    """All that there is, by the names that are listed."""
    return {f"{kind}/{file.relative_to(shipped(kind)).as_posix()}": file
            for kind, suffixes in KINDS.items() for file in sorted(shipped(kind).rglob("*")) if file.suffix in suffixes}


def title(file: Path) -> str:
    """The first sentence that a file says about itself."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".ipynb":
        text = "".join(json.loads(text)["cells"][0]["source"])
    first = text.lstrip('#" \n').split("\n\n")[0].split("\n#  ")[0]
    return " ".join(first.replace("\n#", "\n").split('"""')[0].split()).split(". ")[0].rstrip(".")


def main(argv: list[str]) -> None:
    """List them, or copy some."""
    args, known = parser().parse_args(argv), files()
    if args.action != "copy":
        width = max(map(len, known)) + 2
        for name, file in known.items():
            room = shutil.get_terminal_size((200, 24)).columns - width
            print(f"{name:{width}}{textwrap.shorten(title(file), max(20, room), placeholder=' ...')}")
        return
    chosen: dict[str, Path] = {}
    for given in args.names or KINDS:
        found = {name: file for name, file in known.items() if f"{name}/".startswith(f"{given.rstrip('/')}/")}
        if not found:
            raise UserError(f"mammoth-sbs configs copy {given}: no such file or folder{suggest(given, known)}; "
                            "`mammoth-sbs configs` lists them")
        chosen |= found
    changed = [name for name, file in chosen.items()
               if (args.to / name).exists() and (args.to / name).read_bytes() != file.read_bytes()]
    if changed:
        raise UserError(f"{args.to / changed[0]}: there is another file of that name; move it away, or give --to")
    for name, file in chosen.items():
        write_atomically(args.to / name, lambda f, file=file: f.write(file.read_bytes()), "copy")  # type: ignore[misc]
        print(args.to / name)
