"""Pictures that were found and not read yet, and how their classes are named and ordered."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

TRAINS = ("train", "training")
TESTS = ("test", "testing", "val", "valid", "validation", "eval")  # the first that is there is used


@dataclass(frozen=True)
class Options:
    """What the flags of `seq-folder` say."""

    data: str
    size: int | None = None
    fit: str = "crop"
    domains: str | None = None  # a column, or `folder`
    test_share: float = 0.2
    split_seed: int = 0


@dataclass
class Collection:
    """Pictures in the order in which they were found. `read` gives some of them, each with what to call it."""

    kind: str
    files: Sequence[str]
    labels: np.ndarray
    classes: list[str]
    read: Callable[[np.ndarray], Iterator[tuple[str, bytes | str | np.ndarray]]]
    test: np.ndarray | None = None  # which are for testing, if that is given
    domain: np.ndarray | None = None
    domains: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what was left out

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def groups(self) -> np.ndarray:
        """One number for domain and class."""
        return self.labels if self.domain is None else self.domain * len(self.classes) + self.labels

    def title(self, group: int) -> str:
        domain, label = divmod(group, len(self.classes))
        return self.classes[label] if self.domain is None else f"{self.domains[domain]}/{self.classes[label]}"


def natural(name: str) -> tuple:
    """To sort names: numbers in them by their value."""
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name) if part)


def numbered(names: Sequence[str], known: Sequence[str] = ()) -> tuple[np.ndarray, list[str]]:
    """Names as numbers, and what these mean: in the order of `known`, or sorted."""
    order = list(known) or sorted(set(names), key=lambda name: (natural(name), name))
    place = {name: i for i, name in enumerate(order)}
    return np.array([place[name] for name in names], np.int64), order
