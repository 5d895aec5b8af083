"""Sweeps from both sides of their limits: what a result may hold, what a config may ask for, which runs share what."""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mammoth_sbs.errors import UserError
from mammoth_sbs.experiments import schema, store
from mammoth_sbs.experiments import sweep as sweeps
from mammoth_sbs.experiments.config import read_config
from mammoth_sbs.experiments.runs import Run, resolve, share
from mammoth_sbs.experiments.store import Store, differ, is_results, packed
from mammoth_sbs.experiments.worker import Failure, attempt, trial
from mammoth_sbs.values import Unfit
from tests.experiments.conftest import BASE
from tests.experiments.test_store import record

# ---- what a result may hold


def whole() -> dict[str, Any]:
    """A result with the least or the most of everything."""
    made = record(0)
    args = {**made["args"], "model": "er-sbs", "sampler": "speed", "sbs_q": 0.0, "sbs_s": "auto", "buffer_size": 1}
    setting = {"matrix": [[100.0], [0.0, 100.0]], "final": 50.0, "forgetting": 100.0, "backward_transfer": -100.0,
               "average_incremental": 75.0, "forward_transfer": -100.0, "anytime": 100.0, "before_learning": [0.0],
               "untrained": [100.0]}
    point = {"q": 0, "s": 0.99, "old": 0, "rotation": 100, "forgotten": 0, "stored": 0, "seconds": 0}
    task = {"task": 1, "examples": 1, "epochs": 0, "speed_mean": 0, "speed_quartiles": [0, 0.5, 1], "stored": 0,
            "stored_speed_mean": None, "left_out_quick": 0, "left_out_slow": 0, "band": [0, 1],
            "choice": {"q": 0, "s": 0.99, "points": [point]}}
    return {**made, "id": schema.id_of(args, 1), "args": args,
            "results": {"class_il": setting, "task_il": dict(setting)}, "sbs": {"tasks": [task]},
            "volatile": {"wall_time": 0, "command": "x"}, "test": {"class_il": [0], "task_il": [100]}}


def at(place: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(made: dict[str, Any]) -> None:
        *way, last = (int(part) if part.isdecimal() else part for part in place.split("."))
        inside: Any = made
        for part in way:
            inside = inside[part]
        if value is ...:
            del inside[last]
        else:
            inside[last] = value

    return change


OUTSIDE: list[tuple[str, Any, str]] = [
    ("results.task_il.forward_transfer", -100.1, "forward_transfer is -100.1, not a number from -100 to 100"),
    ("results.task_il.forward_transfer", 100.1, "forward_transfer is 100.1, not a number from -100 to 100"),
    ("results.task_il.anytime", 100.1, "anytime is 100.1, not a number from 0 to 100"),
    ("results.task_il.before_learning", [101], r"before_learning\[0\] is 101"),
    ("results.task_il.untrained", [-1], r"untrained\[0\] is -1"),
    ("results.task_il.forgetting", ..., "results.task_il.forgetting is missing"),
    ("results.task_il.average_incremental", 75.1, "average_incremental is 75.1, and its matrix gives 75"),
    ("results.task_il.matrix", [], "results.task_il.matrix is empty"),
    ("sbs.tasks.0.task", 0, r"sbs.tasks\[0\].task is 0, not a whole number of at least 1"),
    ("sbs.tasks.0.examples", 0, "examples is 0, not a whole number of at least 1"),
    ("sbs.tasks.0.epochs", -1, "epochs is -1, not a whole number of at least 0"),
    ("sbs.tasks.0.speed_mean", -0.1, "speed_mean is -0.1, not a number from 0 to 1"),
    ("sbs.tasks.0.speed_quartiles", [0, 1], "speed_quartiles is a list of 2, not of 3"),
    ("sbs.tasks.0.stored", -1, "stored is -1, not"), ("sbs.tasks.0.stored_speed_mean", 1.1, "is 1.1, not a number"),
    ("sbs.tasks.0.left_out_quick", -1, "left_out_quick is -1"), ("sbs.tasks.0.left_out_slow", -1, "slow is -1"),
    ("sbs.tasks.0.band", [0], "band is a list of 1, not of 2"),
    ("sbs.tasks.0.choice.q", 1, "choice.q is 1, not a number of at least 0 and below 1"),
    ("sbs.tasks.0.choice.s", -0.1, "choice.s is -0.1"),
    ("sbs.tasks.0.choice.points.0.q", 1, r"points\[0\].q is 1"), ("sbs.tasks.0.choice.points.0.s", 1, r"\].s is 1"),
    ("sbs.tasks.0.choice.points.0.old", 101, "old is 101"), ("sbs.tasks.0.choice.points.0.stored", -1, "stored is -1"),
    ("sbs.tasks.0.choice.points.0.rotation", -1, "rotation is -1"),
    ("sbs.tasks.0.choice.points.0.forgotten", 101, "forgotten is 101"),
    ("sbs.tasks.0.choice.points.0.seconds", -1, "seconds is -1"),
    ("volatile.wall_time", -1, "wall_time is -1, not a number of at least 0"),
    ("threads", 0, "threads is 0, not a whole number of at least 1"), ("args.buffer_size", 0, "buffer_size is 0"),
    ("args.sbs_q", ..., "args.sbs_q is missing"), ("args.sampler", ..., "args.sampler is missing"),
    ("args.lr", {}, "args.lr is a dict, not the value of a flag"), ("test.task_il", [101], r"task_il\[0\] is 101"),
    ("seed", 1, "seed is 1, and args.seed is 0"), ("id", "0" * 16, "000', which is not that of its arguments"),
    ("results.class_il", {"matrix": [[9.0]], "final": 9.0, "forgetting": 0.0}, "results have 1 and 2 tasks")]


def test_a_result_outside_its_limits_is_named() -> None:
    made = whole()
    schema.check(made)
    for place, value, says in OUTSIDE:
        changed = copy.deepcopy(made)
        at(place, value)(changed)
        with pytest.raises(Unfit, match=says):
            schema.check(changed)


def test_a_stock_method_has_no_sampler_and_rounding_is_no_contradiction() -> None:
    schema.check(record(0))
    made = whole()
    made["results"]["task_il"]["average_incremental"] += 1e-9
    schema.check(made)
    assert schema.digest({"b": 1, "a": 2}) == schema.digest({"a": 2, "b": 1}) != schema.digest({"a": 1, "b": 2})
    assert len(schema.digest(1)) == 16 and schema.id_of({}, 1) != schema.id_of({}, 2)


def test_results_contradict_each_other_in_what_both_know() -> None:
    assert not differ({"a": 1, "b": 2}, {"a": 1, "c": 3}) and differ({"a": 1}, {"a": 2})
    assert differ({"a": {"x": [1]}, "b": 1}, {"a": {"x": [2]}, "b": 1}) and not differ([1, 2], [1, 2])
    assert differ({"a": 1}, [1])


def test_where_results_are(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    packed(tmp_path / "b").touch()
    (tmp_path / "c.txt").touch()
    found = {name: is_results(tmp_path / name) for name in ("a", "b", "b.jsonl", "c.txt", "d")}
    assert found == {"a": True, "b": True, "b.jsonl": True, "c.txt": False, "d": False}


# ---- the folder

def test_one_sweep_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "WAIT_FOR_LOCK", 0.0)
    naps = [0] * 9
    monkeypatch.setattr(store.time, "sleep", lambda _: naps.pop())
    one = Store(tmp_path / "out")
    one.check()  # nothing was locked
    with one.locked():
        one.check()
        with pytest.raises(UserError, match="out: another sweep is writing there; wait for it"), \
                Store(tmp_path / "out").locked():
            pass
    with Store(tmp_path / "out").locked():
        pass


def test_a_folder_that_was_removed_is_noticed_and_not_made_anew(tmp_path: Path) -> None:
    import shutil

    one = Store(tmp_path / "out")
    with one.locked():
        shutil.rmtree(one.folder)
        one.first_tasks.mkdir(parents=True)  # as a worker may have done
        with pytest.raises(UserError, match="out: was removed while the sweep was running"):
            one.check()
        assert not one.folder.exists()
        one.folder.mkdir()
        (one.folder / ".lock").touch()  # another sweep's
        with pytest.raises(UserError, match="was removed while the sweep was running"):
            one.check()


def test_a_folder_with_nothing_but_its_lock_is_removed(tmp_path: Path) -> None:
    one = Store(tmp_path / "out")
    with one.locked():
        (one.folder / "notes.txt").touch()
        one.remove_if_empty()
        assert one.folder.exists()
        (one.folder / "notes.txt").unlink()
        one.remove_if_empty()
    assert not one.folder.exists()


def test_a_record_is_written_before_the_result_that_names_it(tmp_path: Path) -> None:
    one = Store(tmp_path)
    made = {**record(1), **dict.fromkeys(("commit", "versions", "wall_time", "cpu_time", "node"), 1.0)}
    one.log(made["id"]).write_text("what it said")
    one.save(made["id"], "a command", made["args"], 3, {**made, "record": b"bits", "threads": 1}, "records/x.npz")
    saved = json.loads((tmp_path / f"{made['id']}.json").read_text())
    assert (tmp_path / "records" / "x.npz").read_bytes() == b"bits" and saved["sbs_record"] == "records/x.npz"
    assert not one.log(made["id"]).exists()
    assert {"commit", "versions", "wall_time", "cpu_time", "node", "command", "finished"} == set(saved["volatile"])
    assert saved["volatile"]["command"] == "a command" and saved["args"] == made["args"]
    assert not {"command", "record", "wall_time", "node"} & set(saved)


def test_what_has_no_room_is_saved_elsewhere_and_ends_the_sweep(tmp_path: Path,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "records").write_text("in the way")
    monkeypatch.chdir(tmp_path)
    made = {**record(1), **dict.fromkeys(("commit", "versions", "wall_time", "cpu_time", "node"), 1.0), "record": b"b"}
    with pytest.raises(UserError, match=r"it is saved as .*x.npz; move it there, make room, and start the same sweep"):
        Store(tmp_path).save(made["id"], "x", made["args"], 1, made, "records/x.npz")
    assert (tmp_path / "x.npz").read_bytes() == b"b"


# ---- what a config may ask for

ASKED_FOR: list[tuple[str, str | None]] = [
    ("seeds: 100000", None), ("seeds: 100001", "a whole number from 1 to 100000"), ("seeds: 1", None),
    ("seeds: 0", "a whole number from 1 to 100000 is needed, not 0"), ("seeds: []", "give each once, and at least one"),
    (f"seeds: [0, {2**64 - 1}]", None), ("threads: 1024", None), ("threads: 1025", "from 1 to 1024"),
    ("threads: 0", "from 1 to 1024"), (f"name: {'x' * 200}", None), (f"name: {'x' * 201}", "it names a folder"),
    ("name: a/b", "it names a folder"), ("name: .", "it names a folder"), ('name: "a\\tb"', "it names a folder"),
    ("name: ...", None), ("grid: {lr: [1, 2]}\nseeds: 50000", None),
    ("grid: {lr: [1, 2]}\nseeds: 50001", "2 points of 50001 seeds: more than 100000 runs"),
    (f"grid: {{lr: [{', '.join(['1'] * 317)}], n_epochs: [{', '.join(['1'] * 316)}]}}", "100000 combinations"),
    ("name: [a]", "a single value is needed here"), ("name:", "a single value is needed here"),
    ("grid: []", "should be `key: value` lines"), ("grid: {lr: [[1, 2], 3]}", None)]


def test_the_least_and_the_most_that_a_config_may_ask_for(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    for text, says in ASKED_FOR:
        file.write_text(f"base: --model er --dataset seq-digits\n{text}")
        if says is None:
            found = read_config(file)
            assert len(found.points) * len(found.seeds) <= 100_000, text
        else:
            with pytest.raises(UserError, match=r"config.yaml, line \d: .*" + says):
                read_config(file)


def test_a_line_that_goes_over_several_blames_the_flags_own_line(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("name: x\nbase: >\n  --lr_later 1\n  --lr 2 --model er\n  --lr-milestones=3\n")
    flags = read_config(file).points[0].flags
    assert {name: flag.line for name, flag in flags.items()} == {"--lr_later": 3, "--lr": 4, "--model": 4,
                                                                "--lr_milestones": 5}
    assert flags["--lr_milestones"].values == ("3",)
    error = read_config(file).blame(flags, "argument --lr: no")
    assert str(error) == f"{file}, line 4: argument --lr: no"
    assert str(read_config(file).blame(flags, "of --nothing")) == f"{file}, line 2: of --nothing"


# ---- which runs share their first task

def runs_of(tmp_path: Path, text: str) -> list[Run]:
    (tmp_path / "config.yaml").write_text(text)
    return resolve(read_config(tmp_path / "config.yaml"))


def test_runs_share_a_first_task_if_they_differ_only_in_what_comes_after(tmp_path: Path) -> None:
    def first(flags: str = "", model: str = "er_sbs", more: str = "") -> str | None:
        return runs_of(tmp_path, f"base: {BASE} --model {model} {flags}\n{more}")[0].first_task

    usual = first()
    assert usual and len(usual) == 16
    for alike in ("--sbs-q 0 --sbs-s 0.4", "--sampler herding", "--sbs-score loss", "--sbs-q auto --sbs-tune each",
                  "--lr_later 0.1", "--second_task rotations"):
        assert first(alike) == usual, alike
    others = [first("--sbs-score margin"), first("--eval_epochs 1"), first("--eval_steps 2"), first("--optim_wd 0.1"),
              first(model="agem_sbs"), first(more="seeds: [1]"), first(more="threads: 2")]
    assert None not in others and len({usual, *others}) == 8
    for none in ("--sbs-during stock", "--sampler stream-speed", "--sampler stream_reservoir", "--sbs-record x.npz"):
        assert first(none) is None, none
    assert first(model="er") is None  # a stock method has used its buffer in the first task
    assert first("--sbs-score margin") != first("--sbs-score el2n")


def test_a_first_task_is_worth_a_file_if_several_wait_for_it_or_it_is_there(tmp_path: Path) -> None:
    a, b, c = (replace(run, first_task=name) for run, name in zip(
        runs_of(tmp_path, f"base: {BASE} --model er\nseeds: 3"), ("x", "x", "y"), strict=True))
    place = Store(tmp_path / "out")
    assert [run.first_task for run in share([a, b, c], place)] == ["x", "x", None]
    place.first_tasks.mkdir(parents=True)
    (place.first_tasks / "y.pt").touch()
    assert [run.first_task for run in share([a, c], place)] == [None, "y"]


def test_the_files_of_a_run_have_its_id_in_their_names(tmp_path: Path) -> None:
    base = f"base: {BASE} --model er_sbs"
    one, other = runs_of(tmp_path, f"{base} --sbs-record records/{{id}}.npz --ckpt_name c-{{id}}\nseeds: 2")
    assert one.record == f"records/{one.id}.npz" != other.record
    words = one.words({"--disable_log": "1"})
    assert words[words.index("--ckpt_name") + 1] == f"c-{one.id}"
    assert words[words.index("--sbs-record") + 1] == "record.npz"  # it comes back with the result
    assert words[-2:] == ["--disable_log", "1"] and words[words.index("--seed") + 1] == "0"
    assert Path(words[words.index("--base_path") + 1]).is_absolute()
    assert f"c-{other.id}" in other.command and "{id}" not in other.command and other.command.endswith("--seed 1")
    alone = runs_of(tmp_path, f"{base} --sbs-record x.npz")
    assert alone[0].record == "x.npz" and runs_of(tmp_path, base)[0].record is None
    with pytest.raises(UserError, match="--ckpt_name: all runs would write the same file; put {id} into its name"):
        runs_of(tmp_path, f"{base} --ckpt_name c\nseeds: 2")


def test_runs_that_are_the_same_are_one(tmp_path: Path) -> None:
    assert len(runs_of(tmp_path, f"base: {BASE} --model er\ngrid:\n  optim_wd: [0, 0.0, 0.1]")) == 2


# ---- workers

def test_a_failure_says_why_and_its_output_goes_to_the_log(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    def fine(x: int) -> int:
        print("said")
        print("complained", file=sys.stderr)
        return x + 1

    def wrong(error: BaseException) -> None:
        raise error

    log = tmp_path / "a.log"
    with capfd.disabled():
        streams = sys.stdout, sys.stderr
        assert attempt(log, fine, 4) == 5 and sorted(log.read_text().splitlines()) == ["complained", "said"]
        assert attempt(log, wrong, UserError("no such thing")) == Failure("no such thing")
        assert log.read_text() == "error: no such thing\n"
        assert attempt(log, wrong, ValueError("a\nb")) == Failure("b") and "Traceback" in log.read_text()
        assert attempt(tmp_path / "nowhere" / "a.log", fine, 1) == 2
        assert (sys.stdout, sys.stderr) == streams
    os.write(1, b"here again\n")
    assert capfd.readouterr().out == "here again\n"


def test_command_lines_are_tried_without_training(tmp_path: Path) -> None:
    good = f"{BASE} --model er --base_path {tmp_path} --seed 0".split()
    found = trial([good, [*good, "--nothing", "1"], good])
    assert found[0] is found[2] is None and "unknown flag --nothing" in str(found[1])


# ---- how long it will take

def asked(calls: list[Any]) -> Any:
    """An executor that says what a run's first task and the rest take."""
    return SimpleNamespace(slots=2, call=lambda _, words, threads: calls.append(threads) or (10.0, 5.0))


def test_a_first_task_that_is_shared_is_counted_once(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"base: {BASE} --model er_sbs\ngrid:\n  sbs-q: [0, 0.2, 0.4]\nthreads: 3")
    runs, calls = resolve(read_config(config)), list[Any]()
    assert sweeps.expected_seconds(runs, read_config(config), asked(calls), {}) == (
        10 + 3 * 5, "from a few steps of each kind of run")
    assert calls == [3]  # they are of one kind
    apart = [replace(run, first_task=None) for run in runs]
    assert sweeps.expected_seconds(apart, read_config(config), asked([]), {})[0] == 3 * 15
    finished = {"a": {"args": runs[0].args, "volatile": {"wall_time": 40.0}},
                "b": {"args": {**runs[0].args, "seed": 5}, "volatile": {"wall_time": 60.0}}}
    assert sweeps.expected_seconds(runs[1:], read_config(config), asked(calls), finished) == (
        100.0, "from the finished runs")
    failing = SimpleNamespace(call=lambda *_: Failure("no"))
    seconds, why = sweeps.expected_seconds(runs, read_config(config), failing, {})  # type: ignore[arg-type]
    assert seconds != seconds and why.endswith(": no")
