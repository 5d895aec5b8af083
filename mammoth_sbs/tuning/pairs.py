"""Pairs (q, s): those to try, what one gave, the best of them, and the rule (paper, "Choosing q and s")."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any, NamedTuple

from mammoth_sbs.core.samplers.speed import by_share
from mammoth_sbs.errors import UserError
from mammoth_sbs.models.flags import MOST, OPEN

Pair = tuple[float, float]  # (q, s)
LEFT_OUT = 0.4  # q + s of the rule: as much as the paper's q = s = .2


class Point(NamedTuple):
    """What one pair (q, s) gave."""

    q: float
    s: float
    old: float  # per cent correct on the held-out tenth of the task, after the rotation task
    rotation: float  # per cent correct on the rotations of that tenth
    forgotten: float  # per cent of what was right of that tenth before the rotation task, and is no longer
    stored: int  # examples of the task in the buffer
    seconds: float

    @property
    def score(self) -> float:
        return (self.old + self.rotation) / 2



def grid(q: float | str, s: float | str, values: Sequence[float]) -> list[Pair]:
    """The pairs to try: `values` on a side that is `auto`, the number itself on one that is given."""
    qs, ss = (sorted(set(values)) if side == "auto" else [float(side)] for side in (q, s))
    pairs = [(a, b) for a in qs for b in ss if a + b <= MOST + 1e-9]
    text = " ".join(f"{value:g}" for value in values)
    if not pairs:
        raise UserError(f"--sbs-grid {text}: q + s is above {MOST:g} in every pair, so hardly anything would be left "
                        "to draw from; give smaller values")
    if len(pairs) == 1:
        (a, b), = pairs
        raise UserError(f"--sbs-grid {text}: leaves one pair, so there is nothing to choose; give more values, or "
                        f"--sbs-q {a:g} --sbs-s {b:g}")
    return pairs


def rule(forgotten: float) -> Pair:
    """s is the fraction that is forgotten in spite of replay, q the rest of the 40% that are left out.

    So an easy task, of which little is forgotten, has larger q and smaller s, as the paper advises.
    """
    s = min(forgotten, LEFT_OUT)
    return round(LEFT_OUT - s, 3), round(s, 3)


def settled(typed: tuple[Any, Any], word: str, given: Pair) -> tuple[Any, Any]:
    """q and s as the flags say, with the numbers that a word gives put in its place."""
    q, s = (number if side == word else side for side, number in zip(typed, given, strict=True))
    return q, s


def best(points: Sequence[Point]) -> Point:
    """The highest score; of equal ones, the pair nearest to the paper's q = s = .2."""
    return min(points, key=lambda p: (-round(p.score, 6), round(abs(p.q - 0.2) + abs(p.s - 0.2), 6), p.q))


def check(args: Namespace) -> None:
    """One line for what cannot work, before the first task is trained."""
    typed = args.sbs_q, args.sbs_s
    for flag, side in (("--sbs-q", args.sbs_q), ("--sbs-s", args.sbs_s)):
        if side in OPEN and args.sampler != "speed":
            raise UserError(f"{flag} {side}: --sampler {args.sampler} has no q and s to choose; leave it out, or use "
                            "--sampler speed")
    q, s = at_most = settled(settled(typed, "rule", (LEFT_OUT, LEFT_OUT)), "share", by_share(0))
    if "auto" in at_most:
        grid(q, s, args.sbs_grid)
        return
    for flag, number, other, gives in (("--sbs-s", args.sbs_s, args.sbs_q, q), ("--sbs-q", args.sbs_q, args.sbs_s, s)):
        if other in OPEN and number not in OPEN and number + gives > MOST + 1e-9:
            raise UserError(f"{flag} {number:g}: {other} may give {gives:g} on the other side, and q + s must be "
                            f"at most {MOST:g}; give at most {MOST - gives:g}")


def tune_epochs(args: Namespace) -> int:
    """Epochs of the rotation task."""
    return args.sbs_tune_epochs or max(1, (args.n_epochs or 1) // 10)
