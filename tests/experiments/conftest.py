"""What the tests of sweeps share: a configuration, the sweep of it here or in a process, its results."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mammoth_sbs.commands import sweep as sweep_command
from mammoth_sbs.experiments.executors import local
from tests.conftest import REPO

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


@pytest.fixture
def something_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where runs wait and none is under way, nothing would ever happen: that is no reason to wait."""
    original = local.wait

    def wait(of: Any, timeout: float | None = None) -> Any:
        assert of, "nothing runs"
        return original(of, timeout)

    monkeypatch.setattr(local, "wait", wait)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Any]:
    """Two nodes with one CPU each and a cache each. Ray takes 127.0.0.1 for the machine's outer
    address; other loopbacks it leaves."""
    utils = pytest.importorskip("ray.cluster_utils", reason="Ray is not installed: pip install 'mammoth-sbs[ray]'")
    first, second = ({"num_cpus": 1, "node_ip_address": address, "env_vars": {"MAMMOTH_SBS_CACHE": str(cache)}}
                     for address, cache in (("127.0.0.2", tmp_path / "first"), ("127.0.0.3", tmp_path / "second")))
    cluster = utils.Cluster(initialize_head=True, head_node_args=first)
    cluster.second = cluster.add_node(**second)
    yield cluster
    cluster.shutdown()


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


GOOD = f"base: {BASE} --model er"
