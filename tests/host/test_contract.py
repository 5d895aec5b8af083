"""The interface between plugin and host, on the embedded host always and on the user's own Mammoth if there is one."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.conftest import MAMMOTH_ROOT, REPO, STOCK
from tests.host.contract.promises import CHECKS

HOSTS = ("embedded", "mammoth")
needs_mammoth = pytest.mark.skipif(MAMMOTH_ROOT is None, reason=(
    "needs a Mammoth checkout: MAMMOTH_ROOT=<checkout> MAMMOTH_PYTHON=<a Python with Mammoth's packages> pytest "
    "tests/host/test_contract.py"))
Result = tuple[dict[str, str | None], dict[str, dict[str, Any]]]


@pytest.fixture(scope="session")
def on(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Result]:
    """What a host said: failed checks, and a step of each stock method if there are two hosts to compare."""
    folder = tmp_path_factory.mktemp("contract")

    @functools.cache
    def run(host: str) -> Result:
        if host == "mammoth":
            run("embedded")  # its weights are where both begin
        real = host == "mammoth" and MAMMOTH_ROOT is not None
        env = {**os.environ, **({"MAMMOTH_ROOT": str(MAMMOTH_ROOT)} if real else {}), "MAMMOTH_SBS_CACHE": str(folder)}
        python = os.environ.get("MAMMOTH_PYTHON", sys.executable) if real else sys.executable
        words = [python, "-m", "tests.host.contract", str(folder), *(["steps"] if MAMMOTH_ROOT else [])]
        done = subprocess.run(words, env=env, capture_output=True, text=True, cwd=REPO)
        assert done.returncode == 0, done.stdout + done.stderr
        steps = torch.load(folder / f"{host}.pt", weights_only=True) if MAMMOTH_ROOT else {}
        return json.loads((folder / f"{host}.json").read_text()), steps

    return run


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("host", ["embedded", pytest.param("mammoth", marks=needs_mammoth)])
def test_the_host_keeps_its_promise(on: Callable[[str], Result], host: str, check: str) -> None:
    failed = on(host)[0][check]
    assert failed is None, failed


@needs_mammoth
@pytest.mark.parametrize("method", STOCK)
def test_a_step_is_the_same_on_both_hosts(on: Callable[[str], Result], method: str) -> None:
    """From the same weights, batch, buffer and draws, in double precision: loss and change are, to 1e-7 relative."""
    ours, theirs = (on(host)[1][method] for host in HOSTS)
    loss = abs(ours["loss"] - theirs["loss"]) / abs(theirs["loss"])
    change = theirs["after"] - theirs["before"]
    update = float((ours["after"] - ours["before"] - change).norm() / change.norm())
    replay = float((theirs["after"] - theirs["plain"]).norm() / change.norm())
    print(f"| {method} | {theirs['loss']:.6f} | {loss:.1e} | {update:.1e} | {replay:.2f} |")  # as in docs/mammoth.md
    assert torch.equal(ours["before"], theirs["before"])
    assert loss < 1e-7 and update < 1e-7
    assert replay > 0.05  # the buffer, and the projection of GEM and A-GEM, had a say in it
    if ours["logits"] is not None:  # X-DER updates what is stored
        assert torch.allclose(ours["logits"], theirs["logits"], rtol=1e-7, atol=1e-8)
