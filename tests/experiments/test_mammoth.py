"""Sweeps, searches and records on a user's own Mammoth: on a stand-in always, on the real one if there is one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mammoth_sbs import host
from mammoth_sbs.commands import sweep as sweep_command
from mammoth_sbs.core.record import Record
from mammoth_sbs.errors import UserError
from mammoth_sbs.experiments.executors.cluster import Cluster
from mammoth_sbs.experiments.store import read_results
from mammoth_sbs.few import per_class
from mammoth_sbs.figures.results import load
from mammoth_sbs.host.data import export
from mammoth_sbs.host.real import by_flag, few_of
from tests.conftest import MAMMOTH_ROOT, REPO
from tests.experiments.conftest import content
from tests.host.contract.small_runs import write_cifar
from tests.host.stand_in import make_checkout

BASE = "--dataset seq-digits --n_tasks 2 --n_epochs 2 --buffer_size 50 --lr 0.05"
BOTH = f"{{base: {BASE}, grid: {{model: [er, er_sbs]}}, seeds: 2}}"
BAD = {  # config: what is said of it
    "base:\n  dataset: seq-digits\n  model: er\n  lr: 0.1\n  buffer_size: 9\n  lr_later: 0.1\n":
        "bad.yaml, line 6: --lr_later: Mammoth has no such flag here; leave it out, or unset MAMMOTH_ROOT",
    "base:\n  dataset: seq-digits\n  model: er\n  lr: 0.1\n  buffer_size: 9\n  n_tasks: 3\n":
        "bad.yaml, line 6: --n_tasks 3 does not divide the 10 classes of seq-digits",
    "base:\n  dataset: seq-digits\n  n_tasks: none\n  model: er\n":
        "bad.yaml, line 3: argument --n_tasks: a whole number of at least 1 is needed, not none",
    "base: --model sgd_sbs --dataset seq-digits --lr 1\n":
        "bad.yaml, line 1: --model sgd_sbs: sgd cannot be wrapped: it has no buffer; mammoth-sbs doctor lists which"}
LATER = """
import json, sys
from pathlib import Path
from mammoth_sbs.commands import run, sweep, tune
from mammoth_sbs.errors import UserError

def refused(words):
    try:
        sweep.main(words)
    except UserError as e:
        return str(e)

if __name__ == "__main__":
    bad, words = json.loads(sys.argv[1]), json.loads(sys.argv[2])
    said = {"mixed": refused(["both.yaml", "--results", "here"])}
    for i, text in enumerate(bad):
        Path("bad.yaml").write_text(text)
        said[str(i)] = refused(["bad.yaml", "--results", "none"])
    run.main([*words, "--base_path", "hand", "--non_verbose", "1", "--sbs-record", "hand.npz"])
    tune.main("--model er_sbs --dataset seq-digits --n_tasks 2 --n_epochs 2 --buffer_size 50 --sbs-grid 0 .4 "
              "--sbs-s 0 --out tuned".split())
    Path("said.json").write_text(json.dumps(said))
"""


def call(root: Path, folder: Path, *words: str) -> str:
    """Python in `folder`, with this Mammoth; what it printed."""
    env = {**os.environ, "PYTHONPATH": str(REPO), "MAMMOTH_ROOT": str(root)}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A stand-in; a folder with its results in `there` and the embedded host's in `here`; what was said then, and in a
    second process about what should not work."""
    folder = tmp_path_factory.mktemp("mammoth")
    root = make_checkout(folder / "checkout")
    (folder / "both.yaml").write_text(BOTH)
    said = call(root, folder, "-m", "mammoth_sbs", "sweep", "both.yaml", "--results", "there")
    sweep_command.main([str(folder / "both.yaml"), "--results", str(folder / "here"), "--base_path", str(folder)])
    er = next(r for r in read_results(folder / "there").values() if r["args"]["model"] == "er" and r["seed"] == 1)
    (folder / "later.py").write_text(LATER)
    words = er["volatile"]["command"].split("mammoth-sbs run ")[1].split()
    later = call(root, folder, "later.py", json.dumps(list(BAD)), json.dumps(words))
    return SimpleNamespace(root=root, folder=folder, said=said, er=er, later=later,
                           refused=json.loads((folder / "said.json").read_text()))


def test_a_result_says_which_host_and_commit(swept: SimpleNamespace) -> None:
    records = read_results(swept.folder / "there").values()
    assert len(records) == 4
    assert "4/4 runs" in swept.said and "4 of 4 runs finished (0 before): there" in swept.said
    for record in records:
        commit = record["version"].partition("-mammoth-files.")[2]
        assert len(commit) == 12 and record["args"]["host"] == "mammoth"
        assert record["volatile"]["versions"]["host"] == f"Mammoth files.{commit}"
        assert record["volatile"]["versions"]["threads"] == "1"  # not the number that Mammoth sets for itself
        assert record["volatile"]["command"].startswith("MAMMOTH_ROOT=/path/to/mammoth mammoth-sbs run --dataset seq-d")
        assert [len(row) for row in record["results"]["class_il"]["matrix"]] == [1, 2]  # --n_tasks is a configuration
        assert not {"conf_jobnum", "command", "base_path"} & set(record["args"])
        assert ("sbs" in record) == record["args"]["model"].endswith("sbs")
    assert not list(swept.root.rglob("*.json")) and not list(swept.root.rglob("logs.pyd"))


def test_the_same_run_by_hand_gives_the_same_and_leaves_a_file(swept: SimpleNamespace) -> None:
    """With a record, of a stock method too."""
    (file,) = (swept.folder / "hand").rglob("*.json")
    found = json.loads(file.read_text())
    assert found["results"] == swept.er["results"] and found["versions"]["host"].startswith("Mammoth files.")
    assert Record(swept.folder / "hand.npz").tasks == 2


def test_hosts_do_not_mix_by_accident(swept: SimpleNamespace) -> None:
    there, here = (read_results(swept.folder / name) for name in ("there", "here"))
    assert len(here) == 4 and not there.keys() & here.keys()
    assert swept.refused["mixed"].startswith("here: holds results of other code: 4 of ")
    with pytest.raises(UserError, match="holds results of other code"):
        load([swept.folder / "there", swept.folder / "here"])


def test_what_mammoth_lacks_is_refused_with_its_line(swept: SimpleNamespace) -> None:
    for i, says in enumerate(BAD.values()):
        assert says in (swept.refused[str(i)] or "nothing"), swept.refused
    assert not (swept.folder / "none").exists()


def test_tune_chooses_there(swept: SimpleNamespace) -> None:
    found = json.loads((swept.folder / "tuned" / "tune.json").read_text())
    assert [(point["q"], point["s"]) for point in found["points"]] == [(0.0, 0.0), (0.4, 0.0)]
    assert found["command"].startswith("MAMMOTH_ROOT=/path/to/mammoth mammoth-sbs tune")
    assert f"flags to paste: {found['flags']}" in swept.later
    assert len((swept.folder / "tuned" / "first_task.pt.points.jsonl").read_text().splitlines()) == 2


def test_a_checkout_that_was_changed_is_other_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data set that was taken out, as must be offline, is no change."""
    for name in ("main.py", "models/er.py", "datasets/far.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("# theirs\n")
    monkeypatch.setattr(host, "commit", host.commit.__wrapped__)
    loose = host.commit(tmp_path)
    assert loose.startswith("files.")
    (tmp_path / "models" / "er.py").write_text("# changed\n")
    assert host.commit(tmp_path) not in (loose, None)
    for words in (("init", "-q"), ("add", "-A"), ("-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "t")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    clean = host.commit(tmp_path)
    (tmp_path / "datasets" / "far.py").unlink()
    assert host.commit(tmp_path) == clean and len(clean) == 12
    (tmp_path / "models" / "er.py").write_text("# changed again\n")
    assert host.commit(tmp_path).startswith(f"{clean}.")


def test_a_cluster_is_told_where_mammoth_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a node refuses to run with another one (`_run`): the version names its commit."""
    told: dict[str, Any] = {}
    ray = SimpleNamespace(init=lambda **given: told.update(given), cluster_resources=lambda: {"CPU": 2.0})
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setenv("RAY_py_gcs_connect_timeout_s", "5")
    for root, found in (("there", str(Path("there").absolute())), (None, None)):
        monkeypatch.setenv("MAMMOTH_ROOT", root) if root else monkeypatch.delenv("MAMMOTH_ROOT")
        assert Cluster("auto", 1, 0).slots == 2
        assert told["runtime_env"]["env_vars"].get("MAMMOTH_ROOT") == found


def test_on_a_cluster_the_runs_are_the_same(swept: SimpleNamespace, cluster: Any) -> None:
    """Stock and ours, on Mammoth at the same place of every node."""
    said = call(swept.root, swept.folder, "-m", "mammoth_sbs", "sweep", "both.yaml", "--results", "ray", "--ray",
                cluster.address)
    assert "4 of 4 runs finished (0 before): ray" in said
    assert content(swept.folder / "ray") == content(swept.folder / "there")


def test_few_images_are_those_of_the_embedded_host() -> None:
    labels = np.arange(60) % 3
    data: Any = SimpleNamespace(data=np.arange(60), targets=labels.tolist())
    few_of(data, 5, "--train_per_class")
    assert np.array_equal(data.data, per_class(labels, 5, 0)) and np.bincount(data.targets).tolist() == [5, 5, 5]
    with pytest.raises(UserError, match="--test_per_class 6: a class has 5 images; give at most 5"):
        few_of(data, 6, "--test_per_class")


def test_a_flag_that_is_given_twice_is_a_mistake() -> None:
    assert by_flag(["--lr=.1", "--lr_milestones", "3", "5", "--x"]) == {"--lr": [".1"], "--lr_milestones": ["3", "5"],
                                                                        "--x": []}
    with pytest.raises(UserError, match="--lr is given twice"):
        by_flag(["--lr", "1", "--lr=2"])


# ---- on the real one

needs_mammoth = pytest.mark.skipif(MAMMOTH_ROOT is None, reason=(
    "needs a Mammoth checkout: MAMMOTH_ROOT=<checkout> MAMMOTH_PYTHON=<a Python with Mammoth's packages> pytest"))
REAL = """
base: --dataset seq-cifar10 --n_tasks 2 --n_epochs 1 --lr 0.05 --batch_size 16 --backbone tiny-resnet18
      --num_filters 4 --train_per_class 10 --non_verbose 1 --sbs-record {id}.npz
grid:
  - model: [sgd]
  - model: [agem, rpc, derpp_sbs, agem_r_sbs, er_ace_sbs]
    buffer_size: [20]
  - model: [derpp]
    buffer_size: [20]
    model_config: [best]
  - model: [xder_ce_sbs]
    buffer_size: [20]
    alpha: [0.3]
    beta: [0.8]
"""


@needs_mammoth
def test_a_sweep_on_mammoth(tmp_path: Path) -> None:
    """Stock methods, ours, and such as are wrapped when they are asked for; each recorded, on an exported CIFAR-10."""
    write_cifar(tmp_path / "made")
    export("cifar10", str(tmp_path / "made"), tmp_path / "data")
    (tmp_path / "real.yaml").write_text(REAL)
    python = os.environ.get("MAMMOTH_PYTHON", sys.executable)
    env = {**os.environ, "PYTHONPATH": str(REPO), "MAMMOTH_ROOT": str(MAMMOTH_ROOT)}
    words = [python, "-m", "mammoth_sbs", "sweep", "real.yaml", "--results", "out", "--base_path", "data"]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    records = {record["args"]["model"]: record for record in read_results(tmp_path / "out").values()}
    assert len(records) == 8
    for model, record in records.items():
        assert record["args"]["host"] == "mammoth" and len(record["results"]["task_il"]["matrix"]) == 2
        kept = Record(tmp_path / "out" / record["sbs_record"])
        assert kept.tasks == 2 and [len(kept.labels(task)) for task in (1, 2)] == [50, 50]  # --train_per_class 10
        if model != "sgd":
            assert 0 < len(kept.arrays["task1_stored"]) <= 20
        if model.endswith("sbs"):
            speed = record["sbs"]["tasks"][0]["speed_mean"]
            assert kept.arrays["task1_speed"].mean() == pytest.approx(speed)
            assert record["sbs"]["tasks"][0]["stored"] == len(kept.arrays["task1_stored"])
    assert records["derpp"]["args"]["alpha"] == 0.2  # published, where Mammoth has no best configuration
