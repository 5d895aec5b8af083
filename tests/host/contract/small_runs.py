"""The host in use and small runs on it, with a small made-up CIFAR-10."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from mammoth_sbs import host
from mammoth_sbs.models import load_host

MODELS = list(host.MODELS)
PER_CLASS, BATCH, BUFFER = 12, 8, 24


def write_cifar(base: Path) -> None:
    """A CIFAR-10 in torchvision's format with few images: each class is a colour in noise."""
    folder = base / "CIFAR10" / "cifar-10-batches-py"
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.RandomState(0)
    colours = draw.randint(40, 215, (10, 3, 1))
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        labels = np.arange(10 * PER_CLASS) % 10
        if name != "test_batch":  # five files, one after the other
            labels = labels[int(name[-1]) - 1 :: 5]
        images = np.clip(colours[labels] + draw.normal(0, 60, (len(labels), 3, 1024)), 0, 255).astype(np.uint8)
        (folder / name).write_bytes(pickle.dumps({"labels": labels.tolist(), "data": images.reshape(-1, 3072)}))
    names = [f"class {c}" for c in range(10)]
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names}))


@contextmanager
def output() -> Iterator[io.StringIO]:
    """What is printed meanwhile."""
    text = io.StringIO()
    with redirect_stdout(text), redirect_stderr(text):
        yield text


class Host:
    """The host in use, and runs on it."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.main = load_host()
        if not host.is_embedded():
            from torchvision.datasets import cifar

            vars(cifar)["check_integrity"] = lambda *args: True  # the files are ours

    def words(self, model: str, flags: str = "") -> list[str]:
        usual = {"--model": model, "--dataset": "seq-cifar10", "--base_path": f"{self.base}/",
                 "--checkpoint_path": f"{self.base}/checkpoints/", "--backbone": "resnet18", "--num_filters": "4",
                 "--num_workers": "0", "--non_verbose": "1", "--seed": "0", "--n_epochs": "2", "--lr": "0.05",
                 "--batch_size": str(BATCH), "--buffer_size": str(BUFFER)}
        given = flags.split()
        if "--backbone" in given:
            del usual["--num_filters"]
        return [word for pair in usual.items() if pair[0] not in given for word in pair] + given

    def parse(self, words: list[str]) -> Any:
        sys.argv[1:] = words  # Mammoth looks there too
        return self.main.parse_args(words)

    def start(self, model: str, flags: str = "") -> SimpleNamespace:
        """Model, data set and arguments of a small run."""
        model_, dataset, args = self.main.initialize(self.parse(self.words(model, flags)))
        return SimpleNamespace(model=model_, dataset=dataset, args=args)

    def train(self, it: SimpleNamespace) -> str:
        """Train to the end; what it printed."""
        from utils.training import train

        with output() as text:
            train(it.model, it.dataset, it.args)
        return text.getvalue()
