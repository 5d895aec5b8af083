"""Sweeps on a Ray cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
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
    """A node with an empty cache makes the code that this machine has, for all its runs; they are those made here.
    With a multilayer perceptron, which compiles in seconds."""
    cache = tmp_path / "first"
    monkeypatch.setenv("MAMMOTH_SBS_CACHE", str(cache))
    flags = "--backbone mnistmlp --max_classes 6 --n_tasks 3 --train_per_class 24 --n_epochs 1 --buffer_size 20"
    file = config(f"base: --model er_sbs --dataset seq-digits --lr 0.05 {flags} --compile 1\nseeds: 4\n")
    assert "4 of 4 runs finished" in finish(start(file, tmp_path / "local"))
    before = code_in(cache)
    assert "4 of 4 runs finished" in finish(start(file, tmp_path / "ray", "--ray", cluster.address))
    assert content(tmp_path / "ray") == content(tmp_path / "local")
    assert before and before.items() <= code_in(cache).items(), "what is in a cache is not made again"
    (done,) = (tmp_path / "second").rglob("*.done")
    assert code_in(tmp_path / "second") and (cache / done.relative_to(tmp_path / "second")).exists()


def code_in(cache: Path) -> dict[str, int]:
    """Compiled code, and when it was made."""
    return {str(path.relative_to(cache)): path.stat().st_mtime_ns for path in cache.rglob("*.so")}
