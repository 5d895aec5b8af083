"""`--frozen 1`: a data set whose images are replaced by the features of a frozen trunk, computed once and kept.

They are in the cache beside the decoded images, half precision, memory-mapped, with a digest per file. What they depend
on is their name: the images, the trunk, its weights, the size. They are of the images as evaluation sees them; for the
rotation task, of the training images turned as well.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tqdm import tqdm

from mammoth_sbs.errors import UserError, reason
from mammoth_sbs.files import partial_folder
from mammoth_sbs.random_state import get_random_state, set_random_state
from mammoth_sbs.watch import is_quiet

from datasets.utils.formats import Images, Source
from datasets.utils.sources import DIGESTS, _digest, _land, _verify, cache_root
from utils.augmentations import Normalize
from utils.conf import get_device

if TYPE_CHECKING:
    from backbone.pretrained import Trunk

FORMAT = 1  # part of every key: raise it when what is stored changes
SPLITS = ("train", "test")
CHUNK = 256  # images per forward pass
HEADER = 1024  # bytes: an .npy file has no longer one


def features_of(source: Source, name: str, args: Namespace) -> Source:
    """The same data set with features for images."""
    train, test = kept(source, name, args)
    return Source(Images(train, source.train.labels), Images(test, source.test.labels), source.classes)


def turned_features(source: Source, name: str, args: Namespace, turns: int) -> np.ndarray:
    """Features of the training images, each after so many quarter turns."""
    return kept(source, name, args, turns)[0]


def kept(source: Source, name: str, args: Namespace, turns: int = 0) -> list[np.ndarray]:
    """Features of both splits, or of the training images turned: from the cache, or computed into it."""
    from backbone.pretrained import build_trunk, normalization, trunk_key  # they import this package

    if not (args.pretrained or args.weights):
        raise UserError("--frozen 1: the features of a network that never learned are of no use; give --pretrained 1, "
                        "or --weights FILE")
    state = get_random_state()  # a trunk is built with random weights first; a run that finds features draws none
    said = [FORMAT, *trunk_key(args), args.image_size, *(digest_of_images(split.images) for split in source[:2])]
    said += [f"turned {turns}"] if turns else []
    splits = SPLITS[:1] if turns else SPLITS
    key = hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]
    folder = cache_root()
    entry = folder / f"features-{name}-{key}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with alone(folder / f"features-{name}-{key}.lock", entry):
            if not intact(entry, splits):
                with partial_folder(folder) as beside:
                    normalize = Normalize(*normalization(args))  # of a grey image it makes three channels
                    title = f"{name}, {args.backbone}{f', turned by {90 * turns} degrees' * bool(turns)}"
                    write(build_trunk(args), normalize, source, beside / "entry", title, splits, turns)
                    _land(beside / "entry", entry)
                _verify(entry, files_of(splits))
        return [np.load(entry / f"{split}.npy", mmap_mode="r") for split in splits]
    except OSError as e:
        raise UserError(f"cannot write the cache in {folder}: {reason(e)}; free some room there, or set "
                        "MAMMOTH_SBS_CACHE to another folder") from e
    except ValueError as e:  # the disk does not keep what is written
        raise UserError(f"{entry}: {reason(e)}; remove it, or set MAMMOTH_SBS_CACHE to another folder") from e
    finally:
        set_random_state(state)


def files_of(splits: Sequence[str]) -> set[str]:
    return {f"{split}.npy" for split in splits}


def digest_of_images(images: np.ndarray) -> str:
    """Of a file of the cache, if they are all of it, it is known already."""
    file = Path(images.filename) if isinstance(images, np.memmap) and images.filename else None
    if file is not None and (file.parent / DIGESTS).exists() and file.stat().st_size - images.nbytes < HEADER:
        return json.loads((file.parent / DIGESTS).read_text(encoding="utf-8"))[file.name]
    return hashlib.sha256(repr(images.shape).encode() + np.ascontiguousarray(images).tobytes()).hexdigest()


@contextmanager
def alone(lock: Path, entry: Path) -> Iterator[None]:
    """One process at a time computes them; who finds them there does not wait."""
    if entry.is_dir():
        yield
        return
    with lock.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    lock.unlink(missing_ok=True)


def intact(entry: Path, splits: Sequence[str]) -> bool:
    """Whether they are there, as they were written; what is damaged is removed."""
    if not entry.is_dir():
        return False
    try:
        _verify(entry, files_of(splits))
        return True
    except (OSError, ValueError) as e:  # by a power cut or a failing disk
        tell(f"note: {entry}: {reason(e)}; computing it again")
        shutil.rmtree(entry, ignore_errors=True)
        return False


def tell(line: str) -> None:
    """On standard error, unless the run is to print nothing."""
    if not is_quiet():
        print(line, file=sys.stderr, flush=True)


@torch.no_grad()
def write(trunk: Trunk, normalize: Normalize, source: Source, entry: Path, title: str, splits: Sequence[str],
          turns: int) -> None:
    """Splits through the trunk, each straight to its file."""
    entry.mkdir()
    device = get_device()
    trunk.to(device).eval()
    parts = {split: getattr(source, split).images for split in splits}
    total = sum(map(len, parts.values()))
    tell(f"computing features, once: {title}, {total} images of {trunk.size} pixels")
    with tqdm(total=total, desc="features", unit=" images", disable=is_quiet() or None, leave=False) as bar:
        for split, images in parts.items():
            shape: tuple[Any, ...] = (len(images), trunk.dim)
            out = np.lib.format.open_memmap(entry / f"{split}.npy", mode="w+", dtype=np.float16, shape=shape)
            for first in range(0, len(images), CHUNK):
                batch = torch.from_numpy(np.rot90(images[first : first + CHUNK], turns, (2, 3)).copy()).to(device)
                found = trunk(normalize(batch))
                if not torch.isfinite(found.half()).all():
                    raise UserError(f"--frozen 1: the trunk's features of {split} images are not finite numbers of "
                                    "half precision; take other weights")
                out[first : first + CHUNK] = found.half().cpu().numpy()
                bar.update(len(batch))
            out.flush()
            del out
    digests = {name: _digest(entry / name) for name in sorted(files_of(splits))}
    (entry / DIGESTS).write_text(json.dumps(digests, indent=1), encoding="utf-8")
