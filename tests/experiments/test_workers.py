"""Workers and where they are started, with stand-ins for processes, the host and the cluster."""

from __future__ import annotations

import os
import signal
import stat
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import mammoth_sbs
from mammoth_sbs import models
from mammoth_sbs.errors import UserError
from mammoth_sbs.experiments import executors, worker
from mammoth_sbs.experiments.executors import local
from mammoth_sbs.experiments.store import Store
from mammoth_sbs.experiments.worker import THREAD_LIMITS, Failure, attempt, execute, trial
from tests.experiments.test_in_this_process import Machine, a_local, a_run

pytestmark = pytest.mark.usefixtures("something_runs")

# ---- what a worker does


def test_output_goes_to_the_log_and_descriptors_are_as_before(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    def now() -> list[tuple[int, int]]:
        return [(os.fstat(fd).st_dev, os.fstat(fd).st_ino) for fd in (1, 2)]

    def speak(*fds: int) -> None:
        for fd in fds:
            os.write(fd, b"%d " % fd)

    before, streams, opened = now(), (sys.stdout, sys.stderr), len(os.listdir("/dev/fd"))
    assert before[0] != before[1]
    log = tmp_path / "a.log"
    assert attempt(log, speak, 1, 2) is None and attempt(tmp_path / "nowhere" / "a", speak, 1, 2) is None
    assert now() == before and (sys.stdout, sys.stderr) == streams and len(os.listdir("/dev/fd")) == opened
    assert log.read_text() == "1 2 " and not log.stat().st_mode & (stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    attempt(log, speak, 2)
    assert log.read_text() == "2 "  # only what was said last
    speak(1, 2)
    assert capfd.readouterr() == ("1 ", "2 ")


def test_both_streams_outlive_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steadied: list[Any] = []
    monkeypatch.setattr(worker, "steady", lambda stream, fd: steadied.append((stream, fd)) or stream)
    streams = sys.stdout, sys.stderr
    assert attempt(tmp_path / "a.log", lambda: (sys.stdout, sys.stderr)) == streams
    assert steadied == [(streams[0], 1), (streams[1], 2)]


def test_a_failure_is_the_last_line_of_its_reason(tmp_path: Path) -> None:
    def wrong(error: BaseException) -> None:
        raise error

    log = tmp_path / "a.log"
    for error, says in ((UserError("a line"), "a line"), (ValueError("a\nb"), "b"), (SystemExit(3), "SystemExit: 3")):
        assert attempt(log, wrong, error) == Failure(says)


class Host:
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def parse_args(self, words: list[str]) -> list[str]:
        if "--bad" in words:
            raise UserError("--bad: it is")
        return words

    def initialize(self, args: Any, must_compile: bool = False) -> tuple:
        return "model", args, must_compile

    def train(self, *of: Any) -> dict[str, Any]:
        self.asked.append(of)
        if "--sbs-record" in of[1]:
            Path(of[1][of[1].index("--sbs-record") + 1]).write_bytes(b"bits")
        return {"results": 1}

    def check_places(self, *of: Any) -> None:
        self.asked.append(of)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host()
    monkeypatch.setattr(models, "load_host", lambda: made)
    return made


def test_a_run_and_what_comes_back(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    clock = iter([5.0, 7.5, 1.0, 1.0])
    monkeypatch.setattr(worker, "time", SimpleNamespace(process_time=lambda: next(clock)))
    words = ["--model", "er", "--sbs-record", "record.npz", "--seed", "3"]
    found = execute(words, 6)
    assert {key: found[key] for key in ("results", "cpu_time", "record")} == {
        "results": 1, "cpu_time": 2.5, "record": b"bits"} and found["node"] and threads == [6]
    ((_, typed, must_compile),) = host.asked
    assert must_compile and typed[:3] == words[:3] and typed[4:] == ["--seed", "3", "--disable_log", "1"]
    assert Path(typed[3]).name == "record.npz" and not Path(typed[3]).parent.exists()  # nothing is left
    assert "record" not in execute(["--model", "er"], 1) and host.asked[1][1] == ["--model", "er", "--disable_log", "1"]


def test_what_is_wrong_with_each_command_line(host: Host) -> None:
    assert trial([["--a", "1"], ["--bad", "1"], ["--b", "2"]]) == [None, "--bad: it is", None]
    assert host.asked == [("model", [*words, "--disable_log", "1"], True) for words in (["--a", "1"], ["--b", "2"])]


# ---- the life of a process

def test_a_worker_answers_and_dies_with_its_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[Any] = []
    monkeypatch.setattr(local.os, "setpgrp", lambda: notes.append("own group"))
    monkeypatch.setattr(local.multiprocessing, "parent_process", lambda: SimpleNamespace(sentinel=77))
    monkeypatch.setattr(local.threading, "Thread", lambda target, args, daemon: SimpleNamespace(
        start=lambda: notes.append((target, args))))
    monkeypatch.setattr(local, "attempt", lambda log, function, *args: notes.append(log) or function(*args))
    local._child(SimpleNamespace(send=notes.append), tmp_path, max, (3, 4))  # type: ignore[arg-type]
    assert notes == ["own group", (local._die_after, (77,)), tmp_path, 4]
    notes.clear()
    monkeypatch.setattr(local, "wait", lambda of: notes.append(of))
    monkeypatch.setattr(local.os, "killpg", lambda *of: notes.append(of))
    local._die_after(77)
    assert notes == [[77], (0, signal.SIGKILL)]


def test_the_server_starts_in_a_folder_of_its_own_with_what_workers_inherit(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[Any] = []

    @contextmanager
    def folder() -> Any:
        yield tmp_path / "partial"
        notes.append("folder is gone")

    def running() -> None:
        notes.append((local.tempfile.tempdir, os.environ.get(local.COMPILED)))
        if len(notes) > 9:
            raise OSError

    monkeypatch.setattr(local, "partial_folder", folder)
    monkeypatch.setattr(local, "forkserver", SimpleNamespace(
        ensure_running=running, _forkserver=SimpleNamespace(_stop=lambda: notes.append("stopped"))))
    monkeypatch.setattr(local, "Finalize", lambda of, call, exitpriority: notes.append((of, call, exitpriority < -100)))
    monkeypatch.setattr(local.tempfile, "tempdir", "before")
    monkeypatch.delenv(local.COMPILED, raising=False)
    monkeypatch.setattr(local, "_holds", [])
    for compiled, says in (("", [(str(tmp_path / "partial"), None)]),
                           ("[x]", ["stopped", (str(tmp_path / "partial"), "[x]")]),
                           ("", ["stopped", (str(tmp_path / "partial"), None)])):  # nothing is left for the next sweep
        notes.clear()
        local._start_server(compiled)
        local._start_server(compiled)  # it is there
        *begin, (of, close, late) = notes
        assert begin == says and of is None and late  # after what multiprocessing itself does at the end
        assert local.tempfile.tempdir == "before" and local.COMPILED not in os.environ
        close()
        assert notes[-1] == "folder is gone"
    notes[:] = [0] * 9
    with pytest.raises(OSError):
        local._start_server("[x]")
    assert not local._holds
    assert local.tempfile.tempdir == "before" and local.COMPILED not in os.environ


def test_what_workers_find_in_their_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    package, notes = str(Path(mammoth_sbs.__file__).resolve().parent.parent), list[Any]()
    monkeypatch.setattr(local, "_start_server", lambda *of: notes.append("started"))
    monkeypatch.setattr(local.multiprocessing, "get_context", lambda kind: SimpleNamespace(
        kind=kind, set_forkserver_preload=notes.append))
    for name in THREAD_LIMITS:
        monkeypatch.setenv(name, "9")
    for known, says in ((None, package), ("/a", f"{package}{os.pathsep}/a"), (package, package),
                        (f"/a{os.pathsep}{package}", f"/a{os.pathsep}{package}")):
        monkeypatch.setenv("PYTHONPATH", known or "")
        if known is None:
            monkeypatch.delenv("PYTHONPATH")
        notes.clear()
        made: Any = local.Local(5, 3)
        assert (made.slots, made.threads, made.context.kind) == (5, 3, "forkserver")
        assert os.environ["PYTHONPATH"] == says and {os.environ[name] for name in THREAD_LIMITS} == {"3"}
        assert notes == [["mammoth_sbs.experiments.executors.preload"], "started"]


def test_a_process_is_started_with_the_end_of_a_pipe_that_is_then_its_own(tmp_path: Path) -> None:
    notes: list[Any] = []
    send = SimpleNamespace(close=lambda: notes.append("closed"))
    made = a_local()
    made.context = SimpleNamespace(
        Pipe=lambda duplex: notes.append(duplex) or ("receive", send),
        Process=lambda target, args: SimpleNamespace(start=lambda: notes.append((target, args))))
    answer, process = made._start(tmp_path, max, 3, 4)
    assert answer == "receive" and process.start
    assert notes == [False, (local._child, (send, tmp_path, max, (3, 4))), "closed"]


# ---- which runs are started when

def test_runs_whose_first_task_is_there_start_together(tmp_path: Path) -> None:
    made, place = a_local(slots=3), Store(tmp_path)
    machine = Machine(made, place)
    place.first_tasks.mkdir()
    (place.first_tasks / "x.pt").touch()
    inherits: list[Any] = []
    made._inherit = inherits.append
    runs = [a_run(name, "x") for name in "abc"]
    outcomes = made.run(runs, place)
    next(outcomes)
    assert [words[0] for words in machine.started] == ["a", "b", "c"] and inherits == [runs]
    assert len(list(outcomes)) == 2 and not list(place.first_tasks.iterdir())


def test_a_first_task_is_kept_while_somebody_waits_for_it_and_no_longer(tmp_path: Path) -> None:
    made, place = a_local(slots=1), Store(tmp_path)
    place.first_tasks.mkdir()
    machine, there = Machine(made, place), dict[str, set[str]]()
    start = made._start

    def look(log: Path, function: Any, words: list[str], threads: int) -> Any:
        there[words[0]] = {file.name for file in place.first_tasks.glob("*.pt")}
        return start(log, function, words, threads)

    made._start = look
    order = [run.id for run, _ in made.run([a_run("a", "x"), a_run("b", "x"), a_run("c", "y"), a_run("d")], place)]
    assert order == list("abcd") and len(machine.started) == 4
    assert there == {"a": set(), "b": {"x.pt"}, "c": set(), "d": set()} and not list(place.first_tasks.iterdir())


def test_a_process_that_is_gone_already_need_not_be_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []

    def gone(group: int, _: int) -> None:
        killed.append(group)
        raise ProcessLookupError

    monkeypatch.setattr(local.os, "killpg", gone)
    made = a_local(slots=3)
    outcomes = made.run([a_run(name) for name in "abc"], Machine(made, Store(tmp_path)).store)
    next(outcomes)
    outcomes.close()
    assert len(killed) == 2


def test_a_cluster_or_the_cores_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mammoth_sbs.experiments.executors.cluster",
                        SimpleNamespace(Cluster=lambda *of: of))  # type: ignore[arg-type]
    for gpus, says in ((None, 0.0), (0.0, 0.0), (0.5, 0.5)):
        cluster: Any = executors.get_executor(3, ray="auto", gpus_per_run=gpus)
        assert cluster == ("auto", 3, says)
    monkeypatch.setattr(local, "Local", lambda slots, threads: SimpleNamespace(slots=slots, threads=threads))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(os, "sched_getaffinity", {0: {1, 4, 5, 7}}.__getitem__, raising=False)  # of this process
    assert executors.get_executor(2).slots == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    for cores, slots in ((6, 3), (1, 1), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        assert executors.get_executor(2).slots == slots
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert executors.get_executor(1).slots == 1
