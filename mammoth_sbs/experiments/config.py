"""A sweep's YAML file: a base command line, a grid, seeds. Every flag remembers the line it was written in."""

from __future__ import annotations

import argparse
import itertools
import math
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from mammoth_sbs.errors import UserError
from mammoth_sbs.parser import spelled, suggest
from mammoth_sbs.values import SEED, Range, at_least

MOST_RUNS = 100_000  # of a sweep: beyond, it is a slip
KEYS = ("name", "base", "grid", "seeds", "threads")
NOT_IN_A_CONFIG = {  # the sweep sets these itself
    "--seed": "give the seeds under `seeds:`",
    "--results_path": "say where results go with `mammoth-sbs sweep --results DIR`",
    "--disable_log": "a sweep keeps the result of every run",
    "--shared_first_task": "a sweep shares first tasks by itself",
    "--help": "see `mammoth-sbs run --help`",
}


@dataclass(frozen=True)
class Flag:
    """What is given to a flag, and where."""

    values: tuple[str, ...]
    line: int


Flags = dict[str, Flag]


@dataclass(frozen=True)
class Point:
    """One point of the grid: all its flags, and which of them the grid sets."""

    flags: Flags
    varied: tuple[str, ...]


@dataclass(frozen=True)
class Config:
    """What the file asks for."""

    path: Path
    name: str
    points: list[Point]
    seeds: list[int]
    threads: int
    base_line: int

    def blame(self, flags: Flags, message: str) -> UserError:
        """`message` with the line of the flag that it talks about."""
        named = [flags[word].line for word in re.findall(r"--[\w-]+", message) if word in flags]
        return at(self.path, named[0] if named else self.base_line, message)


def at(path: Path, line: int, message: str) -> UserError:
    """An error in a line of the file."""
    return UserError(f"{path}, line {line}: {message}")


def words(flags: Flags) -> list[str]:
    """Flags as one would type them."""
    return [word for flag, given in flags.items() for word in (flag, *given.values)]


def read_config(path: Path) -> Config:
    """Read and check all that can be checked without knowing the host's flags."""
    return _Reader(path).read()


class _Reader:
    """Walks the YAML nodes rather than the values they stand for: nodes know their lines, and `0.20` stays `0.20`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as e:
            raise UserError(f"{path}: cannot be read: {getattr(e, 'strerror', None) or 'not a text file'}") from None

    def read(self) -> Config:
        try:
            root = yaml.compose(self.text, Loader=yaml.SafeLoader)
            return self.config(root)
        except RecursionError:  # brackets within brackets within ..., or a part that contains itself
            raise UserError(f"{self.path}: nested too deeply") from None
        except yaml.YAMLError as e:
            mark = getattr(e, "problem_mark", None)
            raise at(self.path, mark.line + 1 if mark else 1,
                     f"not YAML: {getattr(e, 'problem', None) or e}") from None

    def config(self, root: Node | None) -> Config:
        if root is None:
            raise UserError(f"{self.path}: empty; it needs `base:`, and for more than one run `grid:` or `seeds:`")
        top = self.mapping(root, "the file")
        for key, (line, _) in top.items():
            if key not in KEYS:
                near = suggest(key, KEYS) or "."
                raise at(self.path, line, f"unknown key {key}{near} There are: {', '.join(KEYS)}")
        base_line = top["base"][0] if "base" in top else 1
        base = self.flags(top["base"][1]) if "base" in top else {}
        points = [Point(base | varied, tuple(varied)) for varied in self.grid(top["grid"][1])] if "grid" in top \
            else [Point(base, ())]
        name = self.scalar(top["name"][1]) if "name" in top else self.path.stem
        if "name" in top and (name in (".", "..") or not name.isprintable() or "/" in name or len(name.encode()) > 200):
            self.fail(top["name"][1], "name: it names a folder below results/; give a short one, without a slash")
        seeds = self.seeds(top["seeds"][1]) if "seeds" in top else [0]
        if len(points) * len(seeds) > MOST_RUNS:
            raise at(self.path, base_line, f"{len(points)} points of {len(seeds)} seeds: more than {MOST_RUNS} runs")
        return Config(self.path, name, points, seeds,
                      self.whole(top["threads"][1], at_least(1, 1024)) if "threads" in top else 1, base_line)

    def fail(self, node: Node, message: str) -> NoReturn:
        raise at(self.path, node.start_mark.line + 1, message)

    def mapping(self, node: Node, what: str) -> dict[str, tuple[int, Node]]:
        """Key to its line and value."""
        if not isinstance(node, MappingNode):
            self.fail(node, f"{what} should be `key: value` lines")
        found: dict[str, tuple[int, Node]] = {}
        for key, value in node.value:
            name = self.scalar(key)
            if name in found:
                self.fail(key, f"{name} is given twice, first in line {found[name][0]}")
            found[name] = key.start_mark.line + 1, value
        return found

    def scalar(self, node: Node) -> str:
        if not isinstance(node, ScalarNode) or node.tag.endswith(":null") or not node.value:
            self.fail(node, "a single value is needed here")
        return str(node.value)

    def whole(self, node: Node, values: Range) -> int:
        try:
            return values(self.scalar(node))
        except argparse.ArgumentTypeError as e:
            self.fail(node, str(e))

    def seeds(self, node: Node) -> list[int]:
        """`10` is 0 to 9; a list is itself."""
        if not isinstance(node, SequenceNode):
            return list(range(self.whole(node, at_least(1, MOST_RUNS))))
        seeds = [self.whole(item, SEED) for item in node.value]
        if not seeds or len(set(seeds)) < len(seeds):
            self.fail(node, "seeds: give each once, and at least one")
        return seeds

    def values(self, node: Node) -> tuple[str, ...]:
        """What is typed after a flag: one value, or several for a flag that takes a list."""
        if isinstance(node, SequenceNode):
            return tuple(self.scalar(item) for item in node.value)
        return (self.scalar(node),)

    def flags(self, node: Node) -> Flags:
        """A command line, as one string or as `flag: value` lines."""
        if isinstance(node, ScalarNode) and not node.tag.endswith(":null"):
            return self.command_line(node)
        found: Flags = {}
        for key, (line, value) in self.mapping(node, "flags").items():
            self.add(found, key, self.values(value), line)
        return found

    def command_line(self, node: ScalarNode) -> Flags:
        found: Flags = {}
        try:
            given = shlex.split(node.value)
        except ValueError as e:
            self.fail(node, f"not a command line: {e}")
        flag = None
        for word in given:
            if word.startswith("--"):
                name, _, value = word.partition("=")
                flag = self.add(found, name, (value,) if value else (), self.line_of(node, name))
            elif flag is None:
                self.fail(node, f"a command line of flags is needed; {word} comes before any flag")
            else:
                found[flag] = Flag((*found[flag].values, word), found[flag].line)
        return found

    def line_of(self, node: ScalarNode, flag: str) -> int:
        """The line of a flag in a string that may go over several."""
        first, last = node.start_mark.line, node.end_mark.line
        lines = self.text.splitlines()[first : last + 1]
        pattern = re.compile(rf"(?<![\w-]){re.escape(flag)}(?![\w-])")
        return next((first + i + 1 for i, line in enumerate(lines) if pattern.search(line)), first + 1)

    def add(self, flags: Flags, name: str, values: tuple[str, ...], line: int) -> str:
        """Under its one spelling, which is returned."""
        flag = spelled(name)
        if flag in NOT_IN_A_CONFIG:
            raise at(self.path, line, f"{flag} does not belong here: {NOT_IN_A_CONFIG[flag]}")
        if flag in flags:
            raise at(self.path, line, f"{flag} is given twice, first in line {flags[flag].line}")
        flags[flag] = Flag(values, line)
        return flag

    def grid(self, node: Node) -> list[Flags]:
        """All combinations of its axes; a list of grids is one after the other."""
        if isinstance(node, SequenceNode) and node.value:
            points: list[Flags] = []
            for grid in node.value:
                points += self.grid(grid)
                if len(points) > MOST_RUNS:  # also of aliases of aliases
                    self.fail(grid, f"grid: more than {MOST_RUNS} combinations")
            return points
        axes = [self.axis(key, line, value) for key, (line, value) in self.mapping(node, "grid").items()]
        points = []
        if math.prod(map(len, axes)) > MOST_RUNS:
            self.fail(node, f"grid: more than {MOST_RUNS} combinations")
        for choice in itertools.product(*axes):
            varied: Flags = {}
            for flags in choice:
                for flag, given in flags.items():
                    if flag in varied:
                        raise at(self.path, given.line, f"{flag} is in two axes of the grid, also in line "
                                                        f"{varied[flag].line}; couple them in one list of mappings")
                    varied[flag] = given
            points.append(varied)
        return points

    def axis(self, key: str, line: int, node: Node) -> list[Flags]:
        """The values of a flag; or, under a name of one's own, mappings of flags that go together."""
        if not isinstance(node, SequenceNode) or not node.value:
            self.fail(node, f"{key}: a list is needed in a grid, such as [a, b]")
        axis = []
        for item in node.value:
            if isinstance(item, MappingNode):
                axis.append(self.flags(item))
            else:
                axis.append({})
                self.add(axis[-1], key, self.values(item), item.start_mark.line + 1)
        return axis
