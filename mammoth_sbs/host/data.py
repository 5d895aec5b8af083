"""Data sets as the files that torchvision and Mammoth look for, and who accepts what lies in a folder.

The check sums in torchvision are of the original archives, which no other file with the same pictures can have. An
exported folder has digests of its own beside the files; with `MAMMOTH_ROOT` these are accepted instead.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import shlex
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from mammoth_sbs.errors import UserError
from mammoth_sbs.few import per_class

if TYPE_CHECKING:
    import numpy as np

MANIFEST = "mammoth-sbs.json"  # in an exported folder
PLACES = {"cifar10": "CIFAR10/cifar-10-batches-py", "cifar100": "CIFAR100/cifar-100-python",
          "tinyimg": "TINYIMG/processed"}
PARTS = 20  # files of each kind that Mammoth's Tiny ImageNet has; it reads them as one array, so they are equally long
Files = Iterator[tuple[str, Callable[[Any], object]]]  # name, and what writes it into an open file


# ---- writing

def export(name: str, base: str, to: Path, train_per_class: int | None = None,
           test_per_class: int | None = None) -> Path:
    """Write a data set that the embedded host finds below `base` to its place below `to`: all of it, or the same few
    images of every class that `--train_per_class` takes. Returns the folder."""
    from datasets.utils.sources import load

    folder = to / PLACES[name]
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"--to {to}: {folder} is not empty; move it away, or give another folder")
    source = load(name, base)
    splits = []
    for (images, labels), count in ((source.train, train_per_class), (source.test, test_per_class)):
        rows = per_class(labels, count, 0) if count else None
        splits.append((images, labels) if rows is None else (images[rows], labels[rows]))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent, prefix=".partial-") as beside:
            made = Path(beside, "made")
            made.mkdir()
            digests = {}
            for file, write in FORMATS[name](splits, source.classes):
                with (made / file).open("wb") as f:
                    write(f)
                digests[file] = sha256(made / file)
            manifest = {"name": name, "classes": source.classes, "train": len(splits[0][1]), "test": len(splits[1][1]),
                        "sha256": digests}
            (made / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
            if folder.exists():
                folder.rmdir()
            made.rename(folder)
    except OSError as e:
        raise UserError(f"--to {to}: cannot be written: {e.strerror}; give another folder") from None
    return folder


def cifar_file(images: np.ndarray, labels: np.ndarray, key: str) -> Callable[[Any], object]:
    """One of CIFAR's "python version" files: rows of 3072 bytes, channel by channel."""
    import numpy as np

    return lambda f: f.write(portable({"data": np.array(images).reshape(-1, 3072), key: labels.tolist()}))


def portable(value: Any) -> bytes:
    """A pickle that NumPy 1 reads too: NumPy 2 has moved a module, and writes its new name once, before the data."""
    return pickle.dumps(value, protocol=3).replace(b"numpy._core.multiarray\n", b"numpy.core.multiarray\n", 1)


def cifar10_files(splits: Any, classes: list[str]) -> Files:
    (images, labels), (test_images, test_labels) = splits
    bounds = [len(labels) * i // 5 for i in range(6)]
    for i in range(5):
        part = slice(bounds[i], bounds[i + 1])
        yield f"data_batch_{i + 1}", cifar_file(images[part], labels[part], "labels")
    yield "test_batch", cifar_file(test_images, test_labels, "labels")
    yield "batches.meta", lambda f: f.write(portable({"label_names": classes}))


def cifar100_files(splits: Any, classes: list[str]) -> Files:
    for file, (images, labels) in zip(("train", "test"), splits, strict=True):
        yield file, cifar_file(images, labels, "fine_labels")
    yield "meta", lambda f: f.write(portable({"fine_label_names": classes}))


def tinyimg_files(splits: Any, classes: list[str]) -> Files:
    """Mammoth's own: images as numbers in [0, 1] that become bytes again by `uint8(255 * x)`, which rounds down."""
    import numpy as np

    level = np.arange(256, dtype=np.float32) / 255
    level = np.where(np.uint8(255 * level) < np.arange(256), np.nextafter(level, np.float32(2)), level)
    for split, (images, labels) in zip(("train", "val"), splits, strict=True):
        if len(labels) % PARTS:
            raise UserError(f"tinyimg: Mammoth reads {PARTS} files of equal length, and the {len(labels)} {split} "
                            f"images cannot be cut so; choose a number per class that makes a multiple of {PARTS}")
        for i, (x, y) in enumerate(zip(np.split(images, PARTS), np.split(labels, PARTS), strict=True), 1):
            yield f"x_{split}_{i:02}.npy", partial(np.save, arr=level[x.transpose(0, 2, 3, 1)])
            yield f"y_{split}_{i:02}.npy", partial(np.save, arr=y)


FORMATS: dict[str, Callable[[Any, list[str]], Files]] = {
    "cifar10": cifar10_files, "cifar100": cifar100_files, "tinyimg": tinyimg_files}


# ---- accepting

def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@cache
def _digest(file: Path, size: int, modified: int) -> str:
    return sha256(file)


def manifest_of(folder: Path) -> dict[str, Any] | None:
    """What an export left beside its files, if it did."""
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("sha256"), dict) else None


def is_exported(file: Path) -> bool:
    """Whether a file is as an export left it."""
    manifest = manifest_of(file.parent)
    if manifest is None or file.name not in manifest["sha256"] or not file.is_file():
        return False
    stat = file.stat()
    return _digest(file, stat.st_size, stat.st_mtime_ns) == manifest["sha256"][file.name]


def accept_exported() -> None:
    """Let torchvision accept exported files beside the original ones."""
    from torchvision.datasets import cifar

    original = cifar.check_integrity
    if not getattr(original, "knows_exports", False):
        def check(fpath: str, md5: str | None = None) -> bool:
            return bool(original(fpath, md5)) or is_exported(Path(fpath))

        check.knows_exports = True  # type: ignore[attr-defined]
        vars(cifar)["check_integrity"] = check


def mammoth_accepts(name: str, base: Path) -> str:
    """Whether Mammoth takes what lies at its place of a data set, and if so in which ways of running it."""
    folder = base / PLACES[name]
    if not folder.is_dir():
        return "no"
    manifest = manifest_of(folder)
    changed = [file for file in manifest["sha256"] if not is_exported(folder / file)] if manifest else []
    if changed:
        return f"no ({changed[0]} is not as it was exported: export again)"
    if name == "tinyimg":  # Mammoth looks at the names alone
        kinds = [f"{x}_{split}_{i:02}.npy" for split in ("train", "val") for x in "xy" for i in range(1, PARTS + 1)]
        missing = [file for file in kinds if not (folder / file).is_file()]
        some = manifest is not None and len(manifest["classes"]) < 200
        return f"no ({missing[0]} is missing)" if missing else f"yes{', with MAMMOTH_ROOT (not all classes)' * some}"
    if manifest:
        return "yes, with MAMMOTH_ROOT (exported, so torchvision's check sums are not right)"
    from mammoth_sbs.packages import import_torchvision

    cls = getattr(import_torchvision().datasets, name.upper())
    good = cls._check_integrity(type("At", (), {"root": str(folder.parent), "base_folder": folder.name,
                                                "train_list": cls.train_list, "test_list": cls.test_list})())
    return "yes" if good else "no (not the original files: see mammoth-sbs data export)"


# ---- a user's own


def look(options: Any, base: str, n_tasks: int | None = None, class_order: str | None = None,
         base_path: str | None = None) -> Iterator[str]:
    """What `--dataset seq-folder` would find, every picture decoded: a line each for what a user should know.

    The flags for the run that it names are those that were given, `base_path` too."""
    import numpy as np

    from datasets.seq_folder import ONE_CLASS, usual_tasks
    from datasets.utils.own import collect, place_of, split, survey
    from datasets.utils.tasks import class_order_file

    it = collect(options, base)
    seen = survey(it, whole=True)
    given = "with a test split" if it.test is not None else \
        f"without a test split: {100 * options.test_share:g} % of each class, drawn by seed {options.split_seed}"
    yield f"{place_of(options.data, base)}: {it.kind}, {given}"
    yield from (f"  {note}" for note in it.notes)
    for line in seen.broken:
        yield f"  broken: {line}"
    if not seen.sizes:
        raise UserError(f"--data {options.data}: none of its {len(it)} pictures can be read")
    shape = seen.shape(options.size)
    yield f"  {len(it)} pictures, {seen.fitting(shape, options.fit)}; {'colour' if seen.colour else 'grey'}"
    test = split(it, options)
    classes, groups = len(it.classes), max(len(it.domains), 1)
    counts = [np.bincount(it.groups[part], minlength=classes * groups) for part in (~test, test)]
    head = "class" if it.domain is None else "domain/class"
    width = max(len(head), *(len(it.title(i)) for i in range(classes * groups)))
    yield f"  {head:{width}}  training  test"
    for i in range(classes * groups):
        yield f"  {it.title(i):{width}}  {counts[0][i]:8}  {counts[1][i]:4}" + "  not there" * (not counts[0][i])
    flags = "".join(f" --{name} {shlex.quote(str(value))}" for name, value, usual in (
        ("size", options.size, None), ("fit", options.fit, "crop"), ("domains", options.domains, None),
        ("test_share", options.test_share, 0.2), ("split_seed", options.split_seed, 0),
        ("n_tasks", n_tasks if it.domain is None else None, None), ("class_order", class_order, None),
        ("base_path", base_path, None)) if value != usual)
    order = np.argsort(class_order_file(class_order, it.classes, classes)) if class_order else range(classes)
    names = [it.classes[i] for i in order]
    if it.domain is not None:
        yield f"  {len(it.domains)} tasks, a domain each, of the same {classes} classes: {', '.join(it.domains)}"
    else:
        tasks = n_tasks or usual_tasks(classes)
        if classes % tasks:
            fits = [str(n) for n in range(1, classes + 1) if classes % n == 0]
            raise UserError(f"--n_tasks {tasks} does not divide the {classes} classes; use one of {', '.join(fits)}")
        each = classes // tasks
        yield f"  {tasks} task{'s' * (tasks > 1)}:"
        for i in range(tasks):
            yield f"    {i + 1}: {', '.join(names[i * each : (i + 1) * each])}"
        if each == 1:
            yield f"  warning: {ONE_CLASS}"
    if seen.broken:
        count = len(seen.broken)
        raise UserError(f"--data {options.data}: {count} broken picture{'s' * (count > 1)}, see above; a run would "
                        "stop at the first: replace them, or take them out")
    yield f"  run: mammoth-sbs run --model er_sbs --dataset seq-folder --data {shlex.quote(options.data)}{flags}"


def listing(base: Path) -> Iterator[tuple[str, str]]:
    """Every data set of the embedded host, what is there of it, and who accepts that."""
    from datasets.utils.formats import find
    from datasets.utils.sources import SPECS

    yield "seq-digits", "comes with scikit-learn"
    for name, spec in SPECS.items():
        try:
            found = find(spec, base)
            state = f"found, {Path(found.files[0]).parent}; embedded host: yes" if found else "not found: " + (
                "downloaded when it is first used" if spec.means else "put it there: see README")
        except UserError as e:
            state = f"damaged: {e}; embedded host: no"
            found = None
        if name in PLACES and (found or (base / PLACES[name]).is_dir()):
            state += f"; Mammoth: {mammoth_accepts(name, base)}"
        yield f"seq-{name}", state
