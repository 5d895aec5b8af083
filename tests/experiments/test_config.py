"""What a configuration file asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mammoth_sbs.experiments.config import read_config, words
from mammoth_sbs.experiments.runs import resolve
from tests.experiments.conftest import BASE


def test_the_grid_wins_over_the_base(config: Callable[[str], Path]) -> None:
    text = f"base: {BASE} --model er_sbs --sbs-q 0.1 --sbs-s 0.3\ngrid:\n  sbs-q: [0, 0.4]\n  n_epochs: [3]"
    runs = resolve(read_config(config(text)))
    found = [(run.args["sbs_q"], run.args["sbs_s"], run.args["n_epochs"]) for run in runs]
    assert found == [(0, 0.3, 3), (0.4, 0.3, 3)]
    for run in runs:
        typed = run.words()
        assert "0.1" not in typed and typed.count("--sbs-q") == typed.count("--n_epochs") == 1
        assert run.point.varied == ("--sbs-q", "--n_epochs")


def test_points_are_in_the_order_of_the_file_and_seeds_come_first(config: Callable[[str], Path]) -> None:
    text = f"base: {BASE}\ngrid:\n  model: [er_sbs, gem_sbs]\n  sbs-q: [0.4, 0]\nseeds: [7, 3]"
    runs = resolve(read_config(config(text)))
    assert [(run.args["seed"], run.args["model"], run.args["sbs_q"]) for run in runs] == [
        (seed, model, q) for seed in (7, 3) for model in ("er-sbs", "gem-sbs") for q in (0.4, 0)]
    assert runs[1].title == "--model er_sbs --sbs-q 0 --seed 7"
    assert runs[1].command.startswith("mammoth-sbs run --dataset seq-digits ")
    assert runs[1].command.endswith("--model er_sbs --sbs-q 0 --seed 7")


def test_everything_that_a_file_may_say(config: Callable[[str], Path]) -> None:
    file = config("""name: mine
threads: 2
base:
  dataset: seq-digits
  lr_milestones: [3, 5]
  --lr: 0.20
grid:
- model: [er]
- arm:
  - {model: gem, gamma: 0.5}
  - {model: agem}
  buffer_size: [10, 20]
seeds: 3
""")
    found = read_config(file)
    assert (found.path, found.name, found.threads, found.seeds, found.base_line) == (file, "mine", 2, [0, 1, 2], 3)
    base = ["--dataset", "seq-digits", "--lr_milestones", "3", "5", "--lr", "0.20"]  # as typed
    assert [words(point.flags) for point in found.points] == [
        [*base, "--model", "er"],
        [*base, "--model", "gem", "--gamma", "0.5", "--buffer_size", "10"],
        [*base, "--model", "gem", "--gamma", "0.5", "--buffer_size", "20"],
        [*base, "--model", "agem", "--buffer_size", "10"],
        [*base, "--model", "agem", "--buffer_size", "20"]]
    assert [given.line for given in found.points[1].flags.values()] == [4, 5, 6, 10, 10, 12]
    alone = read_config(config("base: >\n  --dataset seq-digits\n  --lr=0.1 --lr_milestones 3 5 --model er"))
    assert (alone.name, alone.threads, alone.seeds) == ("config", 1, [0])
    assert words(alone.points[0].flags) == ["--dataset", "seq-digits", "--lr", "0.1", "--lr_milestones", "3", "5",
                                            "--model", "er"]
    assert [given.line for given in alone.points[0].flags.values()] == [2, 3, 3, 3]
