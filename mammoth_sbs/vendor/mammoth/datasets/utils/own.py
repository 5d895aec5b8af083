"""A user's own pictures: a folder tree, Hugging Face parquet files, or an .npz of arrays; by class, and by domain."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mammoth_sbs.errors import UserError, reason

from datasets.utils.formats import BLOCK, PICTURES, Found, Shape, Source, Spec, _decode, blame, opened, picture_array
from datasets.utils.sources import cached

TESTS = ("test", "val", "valid", "validation")
SUFFIXES = (*PICTURES, ".webp", ".gif", ".tif", ".tiff", ".pgm", ".ppm")
AS_IT_IS, OTHERWISE = 128, 64  # sides: pictures of one size up to this stay, others become squares of that
BETWEEN = "\x1f"  # of a domain and a class, in one name
GREY = ("1", "L", "LA", "I", "F")
SPEC = Spec("own", "", (3, 0, 0))


@dataclass(frozen=True)
class Options:
    """What the flags of `seq-folder` say."""

    data: str
    size: int | None = None
    fit: str = "crop"
    domains: str | None = None  # a column, or `folder`
    test_share: float = 0.2
    split_seed: int = 0


@dataclass
class Collection:
    """Pictures in the order in which they were found. `read` gives some of them, each with what to call it."""

    kind: str
    files: Sequence[str]
    labels: np.ndarray
    classes: list[str]
    read: Callable[[np.ndarray], Iterator[tuple[str, bytes | str | np.ndarray]]]
    test: np.ndarray | None = None  # which are for testing, if that is given
    domain: np.ndarray | None = None
    domains: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def groups(self) -> np.ndarray:
        """One number for domain and class."""
        return self.labels if self.domain is None else self.domain * len(self.classes) + self.labels

    def title(self, group: int) -> str:
        domain, label = divmod(group, len(self.classes))
        return self.classes[label] if self.domain is None else f"{self.domains[domain]}/{self.classes[label]}"


def natural(name: str) -> tuple:
    """To sort names: numbers in them by their value."""
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name) if part)


def numbered(names: Sequence[str], known: Sequence[str] = ()) -> tuple[np.ndarray, list[str]]:
    """Names as numbers, and what these mean: in the order of `known`, or sorted."""
    order = list(known) or sorted(set(names), key=natural)
    place = {name: i for i, name in enumerate(order)}
    return np.array([place[name] for name in names], np.int64), order


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
        if not inside:
            return from_tree(top, options)
        if inside[0].suffix == ".npz":
            if len(inside) > 1:
                raise UserError(f"{top}: holds {len(inside)} .npz files; name one of them, as --data {inside[0]}")
            return from_npz(inside[0], options)
        return from_parquet(inside, options)


def parquet_files(top: Path) -> list[Path]:
    """In the folder, or in the one that the Hub calls data."""
    return sorted(top.glob("*.parquet")) or sorted((top / "data").glob("*.parquet"))


def is_test(name: str) -> bool:
    return name.lower().startswith(TESTS)


def from_tree(top: Path, options: Options) -> Collection:
    """train/<class>/* beside test/<class>/*, or <class>/* alone; with domains a folder for each, above the classes."""
    if options.domains not in (None, "folder"):
        raise UserError(f"--domains {options.domains}: {top} is a folder tree, where domains are folders above the "
                        "classes, <domain>/<class>/*; give --domains folder")
    folders = {entry.name: entry.path for entry in os.scandir(top) if entry.is_dir() and entry.name[0] != "."}
    tests = [name for name in TESTS if name in folders]
    split = "train" in folders and bool(tests)
    paths: list[str] = []
    names: list[tuple[str, str]] = []
    tested: list[bool] = []
    for part in (("train", tests[0]) if split else ("",)):
        here = folders[part] if part else str(top)
        for above, place in subfolders(here) if options.domains else [("", here)]:
            for name, folder in subfolders(place):
                found = sorted(os.path.join(where, file) for where, _, files in os.walk(folder) for file in files
                               if file.lower().endswith(SUFFIXES) and file[0] != ".")
                paths += found
                names += [(above, name)] * len(found)
                tested += [part in TESTS] * len(found)
    if not paths:
        raise UserError(f"{top}: no pictures; it should hold a folder of them for each class, <class>/*.png, or "
                        f"train/<class>/*.png and test/<class>/*.png{', with <domain>/ above' * bool(options.domains)}")
    labels, classes = numbered([name for _, name in names])
    domain, domains = numbered([name for name, _ in names]) if options.domains else (None, [])
    return Collection("a folder tree", paths, labels, classes, lambda rows: ((paths[i], paths[i]) for i in rows),
                      np.array(tested) if split else None, domain, domains)


def subfolders(folder: str) -> list[tuple[str, str]]:
    return sorted((entry.name, entry.path) for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != ".")


def from_parquet(files: list[Path], options: Options) -> Collection:
    """Parquet files as on the Hugging Face Hub: pictures as bytes, labels as numbers or texts."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    labels: list[Any] = []
    domains: list[str] = []
    counts: list[int] = []
    tested: list[bool] = []
    known: list[str] = []
    image = ""
    for path in files:
        with blame(path), pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            image = column(schema.names, ("image", "img", "picture", "jpg", "png"))
            label = column(schema.names, ("label", "fine_label", "labels", "class", "target", "cls"))
            known = known or label_names(schema, label)
            columns = [label, *([options.domains] if options.domains else [])]
            if options.domains and options.domains not in schema.names:
                raise ValueError(f"has no column {options.domains} (--domains), only {', '.join(schema.names)}")
            table = file.read(columns=columns)
            for name in columns:
                if table[name].null_count:
                    row = next(i for i, value in enumerate(table[name].to_pylist()) if value is None)
                    raise UserError(f"{path}: row {row}: {name} is blank; fill it in, or take the row out")
                if not (pa.types.is_integer(table[name].type) or pa.types.is_string(table[name].type)
                        or pa.types.is_large_string(table[name].type)):
                    raise ValueError(f"column {name} holds {table[name].type}, not whole numbers or texts")
            found = table[label].to_pylist()
            if known and isinstance(found[0] if found else 0, int):
                bad = next((i for i, value in enumerate(found) if not 0 <= value < len(known)), None)
                if bad is not None:
                    raise UserError(f"{path}: row {bad}: {label} is {found[bad]}, and there are {len(known)} names of "
                                    "classes; correct it, or take the row out")
                found = [known[value] for value in found]
            labels += [str(value) for value in found]
            domains += [str(value) for value in table[options.domains].to_pylist()] if options.domains else []
            counts.append(len(found))
            tested.append(is_test(path.name))
    bounds = np.cumsum([0, *counts])

    def read(rows: np.ndarray) -> Iterator[tuple[str, bytes | str | np.ndarray]]:
        for path, first, end in zip(files, bounds, bounds[1:], strict=False):
            wanted = set((rows[(rows >= first) & (rows < end)] - first).tolist())
            with blame(path), pq.ParquetFile(path) as file:
                row = 0
                for batch in file.iter_batches(BLOCK, columns=[image]) if wanted else ():
                    pictures = batch.column(image)
                    if pa.types.is_struct(pictures.type):
                        pictures = pictures.field("bytes")
                    for data in pictures:
                        if row in wanted:
                            value = data.as_py()
                            if not isinstance(value, bytes):
                                raise UserError(f"{path}: row {row}: {image} holds no picture; take the row out")
                            yield f"{path}: row {row}", value
                        row += 1

    used = [name for name in known if name in set(labels)]
    numbers, classes = numbered(labels, used)
    domain, names = numbered(domains) if options.domains else (None, [])
    test = np.repeat(tested, counts) if any(tested) and not all(tested) else None
    return Collection("parquet files", [str(path) for path in files], numbers, classes, read, test, domain, names)


def column(names: Sequence[str], wanted: Sequence[str]) -> str:
    for name in wanted:
        if name in names:
            return name
    raise ValueError(f"has no column {' or '.join(wanted[:2])}, only {', '.join(names)}")


def label_names(schema: Any, label: str) -> list[str]:
    """The names of classes that the Hub keeps beside the columns."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return [str(name) for name in features[label]["names"]]
    except (KeyError, TypeError, ValueError):
        return []


def from_npz(path: Path, options: Options) -> Collection:
    """x_train, y_train, x_test, y_test, or images and labels; one more array of domains, one of the classes' names."""
    with blame(path, "put a good copy there"), np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}

    def pick(*names: str) -> np.ndarray | None:
        return next((arrays[name] for name in names if name in arrays), None)

    parts: list[list[Any]] = []
    tested: list[bool] = []
    for split in ("train", "test"):
        it = [pick(f"{kind}_{split}", f"{split}_{kind}", f"{split}_{word}") for kind, word in
              (("x", "images"), ("y", "labels"), (options.domains or "", options.domains or ""))]
        if it[0] is not None and it[1] is not None:
            parts.append(it)
            tested.append(split == "test")
    if not parts:
        parts.append([pick("x", "images", "data"), pick("y", "labels", "targets"), pick(options.domains or "")])
        tested.append(False)
    if parts[0][0] is None or parts[0][1] is None:
        raise UserError(f"{path}: holds {', '.join(arrays) or 'nothing'}; it should hold x_train, y_train, x_test, "
                        "y_test, or images and labels")
    if options.domains and any(part[2] is None for part in parts):
        raise UserError(f"--domains {options.domains}: {path} has no such array for each picture, only "
                        f"{', '.join(arrays)}")
    images = [as_pictures(part[0], path) for part in parts]
    for pictures, (_, *others) in zip(images, parts, strict=True):
        for other in others:
            if other is not None and len(other) != len(pictures):
                raise UserError(f"{path}: {len(pictures)} images but {len(other)} labels or domains; give as many")
    if len({picture.shape[1:] for picture in images}) > 1:
        raise UserError(f"{path}: training pictures are {images[0].shape[1:]} and test pictures {images[1].shape[1:]}; "
                        "they must be the same")
    every, counts = np.concatenate(images), [len(part) for part in images]
    raw = np.concatenate([np.asarray(part[1]).reshape(-1) for part in parts])
    if raw.dtype.kind == "f" and not np.array_equal(raw, raw.astype(np.int64)):
        raise UserError(f"{path}: row {int(np.flatnonzero(raw != np.rint(raw))[0])}: the label is no whole number")
    known = pick("classes", "class_names", "names", "label_names")
    words = [str(value) for value in (raw.astype(np.int64) if raw.dtype.kind == "f" else raw).tolist()]
    if known is not None and raw.dtype.kind in "iuf":
        bad = next((i for i, word in enumerate(words) if not 0 <= int(word) < len(known)), None)
        if bad is not None:
            raise UserError(f"{path}: row {bad}: the label is {words[bad]}, and {len(known)} classes have names")
        words = [str(known[int(word)]) for word in words]
    used = [str(name) for name in known if str(name) in set(words)] if known is not None else []
    labels, classes = numbered(words, used)
    domain, domains = numbered([str(value) for part in parts for value in np.asarray(part[2]).reshape(-1).tolist()]) \
        if options.domains else (None, [])
    return Collection("an .npz file", [str(path)], labels, classes,
                      lambda rows: ((f"{path}: row {i}", every[i]) for i in rows),
                      np.repeat(tested, counts) if any(tested) else None, domain, domains)


def as_pictures(x: np.ndarray, path: Path) -> np.ndarray:
    """(N, H, W) or (N, H, W, 3) bytes, from any order of axes and from numbers between 0 and 1."""
    if x.ndim == 4 and x.shape[1] in (1, 3) and x.shape[3] not in (1, 3):
        x = x.transpose(0, 2, 3, 1)
    if x.ndim == 4 and x.shape[3] == 1:
        x = x[..., 0]
    if x.ndim not in (3, 4) or (x.ndim == 4 and x.shape[3] != 3) or x.dtype.kind not in "uifb":
        raise UserError(f"{path}: pictures are an array {x.shape} of {x.dtype}; they should be (N, H, W), (N, H, W, 3) "
                        "or (N, 3, H, W), of bytes or of numbers from 0 to 1")
    if x.dtype == np.uint8:
        return x
    flat = x.reshape(len(x), -1)
    ok = np.isfinite(flat).all(1) & (flat.min(1) >= 0) & (flat.max(1) <= (1 if x.dtype.kind in "fb" else 255))
    if len(x) and x.dtype.kind == "f" and not ok.all() and flat.max() > 1:  # bytes, written as floats
        ok = np.isfinite(flat).all(1) & (flat.min(1) >= 0) & (flat.max(1) <= 255)
        scale = 1.0
    else:
        scale = 255.0 if x.dtype.kind in "fb" else 1.0
    if not ok.all():
        raise UserError(f"{path}: row {int(np.flatnonzero(~ok)[0])}: its numbers are not from 0 to 1 or from 0 to 255")
    return np.rint(x * scale).astype(np.uint8)


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
                size, grey = picture.size, picture.mode.startswith(GREY)
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


def load_own(options: Options, base: str, say: Callable[[str], object]) -> tuple[Collection, Source]:
    """The pictures as arrays, by the cache. With domains, a class of the source is one of one domain."""
    it = collect(options, base)
    test, groups, seen = split(it, options), it.groups, Survey()
    names = it.classes if it.domain is None else [f"{d}{BETWEEN}{c}" for d in it.domains for c in it.classes]

    def shape() -> Shape:
        nonlocal seen
        seen = survey(it)
        found = seen.shape(options.size)
        say(f"--data {options.data}: {len(it)} pictures of {seen.fitting(found, options.fit)}")
        return found

    def read(rows: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        items = ((title, data, int(groups[i])) for i, (title, data) in zip(rows, it.read(rows), strict=True))
        yield from _decode(items, seen.shape(options.size), options.fit)

    found = Found(it.files, read(np.flatnonzero(~test)), read(np.flatnonzero(test)), names)
    more = [options.size, options.fit, options.domains, options.test_share, options.split_seed]
    return it, cached(SPEC, found, more, shape)
