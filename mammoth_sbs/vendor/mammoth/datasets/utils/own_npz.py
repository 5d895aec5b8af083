"""A user's own pictures in an .npz of arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mammoth_sbs.errors import UserError

from datasets.utils.collection import Collection, Options, numbered
from datasets.utils.formats import blame


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
