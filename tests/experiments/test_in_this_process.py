"""Sweeps and their workers with the processes left out: what is started when, what a process's end means."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mammoth_sbs.core.record import Record
from mammoth_sbs.errors import UserError
from mammoth_sbs.experiments import executors, store
from mammoth_sbs.experiments import sweep as sweeps
from mammoth_sbs.experiments.config import read_config
from mammoth_sbs.experiments.executors import local
from mammoth_sbs.experiments.store import Store, read_results
from mammoth_sbs.experiments.worker import Failure, execute, trial
from tests.conftest import digits_read_once
from tests.experiments.conftest import BASE

from datasets.utils import sources

pytestmark = pytest.mark.usefixtures("something_runs")

# ---- one run


def test_one_run_from_its_command_line_to_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_digits", digits_read_once)
    words = f"{BASE} --model er --train_per_class 10 --seed 3 --non_verbose 1 --base_path {tmp_path}".split()
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    found = execute([*words, "--sbs-record", "record.npz"], 2)
    assert threads == [2]
    assert found["args"]["seed"] == 3 and len(found["results"]["task_il"]["matrix"]) == 2 and found["cpu_time"] > 0
    assert found["node"] and not list(tmp_path.rglob("*.json")) and not Path("record.npz").exists()
    (tmp_path / "r.npz").write_bytes(found["record"])
    assert Record(tmp_path / "r.npz").tasks == 2
    assert "record" not in execute(words, 1)


# ---- processes

class Process:
    """One that has ended, or has been asked to."""

    pid = 123456789

    def __init__(self, exitcode: int = 0) -> None:
        self.exitcode, self.joined, self.killed = exitcode, False, False

    def join(self) -> None:
        self.joined = True

    def kill(self) -> None:
        self.killed = True


def a_local(slots: int = 2, threads: int = 1) -> Any:
    made = object.__new__(local.Local)
    made.slots, made.threads = slots, threads
    return made


@pytest.mark.parametrize(("code", "says"), [
    (-signal.SIGKILL, "its process was killed by SIGKILL; if memory is short, give fewer --jobs"),
    (-signal.SIGTERM, "its process was killed by SIGTERM"), (3, "its process ended with code 3"),
    (0, "its process ended with code 0")])
def test_a_process_that_ends_without_a_word(code: int, says: str) -> None:
    receive, send = Pipe(duplex=False)
    send.close()
    process = Process(code)
    assert local.Local._finish(receive, process) == Failure(says) and process.joined  # type: ignore[arg-type]


def answered(given: Any) -> Any:
    receive, send = Pipe(duplex=False)
    send.send(given)
    send.close()
    return receive


def test_one_call_and_its_process_is_gone() -> None:
    made, process, asked = a_local(), Process(), list[Any]()
    made._start = lambda log, function, *args: asked.append((log, function, args)) or (answered(7), process)
    assert made.call(len, "abc") == 7 and process.killed and process.joined
    assert asked == [(Path(os.devnull), len, ("abc",))]


class Machine:
    """Notes what is started; a worker makes its first task's file and answers at once, when it is let go."""

    def __init__(self, executor: Any, place: Store) -> None:
        self.store, self.started, self.executor = place, list[list[str]](), executor
        executor._start = self.start
        executor._inherit = lambda runs: None

    def start(self, log: Path, function: Any, words: list[str], threads: int) -> Any:
        assert function is execute and threads == self.executor.threads
        self.started.append(words)
        if "--shared_first_task" in words:
            file = Path(words[words.index("--shared_first_task") + 1])
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
            Path(f"{file}.points.jsonl").touch()
        return answered({"log": log.name}), Process()


def a_run(name: str, first_task: str | None = None) -> Any:
    return SimpleNamespace(id=name, first_task=first_task, args={},
                           words=lambda more: [name, *(word for pair in more.items() for word in pair)])


def test_as_many_runs_at_a_time_as_there_are_slots(tmp_path: Path) -> None:
    made = a_local(slots=2)
    machine = Machine(made, Store(tmp_path))
    outcomes = made.run([a_run(name) for name in "abcde"], machine.store)
    run, outcome = next(outcomes)
    assert outcome == {"log": f"{run.id}.log"} and [words[0] for words in machine.started] == ["a", "b"]
    assert sorted([run.id, *(run.id for run, _ in outcomes)]) == list("abcde") and len(machine.started) == 5


def test_a_first_task_is_learned_by_one_and_forgotten_after_the_last(tmp_path: Path) -> None:
    made = a_local(slots=3)
    place = Store(tmp_path)
    place.first_tasks.mkdir()
    (place.first_tasks / "other.pt").touch()
    machine = Machine(made, place)
    start, waiting = made._start, []

    def slowly(*args: Any) -> Any:
        """Its file appears when it has answered."""
        answer, process = start(*args)
        file = place.first_tasks / "x.pt"
        if len(machine.started) == 1:
            file.unlink()
            waiting.append(file)
        return answer, process

    made._start = slowly
    outcomes = made.run([a_run("a", "x"), a_run("b", "x"), a_run("c"), a_run("d", "x")], place)
    next(outcomes)
    assert [words[0] for words in machine.started] == ["a", "c"]  # b and d wait for a's first task
    waiting[0].touch()
    for _ in range(3):
        next(outcomes)
        if len(machine.started) < 4:
            assert (place.first_tasks / "x.pt").exists()
    assert sorted(words[0] for words in machine.started) == list("abcd")
    assert machine.started[1] == ["c"] and machine.started[0][1:] == [
        "--shared_first_task", str(place.first_tasks / "x.pt")]
    assert not list(outcomes)
    assert [file.name for file in place.first_tasks.iterdir()] == ["other.pt"]


def test_what_still_runs_when_a_sweep_ends_is_killed_with_all_that_it_started(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(local.os, "killpg", lambda *of: killed.append(of))
    made = a_local(slots=3)
    machine = Machine(made, Store(tmp_path))
    outcomes = made.run([a_run(name) for name in "abc"], machine.store)
    next(outcomes)
    outcomes.close()
    assert killed == [(Process.pid, signal.SIGKILL)] * 2


@pytest.mark.parametrize(("compiled", "kinds", "threads", "inherits"), [
    ("111", "xxx", 1, True), ("11", "xx", 1, False), ("111", "xxx", 2, False), ("000", "xxx", 1, False),
    ("1110", "xxxx", 1, False), ("111111", "xxxyyy", 1, False)])
def test_workers_inherit_a_compiled_network_if_that_is_worth_it(monkeypatch: pytest.MonkeyPatch, compiled: str,
                                                               kinds: str, threads: int, inherits: bool) -> None:
    """More than two runs, all of one kind of network, and no threads, which do not survive a fork."""
    started: list[str] = []
    monkeypatch.setattr(local, "_start_server", started.append)
    runs = [SimpleNamespace(args={"compile": int(on), "backbone": kind, "seed": i}, words=lambda i=i: ["run", str(i)])
            for i, (on, kind) in enumerate(zip(compiled, kinds, strict=True))]
    a_local(threads=threads)._inherit(runs)
    assert started == (['[["run", "0"]]'] if inherits else [])


# ---- where runs execute

def test_which_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "Local", lambda slots, threads: SimpleNamespace(slots=slots, threads=threads))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert [executors.get_executor(threads).slots for threads in (1, 2, 3, 8, 9)] == [8, 4, 2, 1, 1]
    made: Any = executors.get_executor(3, jobs=5)
    assert (made.slots, made.threads) == (5, 3)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert executors.get_executor(1).slots == 1
    with pytest.raises(UserError, match="--gpus-per-run is for a cluster: give --ray too"):
        executors.get_executor(1, gpus_per_run=0.0)
    with pytest.raises(UserError, match="--jobs is for runs on this machine; with --ray"):
        executors.get_executor(1, jobs=1, ray="auto")


# ---- the sweep

class Fake:
    """An executor that answers at once."""

    slots = 4

    def __init__(self, outcome: Callable[[Any], Any], checks: Any = None) -> None:
        self.outcome, self.checks, self.checked, self.ran = outcome, checks, list[int](), list[Any]()

    def call(self, function: Any, *args: Any) -> Any:
        assert function is trial
        self.checked.append(len(args[0]))
        return self.checks(args[0]) if self.checks else [None] * len(args[0])

    def run(self, runs: list[Any], place: Store) -> Any:
        self.ran += runs
        place.first_tasks.mkdir(exist_ok=True)
        yield from ((run, self.outcome(run)) for run in runs)


def result(run: Any) -> dict[str, Any]:
    setting = {"matrix": [[50.0], [50.0, 50.0]], "final": 50.0, "forgetting": 0.0}
    return {"results": {"class_il": setting, "task_il": setting}, "commit": None, "versions": {}, "wall_time": 2.0,
            "cpu_time": 1.0, "node": "here", **({"record": b"bits"} if run.record else {})}


@pytest.fixture
def go(tmp_path: Path) -> Callable[..., Fake]:
    def go(text: str, outcome: Callable[[Any], Any] = result, checks: Any = None, **more: Any) -> Fake:
        (tmp_path / "config.yaml").write_text(text)
        executor = Fake(outcome, checks)
        sweeps.sweep(read_config(tmp_path / "config.yaml"), Store(tmp_path / "out"), executor, **more)
        return executor

    return go


TEXT = f"base: {BASE} --model er_sbs\ngrid: {{sbs-q: [0, 0.2]}}\nseeds: 2"


def test_what_is_finished_is_neither_checked_nor_made_again(go: Callable[..., Fake], tmp_path: Path,
                                                           capsys: pytest.CaptureFixture) -> None:
    first = go(TEXT)
    assert (first.checked, len(first.ran), len(read_results(tmp_path / "out"))) == ([2], 4, 4)
    assert len({run.first_task for run in first.ran}) == 2 and None not in {run.first_task for run in first.ran}
    assert not (tmp_path / "out" / ".first_tasks").exists()
    said = capsys.readouterr()
    assert f"4 of 4 runs finished (0 before): {tmp_path / 'out'}" in said.out and "checking 2 points" in said.err
    again = go(TEXT.replace("0.2]", "0.2, 0.4]").replace("seeds: 2", "seeds: 3"))
    assert (again.checked, len(again.ran)) == ([1], 5)  # of a point that has finished runs nothing can be wrong
    assert "9 of 9 runs finished (4 before)" in capsys.readouterr().out
    assert (go(TEXT).checked, go(TEXT).ran) == ([], [])
    assert {run.first_task for run in go(TEXT.replace("seeds: 2", "seeds: [7]"), no_share=True).ran} == {None}


def test_failures_are_listed_with_their_logs_and_first_tasks_are_kept(go: Callable[..., Fake], tmp_path: Path,
                                                                     capsys: pytest.CaptureFixture) -> None:
    def fails(run: Any) -> Any:
        return Failure("no luck", "what it said" if run.args["seed"] else "") if run.args["sbs_q"] == 0 else result(run)

    with pytest.raises(SystemExit) as end:
        go(TEXT, fails)
    out = capsys.readouterr().out
    (log,) = (tmp_path / "out").glob("*.log")
    assert end.value.code == 1 and log.read_text() == "what it said"
    assert "2 of 4 runs finished (0 before)" in out and "2 failed:\n  --sbs-q 0 --seed 0: no luck\n" in out
    assert f"--sbs-q 0 --seed 1: no luck (log: {log})" in out and (tmp_path / "out" / ".first_tasks").exists()
    assert len(read_results(tmp_path / "out")) == 2


def test_what_is_wrong_is_found_before_the_first_run(go: Callable[..., Fake], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config.yaml, line 2: --sbs-q 0.2: not today"):
        go(TEXT, checks=lambda commands: [None, "--sbs-q 0.2: not today"])
    with pytest.raises(UserError, match=r"config.yaml: the runs could not be checked: its process ended"):
        go(TEXT, checks=lambda _: Failure("its process ended"))
    assert not list((tmp_path / "out").glob("*.json"))


def test_a_run_whose_record_is_gone_is_made_again(go: Callable[..., Fake], tmp_path: Path) -> None:
    text = f"base: {BASE} --model er_sbs --sbs-record 'r/{{id}}.npz'\nseeds: 2"
    assert len(go(text).ran) == 2
    files = sorted((tmp_path / "out" / "r").iterdir())
    files[0].unlink()
    assert [run.id for run in go(text).ran] == [files[0].stem] and go(text).ran == []


def test_a_look_lists_what_there_is_to_do_and_makes_nothing(go: Callable[..., Fake], tmp_path: Path,
                                                           capsys: pytest.CaptureFixture,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "expected_seconds", lambda *_: (3600.0, "by a guess"))
    go(TEXT)
    capsys.readouterr()
    more = go(TEXT.replace("seeds: 2", "seeds: [0, 1, 5]"), look_only=True)
    lines = capsys.readouterr().out.splitlines()
    assert more.ran == [] and more.checked == [2]
    assert [line.split()[0] for line in lines[:6]] == ["finished"] * 4 + ["to", "to"]
    assert f"6 runs in {tmp_path / 'out'}: 4 finished, 2 to do; 2 of them share 1 first tasks" in lines
    assert "expected time: about 0:30:00 with 2 at a time (by a guess)" in lines
    go(TEXT, look_only=True)
    assert capsys.readouterr().out.splitlines()[-1] == f"4 runs in {tmp_path / 'out'}: 4 finished, 0 to do"
    monkeypatch.setattr(sweeps, "expected_seconds", lambda *_: (float("nan"), "why"))
    go(TEXT.replace("seeds: 2", "seeds: [9]"), look_only=True)
    assert "expected time: unknown (why)" in capsys.readouterr().out


def test_results_of_other_code_are_not_gone_on_with(go: Callable[..., Fake], tmp_path: Path) -> None:
    go(TEXT)
    for file in (tmp_path / "out").glob("*.json"):
        file.write_text(file.read_text().replace(store.version(), "0123456789ab-torch1.0"))
    with pytest.raises(UserError, match="holds results of other code"):
        go(TEXT)
    assert go(TEXT, accept=["0123456789ab-torch1.0"]).ran == []
