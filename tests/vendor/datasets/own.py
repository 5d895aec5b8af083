"""Pictures of a user's own, as the tests of `--dataset seq-folder` make them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mammoth_sbs import train
from tests.vendor.datasets.conftest import png, write

from datasets.utils.own import Options, load_own


def picture(colour: bool, width: int, height: int, level: int) -> np.ndarray:
    """Of one level, so that resizing does not change it; the left half darker."""
    image = np.full((height, width, 3) if colour else (height, width), level, np.uint8)
    image[:, : width // 2] //= 2
    return image.transpose(2, 0, 1) if colour else image


def tree(top: Path, counts: dict[str, int], colour: bool = True, sizes: Sequence[tuple] = ((12, 12),)) -> Path:
    """<class>/*.png with so many pictures each; a class is told by its level."""
    for c, (name, count) in enumerate(counts.items()):
        for i in range(count):
            write(top / name / f"{i}.png", png(picture(colour, *sizes[i % len(sizes)], 40 * c + 30)))
    return top


def load(data: Path, **options: Any) -> Any:
    return load_own(Options(str(data), **options), ".", lambda line: None)


def hub_parquet(path: Path, labels: list, domains: list | None = None, names: list[str] | None = None) -> Path:
    """As `datasets` writes it, with the names of classes in the schema."""
    pictures = [{"bytes": png(picture(True, 10, 10, 20 * i % 250)), "path": None} for i in range(len(labels))]
    table = pa.table({"image": pictures, "label": labels, **({"place": domains} if domains else {})})
    if names:
        info = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return path


@pytest.mark.parametrize("inside", ["", "data/"])
def test_parquet_files(base: Path, inside: str) -> None:
    hub_parquet(base / f"h/{inside}train-00000-of-00001.parquet", [2, 0, 2, 0], names=["owl", "cat", "bat"])
    hub_parquet(base / f"h/{inside}test-00000-of-00001.parquet", [0, 2], names=["owl", "cat", "bat"])
    _, source = load(base / "h")
    assert source.classes == ["owl", "bat"] and source.train.labels.tolist() == [1, 0, 1, 0]
    assert source.train.images[:, 0, 0, 9].tolist() == [0, 20, 40, 60]
    one = hub_parquet(base / "one.parquet", ["b", "a", "b", "a", "a"])
    it, source = load(one)
    assert it.test is None and source.classes == ["a", "b"] and len(source.test.labels) == 2


def run(model: str, data: Path, **flags: Any) -> Any:
    more = {"buffer_size": 24} if model != "sgd" and model != "joint" else {}
    flags = {"backbone": "mnistmlp", "n_epochs": 2, "lr": 0.05, "batch_size": 8, "seed": 0, **more, **flags}
    return train(model, "seq-folder", data=str(data), **flags)
