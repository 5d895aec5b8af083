"""Nothing is lost or doubled by kill -9, and no worker outlives its sweep."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mammoth_sbs.experiments.config import read_config
from mammoth_sbs.experiments.executors.local import Local
from mammoth_sbs.experiments.runs import resolve
from mammoth_sbs.experiments.store import Store
from mammoth_sbs.experiments.worker import Failure
from tests.experiments.conftest import BASE, TWELVE, content, finish, names, start


def of_session(session: int) -> list[int]:
    """The processes of a session but its leader, from /proc; workers come last, as they were started last."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            state, _, _, of = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        if folder.name.isdecimal() and int(of) == session != int(folder.name) and state != "Z":
            found.append(int(folder.name))
    return sorted(found)


def kill(*processes: int) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def assert_gone(process: subprocess.Popen) -> None:
    """All processes of a sweep that was killed end within seconds."""
    process.wait()
    until = time.monotonic() + 10
    while of_session(process.pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not of_session(process.pid), "workers outlived their sweep"


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")


@needs_proc
def test_workers_die_with_their_sweep(config: Callable[[str], Path], tmp_path: Path) -> None:
    """Not after their run, which would take hours here; and no lock stays behind."""
    forever = BASE.replace("--n_epochs 2", "--n_epochs 1000000")
    process = start(config(f"base: {forever} --model er"), tmp_path / "out")
    while not list(tmp_path.glob("out/*.log")) and process.poll() is None:
        time.sleep(0.05)
    assert process.poll() is None, process.communicate()[0]
    kill(process.pid)
    assert_gone(process)
    with Store(tmp_path / "out").locked():
        pass


@needs_proc
def test_kill_at_any_moment_loses_and_doubles_nothing(do: Callable[..., Path], tmp_path: Path) -> None:
    """Killed three times, sweep and workers, it ends with the files of a sweep that nobody disturbed."""
    seed = random.randrange(1000)
    print(f"seed {seed}")
    chance, killed, done = random.Random(seed), tmp_path / "killed", 0
    whole = do(TWELVE, "--jobs", "2", results="whole")
    file = tmp_path / "config.yaml"
    for who in ("the sweep", "all", "a worker, then the sweep"):
        process = start(file, killed, "--jobs", "1")
        done += chance.randint(1, 3)
        while len(list(killed.glob("*.json"))) < done and process.poll() is None:
            time.sleep(0.05)
        time.sleep(chance.random())
        assert process.poll() is None, process.communicate()[0]
        others = of_session(process.pid)
        kill(*{"the sweep": [process.pid], "all": [*others, process.pid],
               "a worker, then the sweep": [others[-1], process.pid]}[who])
        assert_gone(process)
        done = len(list(killed.glob("*.json")))
    assert 3 <= done < 12
    before = {path.name: path.stat().st_mtime_ns for path in killed.glob("*.json")}
    assert f"12 of 12 runs finished ({done} before)" in finish(start(file, killed))
    assert all((killed / name).stat().st_mtime_ns == then for name, then in before.items()), "a run was made twice"
    assert len(content(killed)) == 12
    assert content(killed) == content(whole)
    assert names(killed) == names(whole) == {".lock", *content(killed)}


def test_a_killed_run_is_a_failed_run(config: Callable[[str], Path], tmp_path: Path) -> None:
    store = Store(tmp_path)
    (run,) = resolve(read_config(config(f"base: {BASE.replace('epochs 2', 'epochs 500')} --model er")))
    local = Local(1, 1)
    outcomes = local.run([run], store)
    start = local._start

    def start_and_kill(*args: Any) -> Any:
        answer, process = start(*args)
        assert process.pid
        time.sleep(0.5)
        os.kill(process.pid, signal.SIGKILL)
        return answer, process

    local._start = start_and_kill  # type: ignore[method-assign]
    ((_, outcome),) = outcomes
    assert isinstance(outcome, Failure) and "killed by SIGKILL" in outcome.reason
