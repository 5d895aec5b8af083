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
