"""`stream-speed`: learning speed where every example is seen once.

The paper's limitation: in a stream an example comes once, so its learning speed is 0 or 1. But what is stored is
replayed, and a replay is a forward pass that happens anyway. So speed is measured after all, at an example's arrival
and at each replay; and the band, which SBS draws from at the end of a task, is kept all the time.

- A *look* at an example is worth p(label) (or the margin, or right and wrong: `by`), minus what was to be expected:
  the running mean of such looks, arrivals and replays apart, at examples of its class. So classes that are new and slow
  because of that, and examples that were looked at early or late, are compared with their like. The speed of a
  stored example is the mean over its looks.
- Who *enters* is a reservoir's choice, draw for draw. With `band` "enter" or "both" an example whose arrival lies
  outside the class's band hands its place to the next of its class whose arrival does not.
- Who *leaves*: the reservoir draws a slot. Not its example leaves, but of those of the same class (the `near` nearest
  to it by time of arrival) one that lies outside the band: the q quickest and s slowest. The two change places, so
  that each slot holds an example of the class that it would hold in the stock reservoir, bit for bit, and a replay the
  same classes; only who of the class differs. With a small `near`, every part of a stationary stream keeps its share
  too. If nobody lies outside, the one drawn leaves: with q = s = 0 this is the reservoir. All this with `band` "leave":
  who is handed a place comes later, and the limits follow with a delay, even those of q = 0 or s = 0.

Nothing here knows of tasks. O(1) per example of the stream but for those that enter (the n-th with probability
size / n), which cost a pass over the slots of their class.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from mammoth_sbs.core.band import SpeedBand
from mammoth_sbs.core.streams.base import Look, StreamSampler

ARRIVAL, REPLAY = 0, 1
FORGET = 0.05  # of the running means: they follow some twenty looks at a class
STEP = 0.05  # of the running quantiles, in standard deviations


class StreamSpeed(StreamSampler):
    """A reservoir in which examples outside the band of speeds make room."""

    name = "stream-speed"

    def __init__(self, size: int, q: float = 0.2, s: float = 0.2, by: str = "p", looks: str = "both",
                 band: str = "leave", near: int = 0) -> None:
        super().__init__(size)
        self.band, self.by, self.looks, self.near = SpeedBand(q, s), by, looks, near
        self.enters, self.leaves = band in ("enter", "both"), band in ("leave", "both")
        self.total = np.zeros(size, dtype=np.float32)  # of the looks, as differences from what was expected
        self.count = np.zeros(size, dtype=np.int32)
        self.since = np.zeros(size, dtype=np.int64)  # arrival: how many had come before
        self.mean: np.ndarray = np.zeros((2, 0), dtype=np.float32)  # expected, by kind of look and class
        self.known: np.ndarray = np.zeros((2, 0), dtype=np.int64)  # looks that it rests on
        self.limits: np.ndarray = np.zeros((4, 0))  # of late arrivals, by class: slow and quick limit, scale, how many
        self.owed: np.ndarray = np.zeros(0, dtype=np.int64)  # places that were handed on, by class

    @property
    def speed(self) -> np.ndarray:
        """Of each stored example, relative to its class: above 0 is quick."""
        return self.total / np.maximum(self.count, 1)

    # ---- looks

    def differences(self, look: Look, kind: int) -> np.ndarray:
        """The looks minus what was expected, which then follows them."""
        self.make_room(look)
        value = getattr(look, self.by).astype(np.float32)
        mean, known = self.mean[kind], self.known[kind]
        found = np.empty_like(value)
        for i, c in enumerate(look.labels.tolist()):
            known[c] = n = known.item(c) + 1
            expected = mean[c]
            difference = value[i] - expected
            found[i] = difference if n > 1 else 0.0
            mean[c] = expected + (FORGET if n * FORGET >= 1 else np.float64(1 / n)) * difference
        return found

    def make_room(self, look: Look) -> None:
        """Numbers for classes that were not seen before."""
        more = int(look.labels.max(initial=-1)) + 1 - len(self.owed)
        if more > 0:
            self.mean, self.known, self.limits = (np.pad(a, ((0, 0), (0, more)))
                                                  for a in (self.mean, self.known, self.limits))
            self.owed = np.pad(self.owed, (0, more))

    def offer(self, look: Look, generator: torch.Generator) -> dict[int, int]:
        self.arrivals: list[float] = self.differences(look, ARRIVAL).tolist()
        return super().offer(look, generator)

    def put(self, slot: int, look: Look, i: int) -> None:
        super().put(slot, look, i)
        first = self.looks != "replay"
        self.total[slot], self.count[slot] = (self.arrivals[i], 1) if first else (0, 0)
        self.since[slot] = self.seen + i

    def replayed(self, slots: np.ndarray, look: Look) -> None:
        if self.looks != "arrival" and self.leaves:
            self.total[slots] += self.differences(look, REPLAY)
            self.count[slots] += 1

    # ---- the band

    def late(self, look: Look, first: int, generator: torch.Generator) -> Iterator[tuple[int, int]]:
        chosen = self.candidates(look, first)
        for i, slot in self.handed_on(look, first, chosen, generator) if self.enters else chosen:
            if self.leaves:
                self.exchange(slot, self.instead_of(slot, generator))
            yield i, slot

    def exchange(self, a: int, b: int) -> None:
        """Two stored examples change places."""
        if a != b:
            self.sources[a], self.sources[b] = self.sources.get(b, ~b), self.sources.get(a, ~a)
            for array in (self.labels, self.total, self.count, self.since):
                array[a], array[b] = array[b], array[a]

    def instead_of(self, slot: int, generator: torch.Generator) -> int:
        """Who leaves when the reservoir has drawn `slot`."""
        alike = np.flatnonzero(self.labels == self.labels[slot])
        if self.near and len(alike) > self.near:
            distance = np.abs(self.since[alike] - self.since[slot])
            alike = alike[np.argpartition(distance, self.near - 1)[: self.near]]
        quick, slow = self.band.left_out(len(alike))
        if quick + slow == 0:
            return slot
        order = alike[np.argsort(self.speed[alike], kind="stable")]  # from slow to quick
        outside = np.concatenate([order[:slow], order[len(order) - quick :]])
        return int(outside[int(torch.randint(len(outside), (), generator=generator))])

    def handed_on(self, look: Look, first: int, chosen: list[tuple[int, int]],
                  generator: torch.Generator) -> Iterator[tuple[int, int]]:
        """The reservoir's choice, but a place drawn for an example outside its class's band goes to the next inside."""
        drawn = dict(chosen)
        for i, c in enumerate(look.labels[first:].tolist(), first):
            inside = self.is_inside(c, self.arrivals[i])
            if i in drawn and not inside:
                self.owed[c] += 1
            elif i in drawn:
                yield i, drawn[i]
            elif inside and self.owed[c]:
                self.owed[c] -= 1
                yield i, int(torch.randint(self.size, (), generator=generator))

    def is_inside(self, c: int, value: float) -> bool:
        """Whether an arrival lies inside its class's running quantiles s and 1 - q, which then follow it."""
        low, high, scale, n = self.limits[:, c].tolist()
        inside = low <= value <= high or n < 1 / STEP
        scale += max(FORGET, 1 / (n + 1)) * (abs(value) - scale)
        low += STEP * scale * (self.band.s - (value < low))
        high += STEP * scale * (1 - self.band.q - (value < high))
        self.limits[:, c] = low, high, scale, n + 1
        return inside
