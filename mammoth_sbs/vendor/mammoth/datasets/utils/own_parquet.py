"""A user's own pictures in parquet files, as on the Hugging Face Hub."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mammoth_sbs.errors import UserError

from datasets.utils.collection import TESTS, TRAINS, Collection, Options, numbered
from datasets.utils.formats import BLOCK, blame


def parquet_files(top: Path) -> list[Path]:
    """In the folder, or in the one that the Hub calls data."""
    return sorted(top.glob("*.parquet")) or sorted((top / "data").glob("*.parquet"))


def nested_parquet(top: Path) -> list[Path]:
    """Further down, as the Hub has them too: train/0000.parquet, default/train/0000.parquet, plain_text/train-*."""
    for pattern in ("[!.]*/*.parquet", "[!.]*/[!.]*/*.parquet"):
        files = sorted(top.glob(pattern))
        sets = sorted({parts[0] for path in files for parts in [path.relative_to(top).parts]
                       if len(parts) > 2 or not split_of(path.parent / "-")})
        if len(sets) > 1:
            raise UserError(f"{top}: holds {len(sets)} data sets, {', '.join(sets)}; name one of them, as --data "
                            f"{top / sets[0]}")
        if files:
            return files
    return []


def split_of(path: Path) -> str:
    """The split that a file's name begins with, or that its folder is called."""
    for name in (path.stem.lower(), path.parent.name.lower()):
        match = re.match(rf"({'|'.join(sorted((*TRAINS, *TESTS), key=len, reverse=True))})(?![a-z])", name)
        if match:
            return "train" if match[1] in TRAINS else match[1]
    return ""


def chosen(files: list[Path]) -> list[tuple[Path, bool]]:
    """The files that are used, and whether they are for testing: a test split wins over validation, and what is
    neither (unsupervised-*) is left out; if no name says anything, all are."""
    splits: dict[str, list[Path]] = {}
    for path in files:
        splits.setdefault(split_of(path), []).append(path)
    if "train" not in splits and len(splits) > 1:
        raise UserError(f"{files[0].parent}: holds {', '.join(path.name for path, *_ in splits.values())}, and none is "
                        "for training; call it train-*.parquet, or give one file as --data")
    use = ["train", *[name for name in TESTS if name in splits][:1]] if "train" in splits else [*splits]
    found = [(path, len(use) > 1 and name != "train") for name in use for path in splits[name]]
    shards = Counter((str(path.parent), *match.groups()) for path, _ in found
                     for match in [re.fullmatch(r"(.*)-\d+-of-(\d+)", path.stem)] if match)
    for (folder, name, total), count in shards.items():
        if count != int(total):
            raise UserError(f"{folder}: holds {count} of {int(total)} files {name}-*-of-{total}.parquet; add what is "
                            "missing")
    return found


def from_parquet(parts: list[tuple[Path, bool]], options: Options) -> Collection:
    """Parquet files as on the Hugging Face Hub: pictures as bytes, labels as numbers or texts."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    labels: list[Any] = []
    domains: list[str] = []
    counts: list[int] = []
    tested: list[bool] = []
    known: list[str] = []
    files, images = [path for path, _ in parts], []
    for path, for_testing in parts:
        with blame(path), pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            images.append(column(schema.names, ("image", "img", "picture", "jpg", "png")))
            label = column(schema.names, ("label", "fine_label", "labels", "class", "target", "cls"))
            known = known or label_names(schema, label)
            columns = [label, *([options.domains] if options.domains else [])]
            if options.domains and options.domains not in schema.names:
                raise ValueError(f"has no column {options.domains} (--domains), only {', '.join(schema.names)}")
            table = file.read(columns=columns)
            for i, name in enumerate(columns):
                if pa.types.is_dictionary(table[name].type):  # categories of pandas
                    table = table.set_column(i, name, table[name].cast(table[name].type.value_type))
                blank = [value is None or value == "" for value in table[name].to_pylist()]
                if any(blank):
                    row = blank.index(True)
                    raise UserError(f"{path}: row {row}: {name} is blank; fill it in, or take the row out")
                if not (pa.types.is_integer(table[name].type) or pa.types.is_boolean(table[name].type)
                        or pa.types.is_string(table[name].type)
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
            tested.append(for_testing)
    if not labels:
        raise UserError(f"{files[0]}: has no rows; put a good copy there, or move it away")
    bounds = np.cumsum([0, *counts])

    def read(rows: np.ndarray) -> Iterator[tuple[str, bytes | str | np.ndarray]]:
        for path, image, first, end in zip(files, images, bounds, bounds[1:], strict=False):
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

    used = [name for name in known if name in set(labels)] if set(labels) <= set(known) else []
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
