"""Finished points in their file, and the search over pairs: each part by itself, without any process."""

from __future__ import annotations

import io
import json
import signal
import sys
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mammoth_sbs.errors import UserError
from mammoth_sbs.tuning import search as searching
from mammoth_sbs.tuning.pairs import Pair, Point
from mammoth_sbs.tuning.search import Journal, fingerprint, processes_for, search

A, B = Point(0.2, 0.0, 60.0, 40.0, 5.0, 7, 1.5), Point(0.0, 0.4, 50.0, 40.0, 6.0, 8, 2.5)


def line(key: str = "k", **changed: Any) -> str:
    entry = {"key": key, **A._asdict(), **changed}
    return json.dumps({**entry, "digest": fingerprint(entry)})


# ---- the file


def test_points_are_read_as_they_were_added_by_their_pairs(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "a" / "b" / "points"), "k")
    assert journal.read() == {}
    journal.add(A)
    journal.add(B)
    assert journal.read() == {(0.2, 0.0): A, (0.0, 0.4): B}
    text = (tmp_path / "a" / "b" / "points").read_text()
    assert text.endswith("\n") and [json.loads(line)["key"] for line in text.splitlines()] == ["k", "k"]


def test_without_a_file_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for nowhere in (None, ""):
        journal = Journal(nowhere, "k")
        journal.add(A)
        assert journal.read() == {}
    assert not list(tmp_path.iterdir())


def test_what_is_no_line_of_this_search_does_not_count(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "points", "k")
    for other in ("{broken", "[1, 2]", "7", "{}", "", line("another search"), line().replace("60.0", "61.0"),
                  json.dumps({"key": "k", **A._asdict()}), line().replace('"key"', '"name"')):
        for lines in ([other, line(q=0.3)], [line(q=0.3), other]):
            (tmp_path / "points").write_text("\n".join(lines) + "\n")
            assert journal.read() == {(0.3, 0.0): A._replace(q=0.3)}, other


def test_of_two_lines_for_a_pair_the_first_counts(tmp_path: Path) -> None:
    (tmp_path / "points").write_text(f"{line(old=1.0)}\n{line(old=2.0)}\n")
    assert Journal(tmp_path / "points", "k").read()[0.2, 0.0].old == 1.0


def test_a_line_of_this_search_that_cannot_be_is_named(tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [({"old": 101.0}, "old"), ({"stored": -1}, "stored"),
                                               ({"colour": 1, "age": 2}, "age, colour")]
    for changed, what in wrong:
        (tmp_path / "points").write_text(f"{line()}\n\n{line(**changed)}\n")
        with pytest.raises(UserError, match=rf"points, line 3: .*{what}.*; take the line out$"):
            Journal(tmp_path / "points", "k").read()


def test_a_line_without_its_seconds_is_named(tmp_path: Path) -> None:
    entry = {key: value for key, value in {"key": "k", **A._asdict()}.items() if key != "seconds"}
    (tmp_path / "points").write_text(json.dumps({**entry, "digest": fingerprint(entry)}))
    with pytest.raises(UserError, match="points, line 1: it has no seconds; take the line out$"):
        Journal(tmp_path / "points", "k").read()


def test_a_file_that_cannot_be_read_is_one_line_and_one_that_cannot_be_written_a_warning(
        tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    journal = Journal(tmp_path, "k")  # a folder
    with pytest.raises(UserError, match="^cannot read the finished points .*: Is a directory$"):
        journal.read()
    journal.add(A)
    assert capsys.readouterr().err == (f"warning: cannot write the finished points {tmp_path}: Is a directory; the "
                                       "search goes on, and will try them again if it is stopped\n")


def test_a_line_is_on_the_disk_when_add_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, synced = tmp_path / "points", []
    monkeypatch.setattr(searching.os, "fsync", lambda handle: synced.append(file.read_text()))
    Journal(file, "k").add(A)
    assert synced == [file.read_text()] and synced[0].endswith("}\n")


def test_a_line_that_was_broken_off_is_ended_first(tmp_path: Path) -> None:
    file = tmp_path / "points"
    for before, kept in (("", ""), ("{}\n", "{}\n"), ("{", "{\n"), ("x", "x\n"), ("ab", "ab\n")):
        file.write_text(before)
        Journal(file, "k").add(A)
        assert file.read_text() == f"{kept}{line()}\n"


def test_a_fingerprint_is_of_the_values_and_their_order() -> None:
    assert len(fingerprint()) == 16
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1}) != fingerprint({"a": 1, "b": 3})
    assert fingerprint(1, 2) != fingerprint(2, 1)
    assert fingerprint(Path("x")) == fingerprint("x")
    one, two = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0])
    assert fingerprint(one) == fingerprint(one.clone().requires_grad_()) != fingerprint(two)
    assert fingerprint(torch.arange(6).view(2, 3).T) != fingerprint(torch.arange(6).view(3, 2))


# ---- the search


class Bar:
    """In place of a progress bar."""

    def __init__(self, **how: Any) -> None:
        self.how, self.told = how, []
        self.set_postfix_str = self.told.append
        self.update = lambda: self.told.append("step")
        self.close = lambda: self.told.append("closed")


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> list[Bar]:
    made: list[Bar] = []
    monkeypatch.setattr(searching, "tqdm", lambda **how: made.append(Bar(**how)) or made[-1])
    clock = iter(range(100, 1000, 10))
    monkeypatch.setattr(searching, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    return made


class Screen(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.isatty = lambda: terminal  # type: ignore[method-assign]


PAIRS: list[Pair] = [(0.0, 0.4), (0.2, 0.0), (0.1, 0.3)]


def trial(q: float, s: float) -> Point:
    return Point(q, s, 50 + 10 * q, 50 + 10 * s, 0, 10, 1)


def test_a_terminal_gets_a_bar_and_a_file_gets_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                    bars: list[Bar]) -> None:
    for terminal, silent in ((False, False), (True, False), (False, True), (True, True)):
        journal = Journal(tmp_path / f"points {terminal} {silent}", "k")
        journal.add(trial(0.2, 0.0))
        screen = Screen(terminal)
        monkeypatch.setattr(sys, "stderr", screen)
        points = search(trial, PAIRS, journal, 0, **({"silent": True} if silent else {}))
        assert points == [trial(*pair) for pair in PAIRS] and journal.read().keys() == set(PAIRS)
        bar = bars.pop()
        assert (bar.how["total"], bar.how["initial"], bar.how["disable"]) == (3, 1, silent or not terminal)
        assert bar.told == ["q 0 s 0.4: 52.0", "step", "q 0.1 s 0.3: 52.0", "step", "closed"]
        assert screen.getvalue().splitlines() == ([] if silent or terminal else [
            "choosing q and s: 2/3 pairs, q 0 s 0.4 scores 52.00, 10 s, about 10 s left",
            "choosing q and s: 3/3 pairs, q 0.1 s 0.3 scores 52.00, 20 s, about 0 s left"])


def test_a_signal_that_somebody_dropped_ends_the_search_after_the_pair(tmp_path: Path,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    def heed() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(searching, "heed", heed)
    journal = Journal(tmp_path / "points", "k")
    with pytest.raises(KeyboardInterrupt):
        search(trial, PAIRS, journal, 0, silent=True)
    assert journal.read().keys() == {PAIRS[0]}


class Process:
    """One that does its work as soon as it is started, in this process."""

    answer: Callable[[Any, Pair], Any]
    at_a_time: list[int]
    ended: list[str]
    alive: int

    def __init__(self, target: Any, args: tuple[Any, Pair, Any], daemon: bool) -> None:
        assert target is searching._child and daemon
        (self.trial, self.pair, self.sender), self.exitcode = args, None

    def start(self) -> None:
        Process.alive += 1
        Process.at_a_time.append(Process.alive)
        if self.pair != (9, 9):  # it dies
            self.sender.send(Process.answer(self.trial, self.pair))

    def join(self) -> None:
        Process.alive -= 1
        self.exitcode = -9 if self.pair == (9, 9) else 0

    def kill(self) -> None:
        Process.ended.append(f"killed {self.pair}")


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Process]]:
    context = SimpleNamespace(Process=Process, Pipe=get_context("fork").Pipe)
    monkeypatch.setattr(searching, "get_context", lambda how: {"fork": context}[how])
    monkeypatch.setattr(searching, "wait", lambda those: wait(those, 5) or pytest.fail("nobody says anything"))
    Process.answer, Process.at_a_time, Process.ended, Process.alive = lambda trial, pair: trial(*pair), [], [], 0
    yield Process


def test_so_many_pairs_at_a_time_in_their_order_and_all_are_waited_for(processes: type[Process]) -> None:
    for most, at_a_time in ((1, [1, 1, 1]), (2, [1, 2, 1]), (5, [1, 2, 3])):
        processes.at_a_time = []
        found = list(searching.side_by_side(trial, PAIRS, most))
        assert sorted(found) == sorted(trial(*pair) for pair in PAIRS)
        assert processes.at_a_time == at_a_time and processes.alive == 0 and not processes.ended
        assert search(trial, PAIRS, Journal(None, ""), most, silent=True) == [trial(*pair) for pair in PAIRS]


def test_what_a_process_raises_is_raised_here_and_the_others_end(processes: type[Process]) -> None:
    processes.answer = lambda trial, pair: UserError("no") if pair == PAIRS[0] else trial(*pair)
    with pytest.raises(UserError, match="^no$"):
        list(searching.side_by_side(trial, PAIRS[:1], 2))
    processes.answer = lambda trial, pair: UserError("no")
    with pytest.raises(UserError, match="^no$"):
        list(searching.side_by_side(trial, PAIRS, 3))
    assert processes.ended == [f"killed {pair}" for pair in PAIRS[1:]]


def test_a_process_that_says_nothing_has_died(processes: type[Process]) -> None:
    with pytest.raises(UserError, match="^a process of the search for q and s ended with code -9; if memory is short"):
        list(searching.side_by_side(trial, [(9, 9)], 1))


class Sender:
    def __init__(self) -> None:
        self.said: list[Any] = []
        self.send = self.said.append


def test_a_child_takes_one_core_ends_with_its_parent_and_says_what_came_out(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    library = SimpleNamespace(prctl=lambda *words: told.append(words))
    monkeypatch.setattr(searching.ctypes, "CDLL", lambda name: {None: library}[name])
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    sender: Any = Sender()
    searching._child(trial, (0.2, 0.1), sender)
    assert sender.said == [trial(0.2, 0.1)] and told == [(1, signal.SIGKILL), 1]  # 1: PR_SET_PDEATHSIG

    def raising(e: BaseException) -> Callable[[float, float], Point]:
        def trial(q: float, s: float) -> Point:
            raise e

        return trial

    searching._child(raising(KeyboardInterrupt()), (0.2, 0.1), sender)
    assert len(sender.said) == 1
    error = UserError("one line")
    searching._child(raising(error), (0.2, 0.1), sender)
    assert sender.said[1] is error
    searching._child(raising(ValueError("what")), (0.2, 0.1), sender)
    said = str(sender.said[2])
    assert isinstance(sender.said[2], RuntimeError) and said.startswith("at q = 0.2, s = 0.1:\nTraceback")
    assert "ValueError: what" in said


def test_processes_are_forked_on_linux_and_where_no_gpu_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    for platform, device, gpu, count in (
            ("linux", "cpu", False, 3), ("linux", "cpu", True, 0), ("linux", "cuda", True, 0),
            ("linux", "meta", False, 0), ("darwin", "cpu", False, 0), ("darwin", "meta", False, 0)):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "platform", platform)
            patch.setattr(torch.cuda, "is_available", lambda gpu=gpu: gpu)
            assert processes_for(torch.device(device)) == count
