"""Runs and sweeps with a stand-in for the host: which runs there are, what is checked, executed, kept and listed."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mammoth_sbs.errors import UserError
from mammoth_sbs.experiments import runs as runs_module
from mammoth_sbs.experiments import sweep as sweeps
from mammoth_sbs.experiments.config import Config, Point, read_config, words
from mammoth_sbs.experiments.runs import Run, resolve
from mammoth_sbs.experiments.schema import id_of
from mammoth_sbs.experiments.store import Store, read_results
from mammoth_sbs.experiments.worker import Failure
from tests.experiments.test_in_this_process import Fake, result

USUAL = {"dataset": "d", "base_path": "data/", "command": "run", "loadcheck": None, "start_from": None, "lr": "1",
         "sbs_record": None, "eval_epochs": None, "num_workers": "3", "started": "now", "device": "cpu"}


def parse_args(typed: list[str]) -> Namespace:
    """`--a-b value` is a_b."""
    given = {flag[2:].replace("-", "_"): value for flag, value in zip(typed[::2], typed[1::2], strict=True)}
    if given.get("lr") == "much":
        raise UserError("argument --lr: no number")
    return Namespace(**USUAL | given)


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Run]]:
    """The runs that a config asks for."""
    monkeypatch.setattr(runs_module, "version", lambda: "v")
    monkeypatch.setattr(runs_module, "load_host", lambda: SimpleNamespace(parse_args=parse_args,
                                                                          OF_THE_START={"started"}))

    def asked(text: str, embedded: bool = True) -> list[Run]:
        monkeypatch.setattr(runs_module.host, "is_embedded", lambda: embedded)
        (tmp_path / "config.yaml").write_text(text)
        return resolve(read_config(tmp_path / "config.yaml"))

    return asked


# ---- runs

def test_a_run_is_known_by_what_changes_its_numbers(asked: Callable[..., list[Run]]) -> None:
    (one,) = asked("base: --model er --base_path a --device x\nthreads: 2")
    (other,) = asked("base: --model er --base_path b --device y --num_workers 7\nthreads: 2")
    assert one.id == other.id == id_of(one.args, 2) and one.args == other.args
    assert set(one.args) == {"model", "dataset", "loadcheck", "start_from", "lr", "seed", "started"}
    assert one.args["seed"] == 0 and one.base_path == "a" and one.record is None
    assert len({run.id for run in asked("base: --model er\ngrid: {lr: [1, 2]}\nseeds: [3, 4]")}) == 4
    assert len(asked("base: --model er\ngrid: {device: [x, y]}")) == 1


def test_runs_on_another_host_are_other_runs(asked: Callable[..., list[Run]]) -> None:
    here, there, more = (asked(f"base: --model er-sbs {flags}", embedded)[0] for flags, embedded in (
        ("", True), ("", False), ("--num_workers 2", False)))
    assert there.args == {**{key: here.args[key] for key in here.args if key != "started"}, "host": "mammoth",
                          "num_workers": "0"}
    assert more.args["num_workers"] == "2" and len({here.id, there.id, more.id}) == 3
    assert words(there.point.flags) == ["--model", "er-sbs", "--num_workers", "0"]
    assert there.point.flags["--num_workers"].line == 1
    assert here.first_task and there.first_task is None
    assert "--num_workers" not in here.words()


def test_a_flag_that_the_host_refuses_is_blamed(asked: Callable[..., list[Run]]) -> None:
    with pytest.raises(UserError, match=r"config.yaml, line 3: argument --lr: no number$"):
        asked("base: --model er\ngrid:\n  lr: [1, much]")


def test_who_shares_a_first_task(asked: Callable[..., list[Run]]) -> None:
    def first(flags: str = "", model: str = "er-sbs", more: str = "") -> str | None:
        return asked(f"base: --model {model} {flags}\n{more}")[0].first_task

    usual = first()
    assert usual and len(usual) == 16
    for same in ("--sbs-q 0", "--sampler herding", "--sbs-score loss", "--device x"):
        assert first(same) == usual, same
    assert first("--sbs-during closed")
    others = [first("--sbs-score margin"), first("--sbs-score el2n"), first("--eval_epochs 1"), first("--lr 2"),
              first("--eval_steps 2"), first(more="seeds: [1]"), first(more="threads: 2"), first(model="gem-sbs")]
    assert None not in others and len({usual, *others}) == 9
    for none in ("--sbs-during stock", "--sampler stream-speed", "--sampler stream_reservoir", "--sbs-record r.npz",
                 "--loadcheck x", "--start_from 2"):
        assert first(none) is None, none
    assert first(model="er") is None


def test_the_words_of_a_run(asked: Callable[..., list[Run]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAMMOTH_SBS_PROGRAM", "train")
    monkeypatch.setattr(runs_module.host, "way_in", lambda: "")
    one, other = asked("base: --model er --sbs-record 'r/{id}.npz' --ckpt_name 'c {id}'\n"
                       f"grid: {{base_path: [{tmp_path}]}}\nseeds: [5, 6]")
    assert one.words() == ["--model", "er", "--sbs-record", "record.npz", "--ckpt_name", f"c {one.id}",
                           "--base_path", str(tmp_path), "--seed", "5"]
    assert one.words({"--a": "b"}) == [*one.words(), "--a", "b"] and one.record == f"r/{one.id}.npz" != other.record
    assert one.title == f"--base_path {tmp_path} --seed 5"
    assert other.command == (f"train --model er --sbs-record r/{other.id}.npz --ckpt_name 'c {other.id}' "
                             f"--base_path {tmp_path} --seed 6")
    for flag in ("--sbs-record", "--ckpt_name"):
        with pytest.raises(UserError, match=f"line 1: {flag}: all runs would write the same file; put {{id}} into"):
            asked(f"base: --model er {flag} x\nseeds: 2")
        assert len(asked(f"base: --model er {flag} x")) == 1


# ---- sweeps

def made(points: int, seeds: int, first_task: str | None = None, record: str | None = None) -> list[Run]:
    """So many runs, without a config."""
    found = []
    at = [Point({}, ()) for _ in range(points)]
    for seed in range(seeds):
        for n, point in enumerate(at):
            args = {"model": "er", "dataset": "d", "seed": seed, "n": n + 1}
            found.append(Run(id_of(args, 1), point, args, "data", first_task, record))
    return found


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Fake]:
    """A sweep of these runs; looks, when a run ends, whether the folder is locked."""
    monkeypatch.setattr(sweeps, "prepare", lambda config, runs: None)

    def go(runs: list[Run], outcome: Callable[[Any], Any] = result, **more: Any) -> Fake:
        monkeypatch.setattr(sweeps, "resolve", lambda config: runs)
        store = Store(tmp_path / "out")

        def end(run: Any) -> Any:
            assert store.lock >= 0
            return outcome(run)

        executor = Fake(end)
        sweeps.sweep(Config(tmp_path / "c.yaml", "c", [], [0], 1, 1), store, executor, **more)
        return executor

    return go


def test_only_what_is_not_finished_is_checked_and_executed(go: Callable[..., Fake], tmp_path: Path,
                                                          capsys: pytest.CaptureFixture) -> None:
    first = go(made(2, 1, "x"))
    assert (first.checked, len(first.ran), len(read_results(tmp_path / "out"))) == ([2], 2, 2)
    assert {run.first_task for run in first.ran} == {"x"} and not (tmp_path / "out" / ".first_tasks").exists()
    said = capsys.readouterr()
    assert said.out == f"2 of 2 runs finished (0 before): {tmp_path / 'out'}\n"
    assert said.err.startswith("checking 2 points of the grid\n1/2 runs, ") and "\n2/2 runs, " in said.err
    again = go([*made(2, 1), *made(3, 3)[3:]])
    assert (again.checked, len(again.ran)) == ([3], 6)  # points of other sweeps' runs are other points
    assert capsys.readouterr().out.startswith("8 of 8 runs finished (2 before)")
    grown = made(2, 4)
    more = go(grown)
    assert (more.checked, len(more.ran)) == ([], 2)  # of a point that has finished runs nothing can be wrong
    said = capsys.readouterr()
    assert "7/8 runs" in said.err and "8/8 runs" in said.err and "checking" not in said.err
    assert go(grown).ran == []
    assert {run.first_task for run in go(made(1, 6, "y"), no_share=True).ran} == {None}


def test_a_run_without_its_record_is_not_finished(go: Callable[..., Fake], tmp_path: Path) -> None:
    runs = made(1, 2, record="r.npz")
    assert len(go(runs).ran) == 2 and go(runs).ran == []
    (tmp_path / "out" / "r.npz").unlink()
    assert len(go(runs).ran) == 2
    (tmp_path / "out" / "r.npz").unlink()
    assert len(go([*made(1, 3)[2:], *runs]).ran) == 3  # also one that was never made


def test_what_failed_is_listed_with_its_log(go: Callable[..., Fake], tmp_path: Path,
                                            capsys: pytest.CaptureFixture) -> None:
    runs = made(1, 4, "x")
    logs = [Store(tmp_path / "out").log(run.id) for run in runs]
    logs[2].mkdir(parents=True)  # where nothing can be written

    def fails(run: Any) -> Any:
        return {0: Failure("no luck"), 1: Failure("no", "why"), 2: Failure("nor", "here")}.get(
            run.args["seed"], result(run))

    with pytest.raises(SystemExit) as end:
        go(runs, fails)
    said = capsys.readouterr()
    assert end.value.code == 1 and logs[1].read_text() == "why"
    assert said.out == (f"1 of 4 runs finished (0 before): {tmp_path / 'out'}\n3 failed:\n  --seed 0: no luck\n"
                        f"  --seed 1: no (log: {logs[1]})\n  --seed 2: nor (log: {logs[2]})\n")
    assert "--seed 0 failed (no luck)\n" in said.err and said.err.endswith("--seed 3 finished\n")
    assert (tmp_path / "out" / ".first_tasks").exists()


def test_a_folder_that_goes_and_a_signal_that_came_end_a_sweep(go: Callable[..., Fake], tmp_path: Path,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    def removes(run: Any) -> Any:
        shutil.rmtree(tmp_path / "out")
        return Failure("no")

    with pytest.raises(UserError, match="was removed while the sweep was running"):
        go(made(1, 1), removes)

    def came() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sweeps, "heed", came)
    with pytest.raises(KeyboardInterrupt):
        go(made(1, 2))
    assert len(read_results(tmp_path / "out")) == 1


def test_a_look_at_what_there_is_to_do(go: Callable[..., Fake], tmp_path: Path, capsys: pytest.CaptureFixture,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "expected_seconds", lambda todo, *_: (3600.0 * len(todo), "by a guess"))
    out, runs = tmp_path / "out", made(2, 2, "x")
    go(runs[:1])
    capsys.readouterr()
    look = go(runs, look_only=True)
    assert look.ran == [] and look.checked == [2] and not list(out.glob(".first*"))
    lines = capsys.readouterr().out.splitlines()
    assert lines == [*(f"{state}  {run.id}  --seed {run.args['seed']}" for run, state in zip(
        runs, ("finished", "to do   ", "to do   ", "to do   "), strict=True)), "",
        f"4 runs in {out}: 1 finished, 3 to do; 3 of them share 1 first tasks",
        "expected time: about 1:00:00 with 3 at a time (by a guess)"]
    go([*runs[:1], *made(1, 6)[5:]], look_only=True)
    assert capsys.readouterr().out.splitlines()[-2:] == [
        f"2 runs in {out}: 1 finished, 1 to do", "expected time: about 1:00:00 with 1 at a time (by a guess)"]
    assert go(runs[:1], look_only=True).checked == []
    assert capsys.readouterr().out.splitlines()[-1] == f"1 runs in {out}: 1 finished, 0 to do"


def test_features_of_frozen_trunks_are_computed_before_any_worker_wants_them(tmp_path: Path,
                                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[Any] = []

    def prepare(args: Any) -> Any:
        if args[-1] == "13":
            raise UserError("--frozen: not today")
        prepared.append(args[-1])
        return SimpleNamespace(used=lambda: np.arange(5),
                               turned=lambda turns, some: prepared.append((turns, len(some))))

    monkeypatch.setattr(sweeps, "load_host", lambda: SimpleNamespace(parse_args=lambda it: it, prepare=prepare))

    def run(seed: int, **args: Any) -> Any:
        return SimpleNamespace(args=args, words=lambda: ["--seed", str(seed)], point=Point({}, ()))

    config = Config(tmp_path / "c.yaml", "c", [], [0], 1, 7)
    turned = [(1, 0), (2, 0), (3, 0)]  # the rotation task's, of no image yet
    for args, says in (({}, []), ({"frozen": 0, "sbs_q": "auto"}, []), ({"frozen": 1}, ["4"]),
                       ({"frozen": 1, "sbs_q": 0.2, "sbs_s": 0.2}, ["4"]),
                       ({"frozen": 1, "sbs_q": "auto", "sbs_s": 0.2}, ["4", *turned]),
                       ({"frozen": 1, "sbs_q": 0.2, "sbs_s": "rule"}, ["4", *turned])):
        prepared.clear()
        sweeps.prepare(config, [run(4, **args)])
        assert prepared == says, args
    with pytest.raises(UserError, match="c.yaml, line 7: --frozen: not today"):
        sweeps.prepare(config, [run(13, frozen=1)])


def test_every_point_is_prepared_and_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(sweeps, "prepare", lambda *of: given.append(of))
    config, runs = Config(tmp_path / "c.yaml", "c", [], [0], 1, 7), made(2, 2)
    executor = Fake(result, lambda commands: [None] * (len(commands) - 1) + ["wrong"])
    with pytest.raises(UserError, match="c.yaml, line 7: wrong"):
        sweeps.check(config, runs, executor)
    ((first, points),) = given
    assert first is config and len(points) == 2 and executor.checked == [2]
    sweeps.check(config, [], executor)
    assert executor.checked == [2]
