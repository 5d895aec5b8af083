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
    from datasets.utils.own import BETWEEN, Options, load_own
    from datasets.utils.sources import load

    if args["dataset"] == "seq-folder":
        usual = vars(Options(""))  # a record leaves out flags that are unset
        source = load_own(Options(**{name: args.get(name, usual[name]) for name in usual}), base_path, print)[1]
        source = source._replace(classes=[name.replace(BETWEEN, "/") for name in source.classes])
    else:
        source = load(datasets.get_dataset_names()[args["dataset"]].SOURCE, base_path)
    split = source.train if args.get("validation") else source.test
    images = np.stack([np.moveaxis(split.images[place], 0, -1) for place in places])
    return images, [source.classes[split.labels[place]] for place in places]
