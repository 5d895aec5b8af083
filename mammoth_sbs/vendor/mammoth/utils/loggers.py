"""What a run says; what it leaves behind is in mammoth_sbs/result.py."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from mammoth_sbs.metrics import METRICS
from mammoth_sbs.result import SETTINGS, Accuracies
from mammoth_sbs.watch import say


def print_mean_accuracy(accuracies: Accuracies, tasks: int, joint: bool, prefix: str = "",
                        epoch: int | None = None) -> None:
    """The line that people's scripts read."""
    pairs = zip(SETTINGS.values(), accuracies, strict=True)
    means = [f"[{name}]: {round(fmean(values), 2)} %" for name, values in pairs]
    when = "" if epoch is None else f" (epoch {epoch})"
    title = f"Joint Accuracy{when}" if joint else f"Accuracy{when} for {tasks} task(s)"
    say(f"{prefix}{title}: \t " + " \t ".join(means))


def print_table(results: list[Accuracies]) -> None:
    """The accuracy matrices: after each task, on each task."""
    for i, name in enumerate(SETTINGS.values()):
        heads = "".join(f"{f'task {t + 1}':>9}" for t in range(len(results[-1][i])))
        say(f"\n{name} accuracy (%){heads}     mean")
        for row in results:
            cells = "".join(f"{value:9.2f}" for value in row[i]) + " " * 9 * (len(results[-1][i]) - len(row[i]))
            say(f"{f'after task {len(row[i])}':<{len(name) + 13}}{cells}{fmean(row[i]):9.2f}")


def print_metrics(found: dict[str, dict[str, Any]]) -> None:
    """What the matrices come to."""
    say("\n" + " " * 32 + "".join(f"{title:>9}" for title in SETTINGS.values()))
    for name, metric in METRICS.items():
        if all(name in values for values in found.values()):
            unit = "%" if metric.accuracy else "points"
            say(f"{f'{metric.title}, {unit}':<32}" + "".join(f"{found[key][name]:9.2f}" for key in SETTINGS))
