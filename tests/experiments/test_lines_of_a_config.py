"""What is wrong in a configuration file is named with its line, by reading the file alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from mammoth_sbs.errors import UserError
from mammoth_sbs.experiments import config as configs
from mammoth_sbs.experiments.config import Config, read_config

NAME = "name: it names a folder below results/; give a short one, without a slash"
SINGLE = "a single value is needed here"
WRONG = [
    ("", ": empty; it needs `base:`, and for more than one run `grid:` or `seeds:`"),
    ("- a\n- b", ", line 1: the file should be `key: value` lines"),
    ("base: --lr 1\nname: a: b", ", line 2: not YAML: mapping values are not allowed here"),
    ("base: --lr 1\nname: \x01", ", line 1: not YAML: "),  # a fault without a line
    ("base: --lr 1\n\ngrids: 1", ", line 3: unknown key grids; did you mean grid? There are: name, base, grid, seeds,"),
    ("base: --lr 1\nxyz: 1", ", line 2: unknown key xyz. There are: name, base, grid, seeds, threads"),
    ("base: --lr 1\nseeds: 1\nbase: --lr 2", ", line 3: base is given twice, first in line 1"),
    *((f"base: --lr 1\nname: {name}", f", line 2: {NAME}")
      for name in (".", "..", '"a\\tb"', "a/b", "x" * 201, "é" * 101)),
    *((f"base: --lr 1\nname: {name}", f", line 2: {SINGLE}") for name in ("[a]", "", "~", '""', "{a: b}")),
    ("base:", ", line 1: flags should be `key: value` lines"),
    ("seeds: 1\nbase:\n- --lr", ", line 3: flags should be `key: value` lines"),
    ("base: --lr 'x", ", line 1: not a command line: No closing quotation"),
    ("seeds: 1\nbase: er --lr 1", ", line 2: a command line of flags is needed; er comes before any flag"),
    ("base:\n  lr: 1\n  help: 1", ", line 3: --help does not belong here: see `mammoth-sbs run --help`"),
    ("base: >\n  --model er\n  --seed 3", ", line 3: --seed does not belong here: give the seeds under `seeds:`"),
    ("base:\n  lr: 1\n  model: er\n  --lr: 2", ", line 4: --lr is given twice, first in line 2"),
    ("grid: []", ", line 1: grid should be `key: value` lines"),
    ("grid:\n  model: er", ", line 2: model: a list is needed in a grid, such as [a, b]"),
    ("grid:\n  lr: [1]\n  model: []", ", line 3: model: a list is needed in a grid, such as [a, b]"),
    ("grid:\n  model: [er]\n  arm:\n  - {model: gem}",
     ", line 4: --model is in two axes of the grid, also in line 2; couple them in one list of mappings"),
    ("seeds: 0", ", line 1: a whole number from 1 to 100000 is needed, not 0"),
    ("\nseeds: 100001", ", line 2: a whole number from 1 to 100000 is needed, not 100001"),
    ("seeds: []", ", line 1: seeds: give each once, and at least one"),
    ("seeds: [2, 1, 2]", ", line 1: seeds: give each once, and at least one"),
    ("seeds:\n- 1\n- -1", ", line 3: a whole number from 0 to 18446744073709551615 is needed, not -1"),
    ("threads: 0", ", line 1: a whole number from 1 to 1024 is needed, not 0"),
    ("threads: 1025", ", line 1: a whole number from 1 to 1024 is needed, not 1025"),
]


def read(folder: Path, text: str) -> Config:
    (folder / "config.yaml").write_text(text, encoding="utf-8")
    return read_config(folder / "config.yaml")


def refused(folder: Path, text: str) -> str:
    """What is said, from behind the file's name on."""
    with pytest.raises(UserError) as error:
        read(folder, text)
    return str(error.value).removeprefix(str(folder / "config.yaml"))


def test_every_mistake_has_its_line(tmp_path: Path) -> None:
    for text, says in WRONG:
        found = refused(tmp_path, text)
        assert found.startswith(says), (text[:60], found)


def test_a_file_that_is_not_there_or_no_text_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    with pytest.raises(UserError, match="config.yaml: cannot be read: No such file or directory$"):
        read_config(file)
    file.write_bytes(b"base: \xff")
    with pytest.raises(UserError, match="config.yaml: cannot be read: not a text file$"):
        read_config(file)


def test_the_most_that_is_not_refused(tmp_path: Path) -> None:
    for name in ("x" * 200, "é" * 100, "...", "a b", "0.20"):
        assert read(tmp_path, f"name: {name}").name == name
    assert read(tmp_path, "threads: 1024").threads == 1024 and read(tmp_path, "threads: 1").threads == 1
    assert read(tmp_path, "seeds: [3, 0]").seeds == [3, 0] and read(tmp_path, "seeds: 1").seeds == [0]
    assert len(read(tmp_path, "seeds: 100000").seeds) == 100_000
    least = read(tmp_path, "\nname: a")
    assert (least.base_line, least.points[0].flags, least.points[0].varied, least.seeds) == (1, {}, (), [0])


def test_as_many_runs_as_may_be_and_one_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configs, "MOST_RUNS", 4)
    two, four = "{lr: [1, 2]}", "{lr: [1, 2], n_epochs: [1, 2]}"
    for fits in (f"grid: {four}", f"grid: {two}\nseeds: 2", f"grid:\n- {two}\n- {two}", "seeds: 4"):
        found = read(tmp_path, fits)
        assert len(found.points) * len(found.seeds) == 4, fits
    for text, says in (
            ("seeds: 1\ngrid: {lr: [1, 2, 3, 4, 5]}", ", line 2: grid: more than 4 combinations"),
            (f"seeds: 1\ngrid:\n- {two}\n- {two}\n- {{lr: [1]}}", ", line 5: grid: more than 4 combinations"),
            (f"grid: {two}\nbase: --model er\nseeds: 3", ", line 2: 2 points of 3 seeds: more than 4 runs"),
            ("seeds: 5", ", line 1: a whole number from 1 to 4 is needed, not 5")):
        assert refused(tmp_path, text) == says


def test_a_flag_that_is_spelled_in_escapes_has_the_line_where_its_text_begins(tmp_path: Path) -> None:
    found = read(tmp_path, 'seeds: 1\nbase: "--\\x6cr 1"\nname: x # --lr\ngrid: {model: [er]} # --lr\n')
    assert found.points[0].flags["--lr"].line == 2
    assert found.points[0].flags["--model"].line == 4 and found.points[0].varied == ("--model",)


def test_the_first_flag_of_a_message_that_the_file_has_is_blamed(tmp_path: Path) -> None:
    found = read(tmp_path, "seeds: 1\nbase:\n  model: er\n  lr: 1")
    flags = found.points[0].flags
    for message, line in (("--nothing, --lr and --model: no", 4), ("--model, --lr: no", 3), ("no --nothing", 2)):
        assert str(found.blame(flags, message)) == f"{tmp_path / 'config.yaml'}, line {line}: {message}"


def test_a_grid_that_contains_itself_is_nested_too_deeply(tmp_path: Path) -> None:
    assert refused(tmp_path, "grid: &a [*a]") == ": nested too deeply"
