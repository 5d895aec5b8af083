"""The ways to choose a replay buffer, by name: the built-in ones and those other packages add by an entry point."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from mammoth_sbs.core.samplers.base import Sampler
from mammoth_sbs.core.samplers.ccs import CCS
from mammoth_sbs.core.samplers.gss import GSS
from mammoth_sbs.core.samplers.herding import Herding
from mammoth_sbs.core.samplers.ipm import IPM
from mammoth_sbs.core.samplers.lars import LARS
from mammoth_sbs.core.samplers.max_entropy import MaxEntropy
from mammoth_sbs.core.samplers.rainbow import Rainbow
from mammoth_sbs.core.samplers.speed import Speed
from mammoth_sbs.core.samplers.speed_balanced import SpeedBalanced
from mammoth_sbs.core.samplers.task import Task
from mammoth_sbs.core.samplers.uniform import Uniform
from mammoth_sbs.errors import UserError, reason

__all__ = ["SAMPLERS", "Sampler", "Task", "get_sampler", "sampler_names"]

GROUP = "mammoth_sbs.samplers"
SAMPLERS: dict[str, type[Sampler]] = {
    cls.name: cls for cls in (Speed, Uniform, MaxEntropy, IPM, GSS, Herding, LARS, CCS, Rainbow, SpeedBalanced)}


def sampler_names() -> list[str]:
    """All names `get_sampler` knows: the built-in ones first, then those of installed packages."""
    return [*SAMPLERS, *sorted(_entry_points().keys() - SAMPLERS.keys())]


def get_sampler(name: str) -> Sampler:
    """The sampler called `name`, with its defaults; `-` and `_` are the same.

    >>> task = Task(labels=torch.zeros(10), speed=torch.arange(10) / 10)
    >>> get_sampler("speed").choose(task, 6, torch.Generator()).sort().values  # without the two on either side
    tensor([2, 3, 4, 5, 6, 7])
    """
    key = _canonical(name)
    if key in SAMPLERS:
        return SAMPLERS[key]()
    if key in (installed := _entry_points()):
        return _load(installed[key])()
    names = sampler_names()
    nearest = get_close_matches(key.lower(), names, n=1, cutoff=0.5)
    hint = f"; did you mean `{nearest[0]}`?" if nearest else ";"
    raise UserError(f"--sampler: there is no sampler `{name}`{hint} choose one of {', '.join(names)}")


def _canonical(name: str) -> str:
    return name.replace("_", "-")


def _entry_points() -> dict[str, EntryPoint]:
    return _installed(tuple(sys.path))


@cache
def _installed(_path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """What the packages on a path add: looking takes longer than all else that is done with a command line."""
    return {_canonical(entry.name): entry for entry in entry_points(group=GROUP)}


def _load(entry: EntryPoint) -> type[Sampler]:
    """A third party's class. Its faults are named as its own, or the user would look for them here."""
    try:
        cls = entry.load()
    except Exception as error:
        raise UserError(f"--sampler {entry.name}: {entry.value} could not be imported: {reason(error)}") from error
    if not (isinstance(cls, type) and issubclass(cls, Sampler)):
        raise UserError(f"--sampler {entry.name}: {entry.value} is not a subclass of mammoth_sbs.samplers.Sampler")
    return cls
