"""What a run forgot: examples and classes, whether learning speed had said so, and whether the buffer held them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mammoth_sbs.core.record import Record
from mammoth_sbs.figures.correlation import area_under_curve

RISK = 0.25  # the slowest quarter of what was known when the task ended is said to be at risk


def percent(part: int, whole: int) -> str:
    """`12 (34%)`."""
    return f"{part} ({100 * part / whole:.0f}%)" if whole else f"{part}"


@dataclass(frozen=True)
class Forgotten:
    """Of one task's training examples, from the end of that task to the end of the last one."""

    task: int
    labels: np.ndarray
    places: np.ndarray  # in the whole data set
    speed: np.ndarray
    known: np.ndarray  # right when the task ended
    kept: np.ndarray  # and right at the end
    stored: np.ndarray  # in the buffer when the last task began

    @classmethod
    def of(cls, record: Record, task: int, setting: str = "task_il") -> Forgotten:
        known = record.known(task, task, setting=setting)
        return cls(task, record.labels(task), record[f"task{task}_indices"], record.speed(task, setting=setting), known,
                   known & record.known(task, record.tasks, setting=setting), record.in_buffer(task, record.tasks - 1))

    @property
    def lost(self) -> np.ndarray:
        """What was forgotten: known once, and no longer."""
        return self.known & ~self.kept

    @cached_property
    def at_risk(self) -> np.ndarray:
        """The slowest learned quarter of what was known, as could be said when the task ended; earlier places first
        among equals."""
        known = np.flatnonzero(self.known)
        slowest = known[np.argsort(self.speed[known], kind="stable")][: int(RISK * len(known))]
        mask = np.zeros(len(self.labels), bool)
        mask[slowest] = True
        return mask

    @property
    def auc(self) -> float | None:
        """How often, of two known examples of which one was forgotten, that one had been learned more slowly."""
        return area_under_curve(-self.speed[self.known], self.lost[self.known])

    def share_lost(self, of: np.ndarray) -> float | None:
        """Per cent of some known examples that were forgotten."""
        among = of & self.known
        return 100 * float(self.lost[among].mean()) if among.any() else None


def describe(record: Record, setting: str, show: int) -> str:
    """All tasks but the last, as text."""
    names = record.classes
    blocks = []
    for task in (task for task in record.followed if task < record.tasks):
        it = Forgotten.of(record, task, setting)
        known, lost = int(it.known.sum()), int(it.lost.sum())
        lines = [f"task {task}: {len(it.labels)} examples, {percent(known, len(it.labels))} known when it ended, "
                 f"{percent(lost, known)} of them forgotten by the end of task {record.tasks}"]
        if 0 < lost < known:
            risk, caught = int(it.at_risk.sum()), int((it.at_risk & it.lost).sum())
            lines.append(f"  at risk by learning speed (slowest quarter, {risk}): {percent(caught, risk)} forgotten, "
                         f"of the others {it.share_lost(~it.at_risk):.0f}%; AUC of learning speed {it.auc:.2f}")
        lines.append(f"  in the buffer: {percent(int(it.stored.sum()), len(it.labels))} of the examples, "
                     f"{percent(int((it.stored & it.at_risk).sum()), int(it.at_risk.sum()))} of those at risk; "
                     + "forgotten of the stored {}, of the others {}".format(*(
                         "-" if share is None else f"{share:.0f}%"
                         for share in (it.share_lost(it.stored), it.share_lost(~it.stored)))))
        lines += ["", *class_table(it, names)]
        if show and lost:
            lines += ["", *worst_table(it, names, show)]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def class_table(it: Forgotten, names: list[str]) -> list[str]:
    """The classes of a task, those forgotten most first."""
    lines = []
    for label in np.unique(it.labels):
        of = it.labels == label
        known, lost = int((of & it.known).sum()), int((of & it.lost).sum())
        share = lost / known if known else 0.0
        lines.append((share, f"  {names[label]:24} {known:>6} {percent(lost, known):>12} {it.speed[of].mean():>7.2f} "
                             f"{int((of & it.at_risk).sum()):>8} {int((of & it.stored).sum()):>7}"))
    head = f"  {'class':24} {'known':>6} {'forgotten':>12} {'speed':>7} {'at risk':>8} {'stored':>7}"
    return [head, *(line for _, line in sorted(lines, key=lambda item: -item[0]))]


def worst_table(it: Forgotten, names: list[str], show: int) -> list[str]:
    """Forgotten examples, the slowest learned first."""
    lost = np.flatnonzero(it.lost)
    chosen = lost[np.argsort(it.speed[lost], kind="stable")][:show]
    return [f"  {'forgotten: place':>18} {'speed':>6} {'at risk':>8} {'stored':>7}  class",
            *(f"  {it.places[i]:>18} {it.speed[i]:>6.2f} {'yes' if it.at_risk[i] else 'no':>8} "
              f"{'yes' if it.stored[i] else 'no':>7}  {names[it.labels[i]]}" for i in chosen)]


def rows(record: Record, setting: str) -> list[dict[str, Any]]:
    """Every example for a CSV file."""
    names = record.classes
    found = []
    for task in (task for task in record.followed if task < record.tasks):
        it = Forgotten.of(record, task, setting)
        found += [{"record": record.path.name, "task": task, "place": int(it.places[i]), "class": names[it.labels[i]],
                   "speed": round(float(it.speed[i]), 4), "known": int(it.known[i]), "forgotten": int(it.lost[i]),
                   "at_risk": int(it.at_risk[i]), "stored": int(it.stored[i])} for i in range(len(it.labels))]
    return found
