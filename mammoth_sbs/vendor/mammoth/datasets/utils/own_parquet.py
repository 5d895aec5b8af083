"""A user's own pictures in parquet files, as on the Hugging Face Hub."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mammoth_sbs.errors import UserError

from datasets.utils.collection import TESTS, Collection, Options, numbered
from datasets.utils.formats import BLOCK, blame


def parquet_files(top: Path) -> list[Path]:
    """In the folder, or in the one that the Hub calls data."""
    return sorted(top.glob("*.parquet")) or sorted((top / "data").glob("*.parquet"))


def is_test(name: str) -> bool:
    return name.lower().startswith(TESTS)


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
