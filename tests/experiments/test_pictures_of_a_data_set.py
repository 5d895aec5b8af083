"""Pictures for figures: those of the data that a run was tested on, upright, with the names of their classes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from mammoth_sbs.experiments import pictures
from mammoth_sbs.models import load_host

import datasets
from datasets.utils import own, sources


class Split(NamedTuple):
    images: np.ndarray  # channels x height x width
    labels: np.ndarray


class Source(NamedTuple):
    train: Split
    test: Split
    classes: list[str]


def a_source(names: list[str]) -> Source:
    images = np.arange(2 * 4 * 3 * 5 * 7).reshape(2, 4, 3, 5, 7)
    return Source(Split(images[0], np.array([1, 1, 0, 0])), Split(images[1], np.array([0, 1, 0, 1])), names)


def test_which_pictures_and_what_they_show(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    load_host()
    monkeypatch.setattr(pictures, "load_host", lambda: asked.append("host"))
    monkeypatch.setattr(sources, "load", lambda *of: asked.append(of) or a_source(["ant", "bee"]))
    monkeypatch.setattr(own, "load_own", lambda *of: asked.append(of) or ("names", a_source([f"a{own.BETWEEN}b", "c"])))
    places, source = np.array([3, 0, 2]), datasets.get_dataset_names()["seq-digits"].SOURCE
    for args, images, names in (({"dataset": "seq-digits"}, a_source([]).test.images, ["bee", "ant", "ant"]),
                                ({"dataset": "seq-digits", "validation": 0.1}, a_source([]).train.images,
                                 ["ant", "bee", "ant"])):
        asked.clear()
        shown, classes = pictures.test_pictures(args, "place", places)
        assert shown.tolist() == images[places].transpose(0, 2, 3, 1).tolist() and classes == names
        assert asked == ["host", (source, "place")]
    asked.clear()
    options = {"data": "zoo", "size": 9, "fit": "pad", "domains": None, "test_share": 0.5, "split_seed": 3}
    assert pictures.test_pictures({"dataset": "seq-folder", **options}, "place", places)[1] == ["c", "a/b", "a/b"]
    assert asked == ["host", (own.Options(**options), "place", print)]  # type: ignore[arg-type]
