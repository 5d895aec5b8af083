"""A user's own pictures: a folder tree, Hugging Face parquet files, or an .npz of arrays; by class, and by domain."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from mammoth_sbs.errors import UserError, reason

from datasets.utils.collection import TESTS, TRAINS, Collection, Options, numbered
from datasets.utils.formats import PICTURES, Found, Shape, Source, Spec, _decode, blame, opened, picture_array
from datasets.utils.own_npz import from_npz
from datasets.utils.own_parquet import chosen, from_parquet, nested_parquet, parquet_files
from datasets.utils.sources import cached

SUFFIXES = (*PICTURES, ".webp", ".gif", ".tif", ".tiff", ".pgm", ".ppm")
AS_IT_IS, OTHERWISE = 128, 64  # sides: pictures of one size up to this stay, others become squares of that
BETWEEN = "\x1f"  # of a domain and a class, in one name
ORIENTATION, TURNED = 0x0112, (5, 6, 7, 8)  # of EXIF
GREY = ("1", "L", "LA", "I", "F")
READ = 2  # part of every cache key: raise it when the same files are read otherwise
SPEC = Spec("own", "", (3, 0, 0))


# ---- what there is


def place_of(data: str, base: str) -> Path:
    """`--data` as it is, or below the folder of the data sets."""
    for path in (Path(data).expanduser(), Path(base).expanduser() / data):
        if path.exists():
            return path.resolve()
    raise UserError(f"--data {data}: there is no such file or folder, here or below --base_path; give one of pictures")


def collect(options: Options, base: str) -> Collection:
    """The pictures of a file or folder; broken ones are found when they are read."""
    top = place_of(options.data, base)
    with blame(top, "check that it can be read"):
        if top.is_file() and top.suffix not in (".npz", ".parquet"):
            raise UserError(f"--data {options.data}: is neither a folder nor an .npz or .parquet file")
        inside = [top] if top.is_file() else sorted(top.glob("*.npz")) or parquet_files(top)
        tree = None if inside else from_tree(top, options)
        if tree:
            return tree
        inside = inside or nested_parquet(top)
        if not inside:
            raise UserError(f"{top}: no pictures; it should hold a folder of them for each class, <class>/*.png, or "
                            "train/<class>/*.png and test/<class>/*.png"
                            f"{', with <domain>/ above' * bool(options.domains)}")
        if inside[0].suffix == ".npz":
            if len(inside) > 1:
                raise UserError(f"{top}: holds {len(inside)} .npz files; name one of them, as --data {inside[0]}")
            return from_npz(inside[0], options)
        parts = [(top, False)] if top.is_file() else chosen(inside)
        it, others = from_parquet(parts, options), sorted({*inside} - {path for path, _ in parts})
        it.notes += [f"left out: {', '.join(str(path.relative_to(top)) for path in others)}"] if others else []
        return it


def from_tree(top: Path, options: Options) -> Collection | None:
    """train/<class>/* beside test/<class>/*, or <class>/* alone; with domains a folder for each, above the classes."""
    folders = {name.lower(): path for name, path in subfolders(str(top))}
    train = next((name for name in TRAINS if name in folders), "")
    test = next((name for name in TESTS if name in folders), "")
    split = bool(train and test)
    paths: list[str] = []
    names: list[tuple[str, str]] = []
    tested: list[bool] = []
    others: list[str] = []
    empty: list[str] = []
    for part in (train, test) if split else ("",):
        here = folders.get(part, str(top))
        for above, place in subfolders(here) if options.domains == "folder" else [("", here)]:
            for name, folder in subfolders(place):
                files = sorted(os.path.join(where, file) for where, _, inside in os.walk(folder) for file in inside
                               if file[0] != ".")
                found = [file for file in files if file.lower().endswith(SUFFIXES)]
                others += [os.path.basename(file) for file in files if not file.lower().endswith(SUFFIXES)]
                empty += [] if found else [os.path.relpath(folder, top)]
                paths += found
                names += [(above, name)] * len(found)
                tested += [part == test and split] * len(found)
    if not paths:
        return None
    if options.domains not in (None, "folder"):
        raise UserError(f"--domains {options.domains}: {top} is a folder tree, where domains are folders above the "
                        "classes, <domain>/<class>/*; give --domains folder")
    if train and not test and subfolders(folders[train]):
        raise UserError(f"{folders[train]}: holds folders, so it is no class, and there is no test/ or val/ beside it; "
                        f"add one, or give --data {folders[train]}, of which a share is for testing")
    labels, classes = numbered([name for _, name in names])
    domain, domains = numbered([name for name, _ in names]) if options.domains else (None, [])
    notes = [f"{len(others)} file{'s are no pictures' if len(others) > 1 else ' is no picture'}: "
             f"{', '.join(others[:3])}{', ...' * (len(others) > 3)}"] if others else []
    notes += [f"class {name} has none" for name in empty]
    return Collection("a folder tree", paths, labels, classes, lambda rows: ((paths[i], paths[i]) for i in rows),
                      np.array(tested) if split else None, domain, domains, notes)


def subfolders(folder: str) -> list[tuple[str, str]]:
    return sorted((entry.name, entry.path) for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != ".")


# ---- what is made of it


def split(it: Collection, options: Options) -> np.ndarray:
    """Which pictures are for testing: those that are given as such, or a share of every class, drawn by a seed."""
    groups = it.groups
    test = it.test
    if test is None:
        test = np.zeros(len(it), bool)
        generator = np.random.RandomState(options.split_seed)
        for group in np.unique(groups):
            rows = np.flatnonzero(groups == group)
            count = min(max(int(np.ceil(options.test_share * len(rows) - 1e-9)), 1), len(rows) - 1)
            test[generator.permutation(rows)[:count]] = True
    for here, there in ((~test, "training"), (test, "test")):
        missing = np.setdiff1d(groups, groups[here])
        if len(missing):
            rows = np.flatnonzero(groups == missing[0])
            raise UserError(f"--data {options.data}: {it.title(int(missing[0]))} has {len(rows)} picture"
                            f"{'s' * (len(rows) != 1)}, {next(it.read(rows[:1]))[0]}, and none for {there}; add some, "
                            "or take the class out")
    if len(it.classes) < 2:
        raise UserError(f"--data {options.data}: holds one class, {it.classes[0]}; at least 2 are needed")
    return test


@dataclass
class Survey:
    """What the pictures are like: those of each size, whether one is in colour, and which cannot be opened."""

    sizes: dict[tuple[int, int], int] = field(default_factory=dict)  # width, height: how many
    colour: bool = False
    broken: list[str] = field(default_factory=list)

    def shape(self, size: int | None) -> Shape:
        """What they become."""
        channels = 3 if self.colour else 1
        if size is None and len(self.sizes) == 1 and max(next(iter(self.sizes))) <= AS_IT_IS:
            width, height = next(iter(self.sizes))
            return channels, height, width
        return channels, size or OTHERWISE, size or OTHERWISE

    def fitting(self, shape: Shape, fit: str) -> str:
        """What happens to them, in words."""
        smallest, largest = min(self.sizes, key=lambda s: s[0] * s[1]), max(self.sizes, key=lambda s: s[0] * s[1])
        text = f"{smallest[0]} x {smallest[1]}" + f" to {largest[0]} x {largest[1]}" * (smallest != largest)
        if set(self.sizes) == {(shape[2], shape[1])}:
            return f"{text}, used as they are"
        how = "the middle cut out of them" if fit == "crop" else "stretched"
        return f"{text}, resized to {shape[2]} x {shape[1]}, {how} where the sides differ"


def survey(it: Collection, whole: bool = False) -> Survey:
    """Look at every picture's header, or decode all of it: then what is broken is listed and does not end it."""
    found = Survey()
    for title, data in it.read(np.arange(len(it))):
        try:
            with opened(data) as picture:
                size, grey = upright(picture), picture.mode.startswith(GREY)
            if whole:
                picture_array(data, (3, 8, 8), "stretch")
        except Exception as e:
            if not whole:
                raise UserError(f"{title}: {reason(e)}; replace this picture") from e
            found.broken.append(f"{title}: {reason(e)}")
            continue
        found.sizes[size] = found.sizes.get(size, 0) + 1
        found.colour |= not grey
    return found


def upright(picture: Image.Image) -> tuple[int, int]:
    """The sides of a picture as it is seen: a camera's turn by 90 degrees is in its header alone."""
    width, height = picture.size
    turned = picture.format != "TIFF" and Image.Image.getexif(picture).get(ORIENTATION, 1) in TURNED
    return (height, width) if turned else (width, height)  # of a TIFF the size is that already


def load_own(options: Options, base: str, say: Callable[[str], object]) -> tuple[Collection, Source]:
    """The pictures as arrays, by the cache. With domains, a class of the source is one of one domain."""
    it = collect(options, base)
    test, groups, seen = split(it, options), it.groups, Survey()
    names = it.classes if it.domain is None else [f"{d}{BETWEEN}{c}" for d in it.domains for c in it.classes]

    def look() -> tuple[Shape, str]:
        nonlocal seen
        seen = survey(it)
        found = seen.shape(options.size)
        return found, f"{len(it)} pictures of {seen.fitting(found, options.fit)}"

    def read(rows: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        items = ((title, data, int(groups[i])) for i, (title, data) in zip(rows, it.read(rows), strict=True))
        yield from _decode(items, seen.shape(options.size), options.fit)

    found = Found(it.files, read(np.flatnonzero(~test)), read(np.flatnonzero(test)), names)
    more = [READ, options.size, options.fit, options.domains, options.test_share, options.split_seed]
    return it, cached(SPEC, found, more, look, lambda note: say(f"--data {options.data}: {note}"))
