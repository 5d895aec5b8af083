"""A user's own pictures in an .npz of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mammoth_sbs.errors import UserError
from mammoth_sbs.values import shown

from datasets.utils.collection import Collection, Options, numbered
from datasets.utils.formats import blame

Named = tuple[str, np.ndarray]  # an array, and what the file calls it
WORDS = {"x": ("images", ("x", "images", "data")), "y": ("labels", ("y", "labels", "targets"))}
OVER = 0.01  # that numbers from 0 to 1 may be beside it, as resizing leaves them


def from_npz(path: Path, options: Options) -> Collection:
    """x_train, y_train, x_test, y_test, or images and labels; one more array of domains, one of the classes' names."""
    with blame(path, "put a good copy there"), np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}

    def pick(names: Sequence[str]) -> Named | None:
        return next(((name, arrays[name]) for name in names if name in arrays), None)

    def part(split: str, letter: str) -> Named | None:
        word, alone = WORDS.get(letter, (letter, (letter,)))
        return pick((f"{letter}_{split}", f"{split}_{letter}", f"{split}_{word}", *(alone if split == "train" else ())))

    names = pick(("classes", "class_names", "names", "label_names"))
    known = texts(*names, path) if names else []
    images: list[Named] = []
    labels: list[str] = []
    domains: list[str] = []
    for split in ("train", "test"):
        x, y = part(split, "x"), part(split, "y")
        if split == "test" and x is None and y is None:
            continue
        if x is None or y is None:
            lone = x or y
            holds = f"{lone[0]} and no {'y' if x else 'x'}_{split}" if lone else ", ".join(arrays) or "nothing"
            raise UserError(f"{path}: holds {holds}; it should hold x_train, y_train, x_test, y_test, or images and "
                            "labels")
        images.append(x)
        labels += words(y, x, path, "label", known)
        if options.domains:
            domain = part(split, options.domains)
            if domain is None:
                raise UserError(f"--domains {options.domains}: {path} has no such array for each picture, only "
                                f"{', '.join(arrays)}")
            domains += words(domain, x, path, "domain")
    pictures = as_pictures(images, path)
    if len({part.shape[1:] for part in pictures}) > 1:
        raise UserError(f"{path}: {images[0][0]} has pictures of {pictures[0].shape[1:]} and {images[1][0]} of "
                        f"{pictures[1].shape[1:]}; they must be the same")
    every, first = np.concatenate(pictures), len(pictures[0])

    def title(i: int) -> str:
        second = int(i >= first)
        return f"{path}: {images[second][0]}: row {i - first * second}"

    numbers, classes = numbered(labels, [name for name in known if name in set(labels)])
    domain_of, domain_names = numbered(domains) if options.domains else (None, [])
    return Collection("an .npz file", [str(path)], numbers, classes, lambda rows: ((title(i), every[i]) for i in rows),
                      np.arange(len(every)) >= first if len(pictures) > 1 else None, domain_of, domain_names)


def texts(name: str, array: np.ndarray, path: Path) -> list[str]:
    """A column as texts, whatever it was kept as."""
    if array.dtype.kind not in "biufSU":
        raise UserError(f"{path}: {name} holds {array.dtype}; give whole numbers or texts")
    with blame(f"{path}: {name}", "write its texts as UTF-8"):
        return [value.decode() if isinstance(value, bytes) else str(value) for value in array.reshape(-1).tolist()]


def words(named: Named, of: Named, path: Path, what: str, known: Sequence[str] = ()) -> list[str]:
    """The label or domain of each picture as a text; numbers mean the `known` names, if there are such."""
    name, array = named
    if array.shape[:1] != of[1].shape[:1]:
        raise UserError(f"{path}: {of[0]} has {of[1].shape[0] if of[1].ndim else 0} images but {name} "
                        f"{array.shape[0] if array.ndim else 0} {what}s; give as many")
    if array.shape[1:] not in ((), (1,)):
        raise UserError(f"{path}: {name} is an array {array.shape}; it should hold a {what} for each picture, (N,); of "
                        "one-hot rows give the argmax")

    def refuse(row: int, why: str) -> UserError:
        return UserError(f"{path}: {name}: row {row}: {why}; correct it, or take the row out")

    array = array.reshape(-1)
    if array.dtype.kind == "f":
        bad = np.flatnonzero(~np.isfinite(array) | (array != np.rint(array)))
        if len(bad):
            raise refuse(int(bad[0]), f"the {what} is no whole number")
        array = array.astype(np.int64)
    found = texts(name, array, path)
    for row, word in enumerate(found):
        if not word.strip():
            raise refuse(row, f"the {what} is blank")
        if known and array.dtype.kind in "biu" and not 0 <= int(array[row]) < len(known):
            raise refuse(row, f"the {what} is {shown(word)}, and there are {len(known)} names of classes")
        if known and array.dtype.kind in "SU" and word not in known:
            raise refuse(row, f"the {what} is {shown(word)}, which is none of the names of classes")
    return [known[int(number)] for number in array] if known and array.dtype.kind in "biu" else found


def as_pictures(parts: Sequence[Named], path: Path) -> list[np.ndarray]:
    """(N, H, W) or (N, H, W, 3) bytes, from any order of axes and from numbers between 0 and 1. What floats mean is
    decided for all arrays at once."""
    laid = [(name, in_order(name, x, path)) for name, x in parts]
    highest = max([float(np.max(x, where=np.isfinite(x), initial=0)) for _, x in laid if x.dtype.kind == "f"],
                  default=0)
    unit = highest < 2  # what is between that and 1 is neither
    return [as_bytes(name, x, path, x.dtype.kind == "b" or (x.dtype.kind == "f" and unit)) for name, x in laid]


def in_order(name: str, x: np.ndarray, path: Path) -> np.ndarray:
    """Colours last, and none of grey ones."""
    if x.ndim == 4 and x.shape[1] in (1, 3) and x.shape[3] not in (1, 3):
        x = x.transpose(0, 2, 3, 1)
    if x.ndim == 4 and x.shape[3] == 1:
        x = x[..., 0]
    if x.ndim not in (3, 4) or (x.ndim == 4 and x.shape[3] != 3) or x.dtype.kind not in "uifb" or not x.size:
        raise UserError(f"{path}: {name} is an array {x.shape} of {x.dtype}; pictures should be (N, H, W), "
                        "(N, H, W, 3) or (N, 3, H, W), of bytes or of numbers from 0 to 1")
    return x


def as_bytes(name: str, x: np.ndarray, path: Path, unit: bool) -> np.ndarray:
    """Numbers from 0 to 1 (`unit`), or from 0 to 255, as bytes; floats may be a little beside that."""
    if x.dtype == np.uint8:
        return x
    low, high = (-OVER, 1 + OVER) if unit else (-0.5, 255.5) if x.dtype.kind == "f" else (0, 255)
    flat = x.reshape(len(x), -1)
    ok = np.isfinite(flat).all(1) & (flat.min(1) >= low) & (flat.max(1) <= high)
    if not ok.all():
        raise UserError(f"{path}: {name}: row {int(np.flatnonzero(~ok)[0])}: its numbers are not from 0 to 1 or from 0 "
                        "to 255")
    return np.rint(x * (255.0 if unit else 1.0)).clip(0, 255).astype(np.uint8)
