"""patches/mammoth.patch: current, only adds, and makes a checkout's own main.py know the `_sbs` models."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mammoth_sbs.host import BUFFER_SIZE, published
from tests.conftest import MAMMOTH_ROOT, REPO, STOCK
from tests.host.stand_in import make_checkout

PATCH = REPO / "patches" / "mammoth.patch"


def git(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A git repository with Mammoth's folders and nothing of ours."""
    folder = tmp_path / "mammoth"
    for name in ("models/config", "datasets/configs/seq-cifar10", "datasets/configs/seq-cifar100"):
        (folder / name).mkdir(parents=True)
    (folder / "models" / "er.py").write_text("# theirs\n")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "theirs")
    return folder


def test_the_patch_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(REPO / "scripts" / "make_patch"))["main"]()
    assert capsys.readouterr().out == PATCH.read_text(), "run scripts/make_patch > patches/mammoth.patch"


def test_it_only_adds_files_and_leaves_no_trace(checkout: Path) -> None:
    assert git(checkout, "apply", "--check", str(PATCH)).returncode == 0
    assert git(checkout, "apply", str(PATCH)).returncode == 0
    added = git(checkout, "status", "--short", "--untracked-files=all").stdout.split("\n")[:-1]
    assert len(added) == 2 * len(STOCK) + 3 and all(line.startswith("?? ") for line in added)
    assert git(checkout, "apply", "-R", str(PATCH)).returncode == 0
    assert git(checkout, "status", "--short", "--untracked-files=all").stdout == ""


@pytest.mark.skipif(MAMMOTH_ROOT is None, reason="needs a Mammoth checkout: MAMMOTH_ROOT=<checkout> pytest")
def test_it_applies_to_the_users_checkout() -> None:
    """Or is applied there already, and can be undone."""
    root = Path(str(MAMMOTH_ROOT))
    applied = (root / "models" / "er_sbs.py").exists()
    done = git(root, "apply", "--check", *(["-R"] if applied else []), str(PATCH))
    assert done.returncode == 0, done.stderr


def test_its_configs_are_ours(checkout: Path) -> None:
    git(checkout, "apply", str(PATCH))
    for name in STOCK:
        config = yaml.safe_load((checkout / "models" / "config" / f"{name}_sbs.yaml").read_text())
        assert config.pop("default") == {}  # what Mammoth asks for
        assert set(config) == {"seq-cifar10", "seq-cifar100", "seq-tinyimg", "seq-mnist"}
        for dataset, by_size in config.items():
            assert by_size == {BUFFER_SIZE: published(name, dataset)}
    for dataset, classes in (("seq-cifar10", 10), ("seq-cifar100", 100), ("seq-tinyimg", 200)):
        split = yaml.safe_load((checkout / "datasets" / "configs" / dataset / "2tasks.yaml").read_text())
        assert split == {"N_TASKS": 2, "N_CLASSES_PER_TASK": classes // 2, "N_CLASSES": classes}


def test_a_module_of_the_patch_shows_one_model_and_no_stock_class(checkout: Path) -> None:
    """Mammoth takes every model class that it sees in a file; a stock class there would replace the stock method."""
    from models.utils.continual_model import ContinualModel

    git(checkout, "apply", str(PATCH))
    for name in STOCK:
        seen = runpy.run_path(str(checkout / "models" / f"{name}_sbs.py"))
        classes = [c for c in seen.values() if isinstance(c, type) and issubclass(c, ContinualModel)]
        assert [c.NAME for c in classes] == [f"{name}_sbs"]


def test_both_ways_in_work_on_a_patched_host_and_give_the_same(tmp_path: Path) -> None:
    """A stand-in for a checkout: its own main.py, then ours with MAMMOTH_ROOT."""
    copy = make_checkout(tmp_path / "checkout")
    git(copy, "init", "-q")
    assert git(copy, "apply", str(PATCH)).returncode == 0
    said = []
    flags = ("--model agem_sbs --dataset seq-digits --n_epochs 2 --stop_after 2 --seed 1 --debug_mode 1 "
             f"--non_verbose 1 --base_path {tmp_path}")
    for folder, root in ((copy, {}), (REPO, {"MAMMOTH_ROOT": str(copy)})):
        env = {**os.environ, "PYTHONPATH": str(REPO), **root}
        words = [sys.executable, "main.py", *flags.split()]
        done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said.append([line for line in done.stdout.splitlines() if line.startswith(("SBS task", "Accuracy"))])
    assert len(said[0]) == 4 and said[0] == said[1]
