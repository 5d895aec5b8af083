"""The embedded host is on `sys.path` in all tests, the plugin's models are registered, and one thread is used."""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
MAMMOTH_ROOT = os.environ.pop("MAMMOTH_ROOT", None)  # tests are of the embedded host; host/test_contract.py is of both
REPO = Path(__file__).resolve().parent.parent
SHARED_DATA = REPO.parent / "shared" / "data"
sys.path.insert(0, str(REPO))

import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import settings  # noqa: E402

from mammoth_sbs import host  # noqa: E402
from mammoth_sbs.models import load_host  # noqa: E402

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a script leaves it for what it starts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("suite", max_examples=50, deadline=None)
settings.register_profile("torture", max_examples=int(os.environ.get("TORTURE_DAMAGES", "1000")), deadline=None)
settings.load_profile("suite")
mammoth_main = load_host()

from datasets.utils import sources  # noqa: E402

digits_read_once = functools.cache(sources._digits)

REQUIRED = {"der": {"--alpha": ".3"}, "derpp": {"--alpha": ".2", "--beta": ".5"},
            "xder": {"--alpha": ".3", "--beta": ".8"}, "fdr": {"--alpha": "1"}}
STOCK = list(host.MODELS)
Start = Callable[..., SimpleNamespace]
COMPILED_NET = "--backbone tiny-resnet18 --num_filters 2"  # the smallest with convolutions


@pytest.fixture(scope="session")
def compiled_networks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache in which `COMPILED_NET` is compiled once for all tests: the lock lets the workers of a parallel session
    wait for the first."""
    shared = tmp_path_factory.getbasetemp()
    return (shared.parent if os.environ.get("PYTEST_XDIST_WORKER") else shared) / "compiled-networks"


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """`start("er", "--n_epochs 2")`: model, data set and arguments of a small run, not yet trained."""
    monkeypatch.setattr(sources, "_digits", digits_read_once)

    def start(model: str, flags: str = "", dataset: str = "seq-digits") -> SimpleNamespace:
        cmd = f"--model {model} --dataset {dataset} --non_verbose 1 --base_path {tmp_path} --checkpoint_path {tmp_path}"
        usual = {"--buffer_size": "100", "--lr": "0.05", "--n_epochs": "2", "--seed": "0", **REQUIRED.get(model, {})}
        for flag, value in usual.items():
            rehearsal = flag != "--buffer_size" or model not in ("sgd", "joint")
            if flag not in flags.split() and rehearsal:
                cmd += f" {flag} {value}"
        words = f"{cmd} {flags}".split()
        model_, dataset_, args = mammoth_main.initialize(mammoth_main.parse_args(words))
        return SimpleNamespace(model=model_, dataset=dataset_, args=args)

    return start


@pytest.fixture
def run(start: Start, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """As `start`, then train; returns the run's JSON."""
    import json

    from utils.training import train

    def run(model: str, flags: str = "", dataset: str = "seq-digits") -> dict[str, Any]:
        before = set(tmp_path.rglob("*.json"))
        it = start(model, flags, dataset)
        train(it.model, it.dataset, it.args)
        (new,) = set(tmp_path.rglob("*.json")) - before
        return {**json.loads(new.read_text()), "model": it.model, "path": new}

    return run
