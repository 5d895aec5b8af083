"""`mammoth-sbs data DIR`: look at one's own pictures before a run. `mammoth-sbs data list|export`: data sets that are
found, and as the files that torchvision and Mammoth look for."""

from __future__ import annotations

import os
from pathlib import Path

from mammoth_sbs import host
from mammoth_sbs.commands import Parser
from mammoth_sbs.errors import UserError
from mammoth_sbs.host.data import PLACES, export, listing, look, mammoth_accepts
from mammoth_sbs.values import SEED, at_least, number, path, text

DATA = Path("data")  # where data sets are, unless --base_path says otherwise


def parser() -> Parser:
    it = Parser(prog="mammoth-sbs data", description=__doc__)
    actions = it.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=Parser)
    show = actions.add_parser("list", help="what is there, and who accepts it")
    write = actions.add_parser("export", help="write CIFAR-10, CIFAR-100 and Tiny ImageNet as torchvision's and "
                                              "Mammoth's files, from whatever form they are found in")
    own = actions.add_parser("look", help="the same as `mammoth-sbs data DIR`: classes, counts, sizes, broken files "
                                          "and tasks of pictures for --dataset seq-folder; its flags are a run's")
    own.add_argument("data", type=text, metavar="DIR", help="a folder of pictures or parquet files, or an .npz")
    own.add_argument("--size", type=at_least(4, 512), help="side of the squares that pictures become")
    own.add_argument("--fit", choices=["crop", "stretch"], default="crop", help="how they become that")
    own.add_argument("--domains", type=text, metavar="COLUMN", help="tasks are domains: a column, or the word folder")
    own.add_argument("--test_share", type=number(above=0, below=1), default=0.2, help="if there is no test split")
    own.add_argument("--split_seed", type=SEED, default=0, help="that this share is drawn by")
    own.add_argument("--n_tasks", type=at_least(1), help="cut the classes into this many tasks")
    own.add_argument("--class_order", type=text, metavar="FILE", help="a class per line")
    for action in (show, write, own):
        action.add_argument("--base_path", type=path, default=DATA, metavar="DIR",
                            help="where data sets are (default: data)")
    write.add_argument("names", type=text, nargs="*", metavar="NAME",
                       help=f"of {', '.join(PLACES)} (default: those that are there)")
    write.add_argument("--to", type=path, required=True, metavar="DIR", help="the --base_path to be")
    write.add_argument("--train_per_class", type=at_least(1), metavar="N",
                       help="only N training images of each class, those that a run with this flag takes")
    write.add_argument("--test_per_class", type=at_least(1), metavar="N", help="only N test images of each class")
    return it


def main(argv: list[str]) -> None:
    """Look at a folder, list the data sets, or export some."""
    if argv and argv[0] not in ("look", "list", "export") and (not argv[0].startswith("-") or len(argv) > 1):
        argv = ["look", *argv]
    args = parser().parse_args(argv)
    os.environ.pop("MAMMOTH_ROOT", None)  # it is the embedded host that finds data in many forms
    host.activate()
    base = args.base_path.expanduser().resolve()
    if args.action == "look":
        from datasets.utils.own import Options

        options = Options(args.data, args.size, args.fit, args.domains, args.test_share, args.split_seed)
        given = str(args.base_path) if args.base_path != DATA else None
        for line in look(options, str(base), args.n_tasks, args.class_order, given):
            print(line, flush=True)
        return
    if args.action == "list":
        print(f"data sets under {base}")
        for name, state in listing(base):
            print(f"  {name:14} {state}")
        return
    names = [name.replace("_", "-").removeprefix("seq-") for name in args.names]
    for name in names:
        if name not in PLACES:
            raise UserError(f"mammoth-sbs data export {name}: not one of {', '.join(PLACES)}")
    to = args.to.expanduser().resolve()
    for name in names or there(base):
        print(f"{export(name, str(base), to, args.train_per_class, args.test_per_class)}: "
              f"Mammoth: {mammoth_accepts(name, to)}", flush=True)


def there(base: Path) -> list[str]:
    """Those that need no download."""
    found = [name for name, state in listing(base) if state.startswith("found")]
    names = [name for name in PLACES if f"seq-{name}" in found]
    if not names:
        raise UserError(f"--base_path {base}: none of {', '.join(PLACES)} is there; name one to download it, or give "
                        "another folder")
    return names
