"""The search over the grid: processes, stopping and starting again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import pytest

from mammoth_sbs.errors import UserError
from mammoth_sbs.models.flags import GRID
from mammoth_sbs.tuning.pairs import Point, grid
from mammoth_sbs.tuning.search import Journal, search
from tests.conftest import Start
from tests.tuning.conftest import SMALL, learn


def test_processes_change_nothing_but_the_time(start: Start) -> None:
    trials = learn(start("derpp_sbs", f"{SMALL} --n_tasks 2 --sbs-tune-epochs 3"))
    pairs = grid("auto", "auto", (0, 0.4))
    here, forked, two = ([point._replace(seconds=0) for point in search(trials, pairs, Journal(None, ""), n, True)]
                         for n in (0, 1, 2))
    assert here == forked == two
    assert len({point[2:5] for point in here}) > 1  # there is something to tell apart


def a_trial(tried: list, stop_at: int | None = None) -> Callable[[float, float], Point]:
    def trial(q: float, s: float) -> Point:
        if len(tried) == stop_at:
            raise KeyboardInterrupt
        tried.append((q, s))
        return Point(q, s, 50 + q, 50, 0, 10, 1)

    return trial


def test_a_search_that_was_stopped_goes_on_at_the_next_pair(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    pairs, file = grid("auto", "auto", GRID), tmp_path / "points.jsonl"
    tried: list = []
    with pytest.raises(KeyboardInterrupt):
        search(a_trial(tried, stop_at=5), pairs, Journal(file, "a"), 0)
    assert tried == pairs[:5]
    capsys.readouterr()
    points = search(a_trial(tried), pairs, Journal(file, "a"), 0)
    assert tried == pairs  # each once
    assert [point[:2] for point in points] == pairs
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("choosing q and s: 6/13 pairs, q 0.2 s 0.2 scores 50.10")
    assert lines[-1].endswith("about 0 s left")
    assert len(file.read_text().splitlines()) == 13
    search(a_trial(tried), pairs, Journal(file, "another search"), 0, silent=True)
    assert tried == pairs * 2  # what another model scored does not count


@pytest.mark.parametrize("cut", [1, 20, 90])
def test_a_line_that_was_broken_off_neither_counts_nor_spoils_the_next(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "points.jsonl"
    journal = Journal(file, "a")
    for q in (0.0, 0.2):
        journal.add(Point(q, 0, 1, 2, 3, 4, 5))
    file.write_bytes(file.read_bytes()[:-cut])
    whole = {(0.0, 0), (0.2, 0)} if cut == 1 else {(0.0, 0)}  # only the end of the line is missing
    assert journal.read().keys() == whole
    journal.add(Point(0.4, 0, 1, 2, 3, 4, 5))
    assert journal.read().keys() == whole | {(0.4, 0)}


def test_a_child_that_dies_is_reported_in_one_line() -> None:
    def dies(q: float, s: float) -> Point:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    with pytest.raises(UserError, match=r"^a process of the search for q and s ended with code -9.*"):
        search(dies, [(0, 0), (0, 0.2)], Journal(None, ""), 2, silent=True)


def running(folder: Path) -> list[int]:
    """The processes that wrote their number into `folder` and are there still."""
    def alive(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    return [int(file.name) for file in folder.iterdir() if alive(int(file.name))]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_no_process_of_a_search_outlives_it(tmp_path: Path, end: str) -> None:
    """Whether it is killed, or gives up because one of its pairs could not be tried."""

    def trial(q: float, s: float) -> Point:
        (tmp_path / str(os.getpid())).touch()
        if end == "stopped" and q:
            while len(list(tmp_path.iterdir())) < 2:
                time.sleep(0.01)
            raise UserError("no")
        time.sleep(60)
        raise AssertionError

    def searching() -> None:
        search(trial, [(0, 0), (0.2, 0)], Journal(None, ""), 2, silent=True)

    until = time.monotonic() + 30
    if end == "stopped":
        with pytest.raises(UserError, match="^no$"):
            searching()
    else:
        process = get_context("fork").Process(target=searching)
        process.start()
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        assert len(running(tmp_path)) == 2
        process.kill()
        process.join()
    while running(tmp_path) and time.monotonic() < until:
        time.sleep(0.01)
    assert not running(tmp_path)
