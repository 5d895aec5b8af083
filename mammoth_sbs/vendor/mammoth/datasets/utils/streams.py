"""Streams other than tasks one after the other, from the same images: wrong labels, rare classes, blurred boundaries
and none at all. All are drawn from `--seed` alone, so that every task cuts its part out of the same stream."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

import numpy as np

from mammoth_sbs.errors import UserError
from mammoth_sbs.values import number

NOISE, TAIL, BLUR, DRIFT = range(4)  # each has randomness of its own


def add_stream_flags(parser: ArgumentParser) -> None:
    """How the stream differs from the data set as it is."""
    add = parser.add_argument_group("stream").add_argument
    add("--noise_rate", type=number(0, 1), default=0.0,
        help="share of each class's training images that get the label of another class, drawn uniformly; an image "
             "comes with the task of the label that it has")
    add("--imbalance", type=number(1), metavar="RATIO",
        help="long-tailed: so many times more images of the most frequent class than of the rarest, falling "
             "exponentially in between; which class is frequent is drawn (default: none)")
    add("--blurry", type=number(0, 1), default=0.0, metavar="SHARE",
        help="share of each class's images that come at other times than their task")
    add("--drift", type=number(above=0), metavar="WIDTH",
        help="no boundaries: a class comes around the middle of its task, spread by a standard deviation of so many "
             "tasks; the stream is cut into equal parts in place of tasks (default: none)")


def check(args: Namespace, domains: object = None) -> None:
    """What cannot be had together."""
    if (args.blurry or args.drift) and domains:
        raise UserError(f"--{'blurry' if args.blurry else 'drift'}: moves classes between tasks, and here a task is a "
                        "domain with all classes; leave it out")
    if args.blurry and args.drift:
        raise UserError("--blurry, --drift: there are no boundaries to blur in a stream that drifts; give one of them")
    if (args.blurry or args.drift) and args.second_task:
        raise UserError(f"--second_task {args.second_task}: is cut out of tasks with boundaries; leave out "
                        f"{'--blurry' if args.blurry else '--drift'}")


def randomness(args: Namespace, kind: int) -> np.random.RandomState:
    return np.random.RandomState((args.seed * 1_000_003 + kind * 7919) % 2**32)


def relabelled(labels: np.ndarray, rows: np.ndarray, args: Namespace) -> np.ndarray:
    """`--noise_rate`, Mammoth's symmetric noise: of each class, that share of `rows` gets the label of another class.
    Draw for draw as there, so that the same seed makes the same labels wrong."""
    labels, rng = labels.copy(), np.random.RandomState(args.seed % 2**32)
    true = labels[rows]
    classes = np.unique(true)
    for c in classes if len(classes) > 1 else ():
        members = np.flatnonzero(true == c)
        wrong = round(len(members) * args.noise_rate)
        rng.shuffle(members)
        labels[rows[members[:wrong]]] = rng.choice(classes[classes != c], wrong)
    return labels


def long_tail(labels: np.ndarray, rows: np.ndarray, args: Namespace) -> np.ndarray:
    """`--imbalance`: the class of rank r keeps ratio ** (-r / (C - 1)) of its rows, at least one."""
    rng, classes = randomness(args, TAIL), np.unique(labels[rows])
    ranks = rng.permutation(len(classes))
    kept = []
    for c, rank in zip(classes, ranks, strict=True):
        members = rng.permutation(rows[labels[rows] == c])
        share = args.imbalance ** (-rank / max(len(classes) - 1, 1))
        kept.append(members[: max(1, round(len(members) * share))])
    return np.sort(np.concatenate(kept))


def part(labels: np.ndarray, rows: np.ndarray, args: Namespace, task: int, per_task: int, tasks: int) -> np.ndarray:
    """The rows that come in the place of a task: blurred, or those of a stream that drifts, in its order."""
    home = labels[rows] // per_task
    if args.drift:
        time = home + 0.5 + args.drift * randomness(args, DRIFT).standard_normal(len(rows))
        return np.array_split(rows[np.argsort(time, kind="stable")], tasks)[task]
    rng, moves = randomness(args, BLUR), np.zeros(len(rows), dtype=bool)
    for c in np.unique(labels[rows]):
        members = rng.permutation(np.flatnonzero(labels[rows] == c))
        moves[members[: round(len(members) * args.blurry)]] = True
    home[moves] = rng.permutation(home[moves])  # they change places, so that no part becomes longer
    return rows[home == task]
