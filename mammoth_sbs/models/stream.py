"""Stream samplers in the methods that insert at every step: ER, DER and DER++, on either host."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mammoth_sbs.core.samplers import Sampler, get_sampler
from mammoth_sbs.core.streams import STREAM_SAMPLERS, Look, StreamSampler, StreamSpeed
from mammoth_sbs.errors import UserError
from mammoth_sbs.models.base import SpeedSampled
from mammoth_sbs.models.flags import MOST, OPEN, add_stream_args, unused_in_streams
from mammoth_sbs.watch import say, warn

from utils.buffer import Buffer


class Feed:
    """Stands between a method and its buffer during a step: what is offered goes where the sampler says, and the
    sampler is shown what the step's own forward passes make of the stream's batch and of each replay."""

    def __init__(self, net: nn.Module, buffer: Buffer, sampler: StreamSampler, generator: torch.Generator) -> None:
        self.net, self.buffer, self.sampler, self.generator = net, buffer, sampler, generator
        self._stream: tuple[Tensor, Tensor] | None = None  # the batch, until it is looked at
        self._replays: list[tuple[Tensor, np.ndarray]] = []  # those of the step, until they are
        self._look: Look | None = None

    @contextmanager
    def step(self, inputs: Tensor, labels: Tensor) -> Iterator[None]:
        """One training step on a batch of the stream."""
        self._stream, self._replays, self._look = (inputs, labels), [], None
        handle = self.net.register_forward_hook(self.look)
        vars(self.buffer).update(add_data=self.add_data, get_data=self.get_data)
        try:
            yield
        finally:
            handle.remove()
            del vars(self.buffer)["add_data"], vars(self.buffer)["get_data"]

    def look(self, net: nn.Module, given: tuple, output: Tensor | tuple) -> None:
        """A forward pass: of the stream's batch, of a replay, or (ER) of the one followed by the other."""
        inputs, logits = given[0], (output[0] if isinstance(output, tuple) else output).detach()
        at = 0
        if self._stream is not None and starts(inputs, self._stream[0]):
            at = len(self._stream[0])
            self._look, self._stream = Look(self._stream[1], logits[:at]), None
        if self._replays and starts(inputs[at:] if at else inputs, self._replays[0][0]):
            replayed, slots = self._replays.pop(0)
            labels = torch.from_numpy(self.sampler.labels[slots]).to(logits.device)
            self.sampler.replayed(slots, Look(labels, logits[at : at + len(replayed)]))

    def get_data(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        """The buffer's own draw, noting which slots were drawn."""
        wanted = kwargs.get("return_index", len(args) > 2 and args[2])
        kwargs |= {"return_index": True} if len(args) < 3 else {}
        index, *data = type(self.buffer).get_data(self.buffer, *args[:2], *((True,) if len(args) > 2 else ()),
                                                  *args[3:], **kwargs)
        self._replays.append((data[0], index.cpu().numpy()))
        return (index, *data) if wanted else tuple(data)

    def add_data(self, examples: Tensor, **beside: Tensor | None) -> None:
        """In place of the buffer's own reservoir."""
        if self._look is None:
            raise UserError("a training step made no forward pass on its batch, so a stream sampler cannot look at it")
        buffer, given = self.buffer, {"examples": examples, **{k: v for k, v in beside.items() if v is not None}}
        for name, value in given.items():
            if not hasattr(buffer, name):
                dtype = torch.int64 if name.endswith("labels") else torch.float32
                shape = buffer.buffer_size, *value.shape[1:]
                setattr(buffer, name, torch.zeros(shape, dtype=dtype, device=buffer.device))
        changed = self.sampler.offer(self._look, self.generator)
        buffer.num_seen_examples = self.sampler.seen
        if changed:
            slots, source = torch.tensor(list(changed)), torch.tensor(list(changed.values()))
            new = source >= 0
            for name, value in given.items():
                target = getattr(buffer, name)
                moved = target[~source[~new]]
                target[slots[new]] = value.detach()[source[new].to(value.device)].to(target.device, target.dtype)
                target[slots[~new]] = moved


def starts(inputs: Tensor, batch: Tensor) -> bool:
    """Whether a forward pass begins with this batch."""
    return inputs is batch or (len(inputs) >= len(batch) and torch.equal(inputs[: len(batch)], batch))


class StreamSampled(SpeedSampled):
    """To be put before a method that inserts at every step: `--sampler stream-...` says what is stored, and a task's
    end changes nothing. With any other sampler it is a `SpeedSampled`."""

    inserts_each_step = True
    feed: Feed | None = None

    @classmethod
    def get_parser(cls, parser: ArgumentParser) -> ArgumentParser:
        add_stream_args(parser)
        return super().get_parser(parser)

    def __init__(self, backbone: Any, loss: Any, args: Any, transform: Any, dataset: Any = None) -> None:
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        if self.streamed:
            self.feed = Feed(self.net, self.buffer, self.stream_sampler(), self.generator)

    @property
    def streamed(self) -> bool:
        """Whether the sampler is one of a stream."""
        return self.args.sampler.replace("_", "-") in STREAM_SAMPLERS

    def build_sampler(self) -> Sampler:
        for line in unused_in_streams(self.args):
            warn(line)
        if self.streamed:
            return get_sampler("uniform")  # never asked: there is no end of a task
        for flag in ("blurry", "drift"):
            if getattr(self.args, flag, None):
                raise UserError(f"--{flag}: a stream without boundaries has no end of a task, at which --sampler "
                                f"{self.args.sampler} would choose; take one of {', '.join(STREAM_SAMPLERS)}")
        return super().build_sampler()

    def stream_sampler(self) -> StreamSampler:
        """As the flags say."""
        args = self.args
        if getattr(args, "shared_first_task", None):
            raise UserError(f"--shared_first_task: with --sampler {args.sampler} the buffer is filled in the first "
                            "task already; leave it out")
        kind = STREAM_SAMPLERS[args.sampler.replace("_", "-")]
        if not issubclass(kind, StreamSpeed):
            return kind(args.buffer_size)
        if self.leaves_open:
            raise UserError(f"--sbs-q {args.sbs_q}, --sbs-s {args.sbs_s}: a stream has no task's end at which "
                            f"{' or '.join(OPEN)} could choose; give numbers")
        if args.sbs_q + args.sbs_s > MOST + 1e-9:
            raise UserError(f"--sbs-q {args.sbs_q:g}, --sbs-s {args.sbs_s:g}: q + s must be at most {MOST:g}, or "
                            "hardly anything is left to keep")
        given = {"by": args.sbs_look, "looks": args.sbs_looks, "band": args.sbs_band, "near": args.sbs_near}
        return kind(args.buffer_size, args.sbs_q, args.sbs_s, **{k: v for k, v in given.items() if v is not None})

    def begin_task(self, dataset: Any) -> None:
        """No learning speed is counted for a stream sampler, and no boundary is needed."""
        if self.feed is None:
            super().begin_task(dataset)
        else:
            super(SpeedSampled, self).begin_task(dataset)

    def observe(self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: int | None = None,
                sbs_index: Tensor | None = None) -> float | Tensor:
        if self.feed is None:
            return super().observe(inputs, labels, not_aug_inputs, epoch=epoch, sbs_index=sbs_index)
        with self.feed.step(inputs, labels):
            return super(SpeedSampled, self).observe(inputs, labels, not_aug_inputs, epoch=epoch)

    def end_task(self, dataset: Any) -> None:
        if self.feed is None:
            super().end_task(dataset)
            return
        super(SpeedSampled, self).end_task(dataset)
        sampler = self.feed.sampler
        counts = np.bincount(sampler.labels[sampler.labels >= 0])
        held = counts[counts > 0]
        say(f"SBS stream: {sampler.seen} examples seen, {held.sum()} stored of {len(held)} classes, "
            f"{held.min()} to {held.max()} of each")

    def get_extra_state(self) -> dict:
        return {**super().get_extra_state(), "stream": self.feed.sampler.state_dict() if self.feed else None}

    def set_extra_state(self, state: dict) -> None:
        super().set_extra_state(state)
        if self.feed is not None:
            self.feed.sampler.load_state_dict(state["stream"])
