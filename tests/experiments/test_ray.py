"""Sweeps on a Ray cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mammoth_sbs.errors import UserError
from tests.experiments.conftest import GOOD, TWELVE, content, finish, names, start

COMPILED = ("--dataset seq-digits --backbone tiny-resnet18 --num_filters 2 --max_classes 4 --n_tasks 2 "
            "--train_per_class 24 --n_epochs 1 --buffer_size 20 --lr 0.05 --compile 1")


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
def cluster(tmp_path: Path) -> Iterator[Any]:
    """Two nodes with one CPU and a cache each. Ray takes 127.0.0.1 for the machine's outer address; other loopbacks it
    leaves."""
    utils = pytest.importorskip("ray.cluster_utils", reason="Ray is not installed: pip install 'mammoth-sbs[ray]'")
    first, second = ({"num_cpus": 1, "node_ip_address": f"127.0.0.{i}",
                      "env_vars": {"MAMMOTH_SBS_CACHE": str(tmp_path / f"cache-{i}")}} for i in (2, 3))
    cluster = utils.Cluster(initialize_head=True, head_node_args=first)
    cluster.second = cluster.add_node(**second)
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


def test_on_ray_each_node_compiles_once(cluster: Any, config: Callable[[str], Path], tmp_path: Path,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """With a cache of its own each node makes the code that this machine made, and its runs are those made here."""
    monkeypatch.setenv("MAMMOTH_SBS_CACHE", str(tmp_path / "cache-here"))
    file = config(f"base: --model er_sbs {COMPILED}\nseeds: 6\n")
    local, remote = (start(file, tmp_path / name, *flags)
                     for name, flags in (("local", ()), ("ray", ("--ray", cluster.address))))
    finish(local), finish(remote)
    assert content(tmp_path / "ray") == content(tmp_path / "local") and len(content(tmp_path / "ray")) == 6
    made = [sorted(path.name for path in (tmp_path / f"cache-{name}").rglob("*.done")) for name in ("here", "2", "3")]
    assert len(made[0]) == 1 and made[1] == made[2] == made[0]
    code = [len(list((tmp_path / f"cache-{name}").rglob("*.so"))) for name in ("here", "2", "3")]
    assert code[0] > 0 and code[1] == code[2] == code[0], "no run compiled what another had"
