"""Sweeps: nothing lost or doubled by kill -9, first tasks shared without a trace in the numbers, errors by line."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mammoth_sbs.commands import sweep as sweep_command
from mammoth_sbs.errors import UserError
from mammoth_sbs.experiments import store as store_module
from mammoth_sbs.experiments.config import read_config
from mammoth_sbs.experiments.executors.local import Local
from mammoth_sbs.experiments.runs import resolve, share
from mammoth_sbs.experiments.store import Store, read_results, version
from mammoth_sbs.experiments.worker import Failure
from tests.conftest import REPO, STOCK, mammoth_main

BASE = "--dataset seq-digits --n_tasks 2 --n_epochs 2 --buffer_size 50 --lr 0.05"
TWELVE = f"""
base: {BASE} --n_tasks 5
grid:
  model: [er_sbs, agem_sbs]
  point: ["{{sbs-q: 0.2, sbs-s: 0.2}}", "{{sampler: herding}}"]
seeds: 3
""".replace("--n_tasks 2 ", "").replace('"', "")


@pytest.fixture
def config(tmp_path: Path) -> Callable[[str], Path]:
    """A config file with this text."""

    def write(text: str) -> Path:
        file = tmp_path / "config.yaml"
        file.write_text(text)
        return file

    return write


@pytest.fixture
def do(config: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    """Sweep in this process; returns the result folder."""

    def do(text: str, *flags: str, results: str = "out") -> Path:
        sweep_command.main([str(config(text)), "--results", str(tmp_path / results), *flags])
        return tmp_path / results

    return do


def content(folder: Path) -> dict[str, Any]:
    """All result files, but for what stands under `volatile`."""
    records = {file.name: json.loads(file.read_text()) for file in folder.glob("*.json")}
    for record in records.values():
        del record["volatile"]
    return records


def names(folder: Path) -> set[str]:
    """Every file and folder there."""
    return {path.name for path in folder.iterdir()}


def start(config: Path, results: Path, *flags: str) -> subprocess.Popen:
    """A sweep in a process of its own."""
    command = [sys.executable, "-m", "mammoth_sbs", "sweep", str(config), "--results", str(results), *flags]
    return subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            start_new_session=True)


def finish(process: subprocess.Popen) -> str:
    """Its output, once it has ended well."""
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 0, output
    return output


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


def test_a_shared_first_task_leaves_no_trace_in_the_numbers(do: Callable[..., Path]) -> None:
    text = f"""
base: {BASE} --debug_mode 1
grid:
  model: [{', '.join(f'{name}_sbs' for name in STOCK)}]
  point: [{{sbs-q: 0, sbs-s: 0.4}}, {{sampler: max-entropy}}]
"""
    runs = len(STOCK) * 2
    shared, scratch = do(text, results="shared"), do(text, "--no-share", results="scratch")
    assert len(content(shared)) == runs
    assert content(shared) == content(scratch)


def test_a_first_task_is_trained_once_and_removed_after_its_last_run(config: Callable[[str], Path],
                                                                    tmp_path: Path) -> None:
    text = f"{{base: {BASE} --model er_sbs, grid: {{sbs-q: [0, 0.2, 0.4]}}}}"
    store = Store(tmp_path / "out")
    store.folder.mkdir()
    runs = share(resolve(read_config(config(text))), store)
    outcomes = Local(2, 1).run(runs, store)
    assert isinstance(next(outcomes)[1], dict)
    (file,) = store.first_tasks.iterdir()
    trained = file.stat().st_mtime_ns
    assert isinstance(next(outcomes)[1], dict)
    assert file.stat().st_mtime_ns == trained
    assert isinstance(next(outcomes)[1], dict)
    assert not list(outcomes) and not file.exists()


def test_who_shares_a_first_task(config: Callable[[str], Path]) -> None:
    """Points and samplers do; stock methods, those that insert as stock, and other methods, seeds and flags do not."""

    def groups(grid: str, seeds: int = 1, base: str = BASE) -> list[str | None]:
        return [run.first_task for run in resolve(read_config(config(
            f"{{base: {base}, grid: {grid}, seeds: {seeds}}}")))]

    points = groups("{model: [er_sbs], point: [{sbs-q: 0}, {sbs-s: 0}, {sampler: uniform}, {sampler: gss}]}")
    assert len(points) == 4 and len(set(points)) == 1 and points[0]
    assert groups("{model: [er, agem]}") == [None, None]
    assert groups("{model: [er_sbs], sbs-during: [stock]}") == [None]
    assert groups("{model: [er_sbs], sbs-record: ['{id}.npz']}") == [None]
    assert len(set(groups("{model: [er_sbs, rpc_sbs], lr: [0.1, 0.2]}", 2, BASE.replace("--lr 0.05", "")))) == 8


def test_a_result_is_that_of_its_command(do: Callable[..., Path], tmp_path: Path) -> None:
    folder = do(f"{{base: {BASE} --model er_sbs, grid: {{sbs-q: [0.4, 0]}}, seeds: [3, 4]}}")
    records = read_results(folder).values()
    assert len({json.dumps(record["results"]) for record in records}) == 4
    for record in records:
        words = record["volatile"]["command"].removeprefix("python main.py ").split()
        mammoth_main.main(mammoth_main.parse_args([*words, "--base_path", str(tmp_path / record["id"])]))
        (file,) = (tmp_path / record["id"]).rglob("*.json")
        assert json.loads(file.read_text())["results"] == record["results"]


def test_the_data_may_lie_elsewhere(do: Callable[..., Path], config: Callable[[str], Path], tmp_path: Path) -> None:
    text = f"{{base: {BASE} --model er --base_path nowhere}}"
    (run,) = resolve(read_config(config(text)))
    folder = do(text, "--base_path", str(tmp_path / "data"))
    record = read_results(folder)[run.id]  # the same run, wherever its data is
    assert f"--base_path {tmp_path / 'data'}" in record["volatile"]["command"]


def test_more_seeds_and_points_continue(do: Callable[..., Path], capfd: pytest.CaptureFixture) -> None:
    text = f"{{base: {BASE} --model er, grid: {{minibatch_size: [8]}}, seeds: 1}}"
    first = content(do(text))
    folder = do(text.replace("seeds: 1", "seeds: [0, 5]").replace("[8]", "[8, 16]"))
    assert len(content(folder)) == 4
    assert first.items() <= content(folder).items()
    out = capfd.readouterr()
    assert "4 of 4 runs finished (1 before)" in out.out
    assert re.search(r"^4/4 runs, 0:00:\d\d so far, about 0:00:00 left: --minibatch_size 16 --seed 5 finished", out.err,
                     re.M)


def test_a_failing_run_leaves_its_log_and_the_others_go_on(do: Callable[..., Path], tmp_path: Path,
                                                          capfd: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as end:
        do(f"{{base: {BASE.replace('--lr 0.05', '')} --model er, grid: {{lr: [0.05, 1.0e+30, 0.06]}}}}")
    assert end.value.code == 1
    out = capfd.readouterr().out
    (log,) = (tmp_path / "out").glob("*.log")
    assert "2 of 3 runs finished" in out and "1 failed:\n  --lr 1.0e+30 --seed 0: the loss became" in out
    assert str(log) in out and "the loss became" in log.read_text()
    assert len(content(tmp_path / "out")) == 2


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


def test_dry_run_lists_the_runs_and_the_time(do: Callable[..., Path], capfd: pytest.CaptureFixture) -> None:
    text = f"{{base: {BASE} --model er_sbs, grid: {{sbs-q: [0, auto]}}, seeds: 2}}"
    folder = do(text, "--dry-run", "--jobs", "2")
    out = capfd.readouterr().out
    assert len(re.findall(r"^to do     [0-9a-f]{16}  --sbs-q (0|auto) --seed [01]$", out, re.M)) == 4
    assert "0 finished, 4 to do; 4 of them share 2 first tasks" in out
    assert re.search(r"expected time: about 0:00:\d\d with 2 at a time \(from a few steps of each kind of run\)", out)
    assert not folder.exists()
    do(text.replace("seeds: 2", "seeds: 1").replace(", auto", ""))
    do(text, "--dry-run")
    out = capfd.readouterr().out
    assert len(re.findall(r"^finished  [0-9a-f]{16}", out, re.M)) == 1 and "1 finished, 3 to do" in out
    assert "(from the finished runs)" in out


def test_the_expected_time_is_that_of_all_steps_and_evaluations_of_the_whole_data(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that moves by a second whenever it is read, a step and a batch of test images take one each."""
    from mammoth_sbs.experiments import worker

    ticks = itertools.count()
    monkeypatch.setattr(worker, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    words = ["--model", "er", *f"{BASE} --batch_size 16 --seed 0".split()]
    first, rest = worker.calibrate(words, 1)
    dataset = mammoth_main.initialize(mammoth_main.parse_args(words))[1]
    dataset.get_data_loaders()
    steps = [len(dataset.train_loader)]
    batch, tested = len(next(iter(dataset.test_loaders[0]))[0]), len(dataset.test_loaders[0].dataset)
    dataset.get_data_loaders()
    steps.append(len(dataset.train_loader))
    assert min(steps) > 10  # more than were made
    assert first == 2 * steps[0]
    build, per_image = 1, 1 / batch
    assert rest == pytest.approx(build + 2 * steps[1] + per_image * tested * (1 + 2))


def test_files_of_a_run_have_its_name(do: Callable[..., Path], tmp_path: Path) -> None:
    record = tmp_path / "{id}.npz"
    folder = do(f"base: {BASE} --model er_sbs --sbs-record '{record}'\nseeds: 2")
    assert {path.stem for path in tmp_path.glob("*.npz")} == {path.stem for path in folder.glob("*.json")}


def test_results_of_other_code_are_told_apart(do: Callable[..., Path], capfd: pytest.CaptureFixture) -> None:
    text = f"{{base: {BASE} --model er, seeds: 2}}"
    folder = do(text)
    file = next(folder.glob("*.json"))
    file.write_text(file.read_text().replace(version(), "0123456789ab-torch1.0"))
    with pytest.raises(UserError, match=r"out: holds results of other code: .*1 of 0123456789ab-torch1\.0.*"
                                        r"--accept-version 0123456789ab-torch1\.0"):
        do(text.replace("2", "3"))
    with pytest.raises(UserError, match="holds results of other code: 1 of .*, 1 of "):
        read_results(folder)
    assert len(read_results(folder, {version(), "0123456789ab-torch1.0"})) == 2
    capfd.readouterr()
    do(text, "--accept-version", "0123456789ab-torch1.0")
    assert "2 of 2 runs finished (2 before)" in capfd.readouterr().out
    file.write_text("{")
    with pytest.raises(UserError, match=f"{file}: not JSON; move it away"):
        do(text)


def test_what_changes_the_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that a run executes does; the sweep's own code and what else lies about do not."""
    monkeypatch.setattr(store_module.mammoth_sbs, "__file__", str(tmp_path / "__init__.py"))

    def after(file: str) -> str:
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
        return version.__wrapped__()

    first = version.__wrapped__()
    assert after("experiments/new.py") == after("commands/new.py") == after("core/x.pyc") == first
    second = after("core/samplers/new.py")
    assert len({first, second, after("vendor/mammoth/models/config/er.yaml")}) == 3


BAD = [
    (f"grid: {{}}\nbase: {BASE} --model er --nepochs 1", r"line 2: unknown flag --nepochs; did you mean --n_epochs\?"),
    ("base:\n  dataset: seq-digits\n  model: er\n  lr: much\n  buffer_size: 9", r"line 4: argument --lr: .*much"),
    ("base: >\n  --dataset seq-digits --model er\n  --lr 1\n  --bufer_size 9", "line 4: unknown flag --bufer_size"),
    (f"base: {BASE}\ngrid:\n  model: [er,\n    err]\n", "line 4: --model err: not known"),
    (f"base: {BASE}\ngrid:\n  arm:\n  - {{model: er}}\n  - {{model: er, sbs-q: 0.2}}", "line 5: unknown flag --sbs-q"),
    (f"base: {BASE} --model er_sbs\ngrid:\n  sampler: [speed, sped]", "line 3: --sampler: there is no sampler `sped`"),
    (f"base: {BASE} --model er_sbs\ngrid:\n  sbs-q: [0.2, 20]", r"line 3: .*--sbs-q .*; did you mean 0\.2\?"),
    (f"base: {BASE} --model er_sbs\ngrid:\n  sbs-q: [0.2]\n  sbs-s: [0.9]", "line 3: --sbs-q, --sbs-s: "),
    ("base:\n  dataset: seq-digits\n  model: er\n  lr: 1\n  buffer_size: 9\n  n_tasks: 3", "line 6: --n_tasks 3 does"),
    (f"base: {BASE}", "line 1: --model is missing"),
    (f"base: {BASE} --model er --seed 1", "line 1: --seed does not belong here: give the seeds under `seeds:`"),
    (f"base: {BASE} --lr 2", "line 1: --lr is given twice"),
    (f"base: {BASE}\ngrid: {{model: [er], arm: [{{model: gem}}]}}", "line 2: --model is in two axes of the grid"),
    (f"base: {BASE}\ngrid:\n  model: er", r"line 3: model: a list is needed in a grid, such as \[a, b\]"),
    (f"base: {BASE}\ngrid:\n  model:\n", "line 3: model: a list is needed"),
    (f"base: {BASE}\ngrids:\n  model: [er]", r"line 2: unknown key grids; did you mean grid\?"),
    (f"base: {BASE}\nbase: --lr 2", "line 2: base is given twice, first in line 1"),
    (f"base: {BASE} --model er\nseeds: -1", "line 2: a whole number from 1 is needed, not -1"),
    (f"base: {BASE} --model er\nseeds: [1, 1]", "line 2: seeds: give each once"),
    (f"base: {BASE} --model er_sbs --sbs-record x.npz\nseeds: 2", "line 1: --sbs-record: all runs would"),
    (f"base: {BASE} --model er --savecheck last\nseeds: 2", "line 1: --savecheck: give --ckpt_name too"),
    ("base: [1, 2", "line 1: not YAML: "),
    ("base: er --lr 1", "line 1: a command line of flags is needed; er comes before any flag"),
    ("", ": empty; it needs `base:`"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_a_bad_config_fails_before_the_first_run(text: str, message: str, do: Callable[..., Path],
                                                 tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"^error: [^\n]*config.yaml(, )?{message}[^\n]*$"):
        do(text)
    assert not list(tmp_path.rglob("*.json")) and not list(tmp_path.rglob("*.log"))


GOOD = f"base: {BASE} --model er"


@pytest.mark.parametrize(("flags", "message"), [
    (["--jobs", "0"], "--jobs 0: at least 1"),
    (["--gpus-per-run", "1"], "--gpus-per-run: .*together with --ray"),
    (["--ray", "auto", "--jobs", "2"], "--jobs is for runs on this machine"),
    (["--job", "2"], "unrecognized arguments: --job 2; see mammoth-sbs sweep --help"),
])
def test_a_bad_command_line(flags: list[str], message: str, do: Callable[..., Path]) -> None:
    with pytest.raises(UserError, match=f"^error: {message}"):
        do(GOOD, *flags)


def test_a_config_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere.yaml: cannot be read: No such file"):
        sweep_command.main([str(tmp_path / "nowhere.yaml")])


def test_sweeps_are_for_the_embedded_host(do: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAMMOTH_ROOT", "somewhere")
    with pytest.raises(UserError, match="MAMMOTH_ROOT is set"):
        do(GOOD)


def test_a_folder_that_cannot_be_written(do: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="--results .*file/out: cannot be written: Not a directory"):
        do(GOOD, results="file/out")


def test_two_sweeps_on_one_folder(do: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "WAIT_FOR_LOCK", 0.2)
    (tmp_path / "out").mkdir()
    with open(tmp_path / "out" / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="--results .*out: another sweep is writing there"):
            do(GOOD)
    do(GOOD)


def test_without_ray(do: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"--ray: Ray is not installed; pip install 'mammoth-sbs\[ray\]'"):
        do(GOOD, "--ray", "auto")


def test_a_ray_address_that_does_not_answer(do: Callable[..., Path]) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'mammoth-sbs[ray]'")
    begin = time.monotonic()
    with pytest.raises(UserError, match="--ray 127.0.0.1:1: no Ray cluster answers there"):
        do(GOOD, "--ray", "127.0.0.1:1")
    assert time.monotonic() - begin < 30


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Two nodes with one CPU each. Ray takes 127.0.0.1 for the machine's outer address; other loopbacks it leaves."""
    utils = pytest.importorskip("ray.cluster_utils", reason="Ray is not installed: pip install 'mammoth-sbs[ray]'")
    cluster = utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "node_ip_address": "127.0.0.2"})
    cluster.second = cluster.add_node(num_cpus=1, node_ip_address="127.0.0.3")
    yield cluster
    cluster.shutdown()


def test_on_ray_with_a_node_that_dies(cluster: Any, config: Callable[[str], Path], do: Callable[..., Path],
                                      tmp_path: Path) -> None:
    """Its runs are made again on the other node: the files of a sweep on this machine."""
    file, results = config(TWELVE), tmp_path / "ray"
    process = start(file, results, "--ray", cluster.address)
    while len(list(results.glob("*.json"))) < 4 and process.poll() is None:
        time.sleep(0.05)
    assert process.poll() is None, process.communicate()[0]
    cluster.remove_node(cluster.second, allow_graceful=False)
    assert len(list(results.glob("*.json"))) < 12
    assert "12 of 12 runs finished (0 before)" in finish(process)
    local = do(TWELVE, results="local")
    assert content(results) == content(local)
    assert names(results) == names(local)
