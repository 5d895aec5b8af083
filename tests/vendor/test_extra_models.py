"""`--extra_models DIR`: methods written for Mammoth, put beside ours by their user."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mammoth_sbs.errors import UserError
from tests.conftest import MAMMOTH_ROOT, Start, mammoth_main
from tests.vendor.conftest import parse

import models
from datasets import get_dataset_names
from datasets.utils.continual_dataset import ContinualDataset

METHOD = '''
import logging

import torch
from backbone import get_backbone
from datasets import get_dataset
from models.utils.continual_model import ContinualModel
from utils import binary_to_boolean_type
from utils.args import add_rehearsal_args, ArgumentParser
from utils.augmentations import cutmix_data
from utils.batch_norm import bn_track_stats
from utils.buffer import Buffer, fill_buffer, icarl_replay
from utils.conf import warn_once
from utils.status import progress_bar


class Mine(ContinualModel):
    NAME = "my_method"
    COMPATIBILITY = ["class-il", "task-il"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        add_rehearsal_args(parser)
        parser.add_argument("--herding", type=binary_to_boolean_type, default=True)
        parser.set_defaults(lr=0, batch_size=8)
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.buffer = Buffer(self.args.buffer_size)
        self.seen = []

    def begin_task(self, dataset):
        icarl_replay(self, dataset)
        self.sizes = getattr(self, "sizes", []) + [len(dataset.train_loader.dataset)]

    def observe(self, inputs, labels, not_aug_inputs, epoch=None, **kwargs):
        theta = self.net.get_params().data.clone()
        optimizer = self.get_optimizer(self.get_parameters(), lr=0.05)
        optimizer.zero_grad()
        loss = self.loss(self.net(inputs), labels)
        loss.backward()
        optimizer.step()
        self.net.set_params(theta + 0.5 * (self.net.get_params() - theta))
        return {"loss": loss.item()}

    def end_task(self, dataset):
        warn_once("a task has ended")
        fill_buffer(self.buffer, dataset, self.current_task, net=self.net, use_herding=self.args.herding,
                    normalize_features=True)
        progress_bar(0, 1, 1, "G", 0.5)
        self.steps = self.task_iteration
        self.other = get_backbone(self.args)

    def end_eval(self, dataset, accs):
        self.seen.append((self.current_task, len(accs[0])))
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With the method above; the package is as before when the test is over."""
    monkeypatch.setattr(models, "__path__", list(models.__path__))
    for name in ("my_file", "broken"):
        monkeypatch.delitem(__import__("sys").modules, f"models.{name}", raising=False)
    models._classes.cache_clear()
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra" / "my_file.py").write_text(METHOD)
    return tmp_path / "extra"


def train(it: SimpleNamespace) -> None:
    it.args.disable_log = True
    mammoth_main.train(it.model, it.dataset, it.args)


def test_a_method_written_for_mammoth_runs(start: Start, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    it = start("my_method", f"--extra_models {folder} --stop_after 2 --lr .1 --batch_size 16 --buffer_size 8")
    task = len(it.dataset.source.train.labels[it.dataset.source.train.labels < 2])
    train(it)
    model = it.model
    assert model.sizes[0] == task and model.sizes[1] > 8  # the second task has the buffer's examples in it
    assert len(it.dataset.train_loader.dataset) == model.sizes[1] - 8  # and they are gone when it has ended
    assert torch.bincount(model.buffer.labels).tolist() == [2, 2, 2, 2]
    assert model.seen == [(0, 1), (1, 2)] and model.steps == 2 * -(-model.sizes[1] // 16)  # two epochs
    assert [p.shape for p in model.other.parameters()] == [p.shape for p in model.net.parameters()]
    assert [record.message for record in caplog.records].count("a task has ended") == 1


def test_a_checkpoint_does_not_say_which_files_are_executed(start: Start, folder: Path, tmp_path: Path) -> None:
    it = start("my_method", f"--extra_models {folder} --stop_after 1 --lr .1 --savecheck last --ckpt_name a")
    train(it)
    with pytest.raises(UserError, match=rf"--loadcheck .*a_last.pt: its run had --extra_models {folder}; give that"):
        parse(f"--loadcheck {tmp_path / 'a_last.pt'}")
    assert parse(f"--loadcheck {tmp_path / 'a_last.pt'} --extra_models {folder}").model == "my-method"


def test_herding_takes_what_keeps_the_mean(start: Start, folder: Path) -> None:
    """One by one, the example that brings the mean of the chosen features nearest to the class's."""
    from utils.buffer import _herded

    features = torch.tensor([[0.0, 4.0], [4.0, 0.0], [2.1, 2.0], [9.0, 9.0], [0.0, 0.0]])
    mean, chosen = features.mean(0), _herded(features, 3, normalized=False).tolist()
    for n in range(3):
        distances = [float((mean - features[[*chosen[:n], k]].mean(0)).norm()) if k not in chosen[:n] else 99.0
                     for k in range(5)]
        assert chosen[n] == distances.index(min(distances))
    assert sorted(_herded(features, 9, normalized=True).tolist()) == [0, 1, 2, 3, 4]


def test_the_code_and_not_its_place_is_part_of_the_run(folder: Path, tmp_path: Path) -> None:
    words = "--model my_method --dataset seq-digits --buffer_size 10 --seed 0"
    here = parse(f"{words} --extra_models {folder}").extra_code
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert parse(f"{words} --extra_models {copy}").extra_code == here
    (copy / "my_file.py").write_text(METHOD + "\n")
    assert parse(f"{words} --extra_models {copy}").extra_code != here
    assert parse("--model er --dataset seq-digits --buffer_size 10 --lr .1 --seed 0").extra_code is None


def test_our_own_methods_win_and_a_broken_file_is_one_line_when_asked_for(folder: Path) -> None:
    own = models.get_model_names()["er"]
    (folder / "er.py").write_text("raise RuntimeError('not this one')")
    (folder / "broken.py").write_text("import utils.nowhere")
    words = f"--dataset seq-digits --buffer_size 10 --lr .1 --seed 0 --extra_models {folder}"
    parse(f"--model er {words}")
    assert models.get_model_names()["er"] is own
    with pytest.raises(UserError, match=r"broken\.py does not import here \(No module named 'utils\.nowhere'\); run"):
        parse(f"--model broken {words}")


def test_bad_folders_are_one_line(tmp_path: Path) -> None:
    for given in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(UserError, match="--extra_models .*: no such folder, or no .py file in it"):
            parse(f"--model er --dataset seq-digits --buffer_size 10 --lr .1 --extra_models {given}")
    with pytest.raises(UserError, match="--lr: a number above 0 is needed"):  # it is only a method that may set 0
        parse("--model er --dataset seq-digits --buffer_size 10 --lr 0")


def test_a_registered_data_set_and_network_have_their_flags_and_are_shown(capsys: pytest.CaptureFixture[str],
                                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    from backbone import REGISTERED_BACKBONES, MammothBackbone, register_backbone
    from datasets import register_dataset

    monkeypatch.setattr(datasets, "REGISTERED_DATASETS", {})
    monkeypatch.setitem(REGISTERED_BACKBONES, "custom-cnn", None)

    @register_backbone("custom_cnn")
    class CustomCNN(MammothBackbone):
        def __init__(self, num_classes: int, num_layers: int = 3, act: str = "relu", slope: float = 0.1) -> None:
            super().__init__()
            self.classifier = torch.nn.Linear(64, num_classes)
            self.told = num_layers, act, slope

        def embed(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1)

    @register_dataset("custom_dataset")
    class CustomDataset(get_dataset_names()["seq-digits"]):  # type: ignore[misc]
        def __init__(self, args: object, fraction: float = 0.5) -> None:
            super().__init__(args)
            self.fraction = fraction

    words = "--model sgd --dataset custom-dataset --backbone custom-cnn --lr .1 --n_epochs 1 --batch_size 32 --seed 0"
    with pytest.raises(SystemExit):
        parse(f"{words} --help")
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert any(line.startswith("networks ") and "custom-cnn" in line for line in lines)
    assert any(line.startswith("data sets ") and "custom-dataset" in line for line in lines)
    assert any(line.startswith("--num_layers") for line in lines)
    model, dataset, _ = mammoth_main.initialize(parse(f"{words} --num_layers 7 --slope .3 --fraction .25"))
    assert model.net.told == (7, "relu", 0.3) and dataset.fraction == 0.25 and isinstance(dataset, ContinualDataset)
    assert model.net.device == torch.device("cpu") and model.n_remaining_classes == 11


def test_the_base_config_is_the_default_one() -> None:
    words = "--model er --dataset seq-digits --buffer_size 10 --lr .1 --model_config"
    assert parse(f"{words} base").model_config == parse(f"{words} default").model_config == "default"
    with pytest.raises(UserError, match="--model_config"):
        parse(f"{words} worst")


def test_a_checkpoints_name_is_printed(start: Start, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    train(start("sgd", "--savecheck task --stop_after 1 --ckpt_name mine --train_per_class 20"))
    (said,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Saving checkpoint into: ")]
    assert (tmp_path / f"{said.removeprefix('Saving checkpoint into: ')}_0.pt").is_file()


@pytest.mark.skipif(MAMMOTH_ROOT is None, reason="needs a Mammoth checkout: MAMMOTH_ROOT=<checkout> pytest")
@pytest.mark.parametrize(("name", "flags"), [("er_ace", ""), ("mer", "--beta .5 --gamma .5"),
                                             ("gdumb", "--fitting_epochs 2"), ("icarl", "")])
def test_mammoths_own_files_run(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str,
                                flags: str) -> None:
    monkeypatch.setattr(models, "__path__", list(models.__path__))
    (tmp_path / "extra").mkdir()
    shutil.copy(Path(str(MAMMOTH_ROOT), "models", f"{name}.py"), tmp_path / "extra")
    it = start(name, f"--extra_models {tmp_path / 'extra'} --train_per_class 20 --max_classes 4 --n_tasks 2 "
                     f"--buffer_size 12 {flags}")
    train(it)
    assert len(it.model.buffer) == 12 and sorted(it.model.buffer.labels.unique().tolist()) == [0, 1, 2, 3]
