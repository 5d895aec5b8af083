"""The pictures of a data set, for figures that show examples."""

from __future__ import annotations

from typing import Any

import numpy as np

from mammoth_sbs.models import load_host


def test_pictures(args: dict[str, Any], base_path: str, places: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Some of the examples that a run was tested on, by their places in the data set: height x width x channels, and
    the names of their classes."""
    load_host()
    import datasets
    from datasets.utils.sources import load

    source = load(datasets.get_dataset_names()[args["dataset"]].SOURCE, base_path)
    split = source.train if args.get("validation") else source.test
    images = np.stack([np.moveaxis(split.images[place], 0, -1) for place in places])
    return images, [source.classes[split.labels[place]] for place in places]
