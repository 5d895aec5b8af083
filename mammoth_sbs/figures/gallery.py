"""The test images that networks learned quickest and slowest (the paper's Fig. 1), and how many remember each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mammoth_sbs.errors import UserError
from mammoth_sbs.experiments.pictures import test_pictures
from mammoth_sbs.figures.output import drawing, write_csv
from mammoth_sbs.figures.recorded import Memory, Networks, networks
from mammoth_sbs.figures.results import SETTINGS, Run

COLUMNS, LINES = 5, 4  # of pictures, on each side
SIDES = ("quickest", "slowest")
SIDE = 48  # pixels of a picture


def extremes(memory: Memory, count: int) -> tuple[np.ndarray, np.ndarray, float]:
    """The `count` examples learned quickest and as many learned slowest, by the mean over networks, and which share of
    networks at least knew each of them when its task ended: all, if enough examples are known by all."""
    knew, speed = memory.first.mean(0), memory.mean_speed
    count = min(count, len(speed) // 2)
    least = float(np.sort(knew)[-2 * count])
    known = np.flatnonzero(knew >= least)
    order = known[np.argsort(-speed[known], kind="stable")]
    return order[:count], order[::-1][:count], least


def enlarged(image: np.ndarray) -> np.ndarray:
    """Smooth at SIDE pixels: an SVG keeps these, and not the many of a picture drawn at the figure's resolution."""
    from PIL import Image

    flat = np.asarray(image).squeeze()
    flat = flat if flat.dtype == np.uint8 else np.round(255 * flat).astype(np.uint8)
    return np.asarray(Image.fromarray(flat).resize((SIDE, SIDE), Image.Resampling.LANCZOS))


def write(runs: Sequence[Run], out: Path, common: bool = False, metric: str = "final",
          base_path: str = "./data/") -> list[Path]:
    """For Task-IL and Class-IL: the pictures of the one setting that the runs are of, and a row for each."""
    found = networks(runs)
    if len(found) > 1:
        raise UserError(f"gallery: shows networks of one setting, and there are {len(found)}: "
                        f"{'; '.join(it.title for it in found)}; pick one with --where")
    files: list[Path] = []
    for setting, name in SETTINGS.items():
        draw(found[0], setting, name, out / f"gallery_{setting}", base_path, files)
    return files


def draw(it: Networks, setting: str, name: str, stem: Path, base_path: str, files: list[Path]) -> None:
    """Both sides beside each other; under each picture its class and the networks that remember it."""
    memory = it.memory(True, setting)
    *sides, least = extremes(memory, COLUMNS * LINES)
    places = it.records[0]["task1_indices_test"]
    rows: list[dict[str, Any]] = []
    with drawing(stem, 13, 6.2, files, f"{it.title}, {name}: the test images learned quickest and slowest") as figure:
        for part, side, chosen in zip(figure.subfigures(1, 2, wspace=0.04), SIDES, sides, strict=True):
            images, classes = test_pictures(it.runs[0].args, base_path, places[chosen])
            share = 100 * memory.remembered[:, chosen].mean()
            part.suptitle(f"learned {side}: {share:.0f}% remembered", fontsize=11)
            axes = part.subplots(LINES, COLUMNS).ravel()
            for axis, i, image, label in zip(axes, chosen, images, classes, strict=False):
                axis.imshow(enlarged(image), cmap="gray" if image.shape[-1] == 1 else None, interpolation="none")
                count = int(memory.remembered[:, i].sum())
                axis.set_title(f"{label.replace('_', ' ')}\n{count} of {len(it)}", fontsize=8, pad=2,
                               color="black" if count > len(it) / 2 else "#b23a48")
                rows.append({"panel": it.title, "setting": name, "side": side, "place_in_test_set": int(places[i]),
                             "class": label, "mean_speed": float(memory.mean_speed[i]),
                             "networks_that_remember": count, "networks": len(it)})
            for axis in axes:
                axis.set_axis_off()
        knew = "all" if least == 1 else f"at least {100 * least:.0f}%"
        figure.supxlabel(f"{it.title}, {name}: test images of the first task that {knew} of {len(it)} networks knew "
                         "when it ended; the numbers are networks that still know them after the last task", fontsize=8)
    files.append(write_csv(Path(f"{stem}.csv"), rows))
