"""`mammoth-sbs demo`, `scripts/run` alone: the same method with three buffers on real digits, in less than a minute."""

from __future__ import annotations

import sys
import time
from collections import Counter
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from mammoth_sbs.commands import Parser
from mammoth_sbs.files import write_atomically
from mammoth_sbs.parser import program
from mammoth_sbs.values import at_least, path

if TYPE_CHECKING:
    from mammoth_sbs import Result
    from mammoth_sbs.core.band import Split
    from mammoth_sbs.core.speed import Learned

ARMS = {"stock": "the method's own buffer", "uniform": "filled when a task ends, any example as likely as another",
        "SBS": "likewise, without the quickest and slowest learned"}
FLAGS: dict[str, Any] = {"buffer_size": 20, "n_epochs": 5}
WIDTH = 50  # characters of the longest bar


def parser() -> Parser:
    it = Parser(prog="mammoth-sbs demo",
                description="Experience replay (ER) learns ten digits in five tasks of two with a buffer of 20 images: "
                            "stock, uniform and SBS.")
    it.add_argument("--seeds", type=at_least(2), default=8, metavar="N", help="runs of each")
    it.add_argument("--out", type=path, default=Path("demo.png"), metavar="FILE.png", help="the picture")
    return it


def main(argv: list[str]) -> None:
    """Train, then show what came out."""
    args = parser().parse_args(argv)
    print(f"ER learns ten digits in five tasks of two, with a replay buffer of {FLAGS['buffer_size']} images, "
          f"{args.seeds} seeds each:", flush=True)
    for arm, text in ARMS.items():
        print(f"  {arm:8} {text}", flush=True)
    runs = learn(args.seeds)
    print(f"\n{table(runs)}\n\n{verdict(runs)}\n")
    learned = max(runs["SBS"][0].sbs, key=lambda task: float(task.speed.std()))
    split = parts(learned)
    print(histogram(learned, split))
    print(f"\n{who(learned, split)}\n")
    try:
        draw(runs, learned, split, args.out)
        print(f"picture: {args.out}")
    except ImportError:
        print("no picture, for want of matplotlib: pip install 'mammoth-sbs[figures]'")
    print(f"next, on CIFAR-10 (a download of 163 MB):\n  {program()} --model derpp_sbs --dataset seq-cifar10 "
          "--backbone tiny-resnet18 --n_epochs 5")


def learn(seeds: int) -> dict[str, list[Result]]:
    """All runs, with a line that moves."""
    import torch

    from mammoth_sbs import Progress, train

    torch.set_num_threads(1)  # networks this small gain nothing from a second thread, and on a busy machine wait for it
    runs: dict[str, list[Result]] = {arm: [] for arm in ARMS}
    begin, done, total, live = time.monotonic(), 0, seeds * len(ARMS), sys.stderr.isatty()

    def show(now: Progress) -> None:
        part = (done + now.fraction) / total
        if live and now.event == "epoch":
            bar = "█" * round(24 * part) + "·" * (24 - round(24 * part))
            print(f"\r  {bar} {arm}, seed {seed}, task {now.task} of {now.tasks}, loss {now.loss:.2f}   ", end="",
                  file=sys.stderr, flush=True)

    for seed in range(seeds):
        for arm in ARMS:
            flags: dict[str, Any] = {"model_config": "best"} if arm == "stock" else \
                {"sampler": "uniform" if arm == "uniform" else "speed"}
            runs[arm].append(train("er" if arm == "stock" else "er_sbs", "seq-digits", seed=seed, progress=show,
                                   **FLAGS, **flags))
            done += 1
        if not live:
            print(f"  {done} of {total} runs, {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    if live:
        print(f"\r  {total} runs in {time.monotonic() - begin:.0f} s" + " " * 60, file=sys.stderr, flush=True)
    return runs


def error(values: list[float]) -> float:
    return stdev(values) / sqrt(len(values)) if len(values) > 1 else float("nan")


def table(runs: dict[str, list[Result]]) -> str:
    """A row per arm."""
    lines = ["all ten digits, after the last task    accuracy, %    forgotten, points"]
    for arm, results in runs.items():
        final = [result.class_il.final for result in results]
        lost = fmean(result.class_il.forgetting for result in results)
        lines.append(f"  {arm:34} {fmean(final):6.1f} ± {error(final):.1f} {lost:15.1f}")
    return "\n".join(lines)


def verdict(runs: dict[str, list[Result]]) -> str:
    """Whether these digits can tell SBS from uniform, by the differences seed by seed."""
    pairs = zip(runs["SBS"], runs["uniform"], strict=True)
    gains = [one.class_il.final - other.class_il.final for one, other in pairs]
    line = f"SBS - uniform, seed by seed: {fmean(gains):+.1f} ± {error(gains):.1f} points. "
    if abs(fmean(gains)) > 2 * error(gains):
        return line + "More than two standard errors: here the choice of what to keep is felt."
    return (line + "Not beyond two standard errors: digits are too easy\nand too few to tell them apart. What this run "
            "does show is how much is forgotten in spite of replay, and what SBS looks at:")


def parts(learned: Learned) -> Split:
    """What was left out of the task and what was not; ties are broken at random, as in the run."""
    import torch

    assert learned.band is not None
    return learned.band.split(learned.speed, torch.Generator().manual_seed(0))


def counts(learned: Learned, split: Split) -> list[tuple[float, int, int]]:
    """Learning speed, examples left out there and examples in the band, from quick to slow."""
    inside, outside = (Counter(learned.speed[part].tolist()) for part in
                       (split.kept, [*split.quick.tolist(), *split.slow.tolist()]))
    return [(speed, outside[speed], inside[speed]) for speed in sorted({*inside, *outside}, reverse=True)]


def digits(learned: Learned) -> str:
    return " and ".join(str(label) for label in learned.labels.unique().tolist())


def histogram(learned: Learned, split: Split) -> str:
    """Drawn in characters, the band shaded."""
    rows = counts(learned, split)
    scale = WIDTH / max(outside + inside for _, outside, inside in rows)
    lines = [f"learning speed of the {len(learned.speed)} digits {digits(learned)} (█ the band, ░ left out)"]
    for speed, outside, inside in rows:
        bar = "█" * round(scale * inside) + "░" * max(round(scale * outside), outside > 0)
        lines.append(f"  {speed:.1f} {bar} {outside + inside}")
    return "\n".join(lines)


def who(learned: Learned, split: Split) -> str:
    """Which digits were left out."""
    def of(part: Any) -> str:
        return ", ".join(f"{n} of digit {label}" for label, n in Counter(learned.labels[part].tolist()).most_common())

    return f"left out as slowest:  {of(split.slow)}\nleft out as quickest: {of(split.quick)}"


def draw(runs: dict[str, list[Result]], learned: Learned, split: Split, file: Path) -> None:
    """Accuracy of the arms; the histogram with the band shaded; the slowest and the quickest digits themselves."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, middle, right = figure.subfigures(1, 3, width_ratios=[1, 1.3, 1.1])  # type: ignore[misc]
    axis = left.subplots()
    for i, results in enumerate(runs.values()):
        final = [result.class_il.final for result in results]
        axis.plot([i] * len(final), final, "o", color=f"C{i}", alpha=0.35, markeredgewidth=0)
        axis.errorbar(i, fmean(final), error(final), fmt="_", color=f"C{i}", markersize=22, capsize=4)
    axis.set_xticks(range(len(ARMS)), list(ARMS))
    axis.set(ylabel="accuracy on all ten digits, %", title=f"{len(runs['SBS'])} seeds, mean and standard error")
    axis.margins(x=0.25)

    axis, rows = middle.subplots(), counts(learned, split)
    speeds, outside, inside = zip(*rows, strict=True)
    axis.bar(speeds, inside, width=0.15, color="C2", label="the band: may be kept")
    axis.bar(speeds, outside, width=0.15, bottom=inside, color="0.8", label="left out")
    assert learned.band is not None
    low, high = learned.band.limits(learned.speed)
    axis.axvspan(low - 0.1, high + 0.1, color="C2", alpha=0.12, lw=0)
    axis.set(xlabel="learning speed", ylabel="examples", title=f"digits {digits(learned)}: learning speed")
    axis.legend(frameon=False)

    images = runs["SBS"][0].model.dataset.source.train.images[learned.indices.numpy()]
    axes = right.subplots(6, 6)
    right.suptitle("slowest learned (above), quickest (below)", fontsize=10)
    for axis, i in zip(axes.ravel(), [*split.slow.flip(0)[:18].tolist(), *split.quick[:18].tolist()], strict=False):
        axis.imshow(images[i, 0], cmap="gray_r")
    for axis in axes.ravel():
        axis.axis("off")
    write_atomically(file, lambda f: figure.savefig(f, format="png", dpi=130), "picture")
