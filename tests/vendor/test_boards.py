"""TensorBoard and Weights & Biases: what they write, read back; and that a run does not feel them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mammoth_sbs import Result, UserError, train
from mammoth_sbs.experiments.store import named

SMALL = {"dataset": "seq-digits", "buffer_size": 50, "n_epochs": 2, "train_per_class": 30, "stop_after": 3, "seed": 2}
STEPS, EPOCHS = 3 * 2 * 2, 3 * 2
WANDB = {"wandb_entity": "me", "wandb_project": "mine", "wandb_name": "this one"}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("WANDB_ENTITY", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return train("derpp_sbs", base_path=str(tmp_path_factory.mktemp("data")), **SMALL)


def expected(result: Result) -> dict[str, list[tuple[int, float]]]:
    """Curves over tasks that any board should show."""
    curves = {}
    for setting in ("class_il", "task_il"):
        matrix = getattr(result, setting).matrix
        curves[f"{setting}/mean"] = [(i + 1, float(np.nanmean(row))) for i, row in enumerate(matrix)]
        for task in range(3):
            curves[f"{setting}/task_{task + 1}"] = [(i + 1, matrix[i, task]) for i in range(task, 3)]
    for name in ("speed_mean", "stored", "left_out_quick", "stored_speed_mean"):
        curves[f"sbs/{name}"] = [(task.task, task.statistics[name]) for task in result.sbs]
    curves["sbs/band_1"] = [(task.task, task.statistics["band"][0]) for task in result.sbs]
    curves["sbs/speed_quartiles_3"] = [(task.task, task.statistics["speed_quartiles"][2]) for task in result.sbs]
    return curves


def test_tensorboard_shows_all_of_it(alone: Result) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    losses: list[float] = []
    result = train("derpp_sbs", tensorboard="boards", **SMALL,
                   progress=lambda now: losses.append(now.loss) if now.event == "step" else None)
    assert result.record["results"] == alone.record["results"]
    assert result.record["sbs"] == alone.record["sbs"]
    (folder,) = Path("boards").iterdir()
    board = EventAccumulator(str(folder), size_guidance={"histograms": 0})
    board.Reload()
    shown = {name: [(event.step, event.value) for event in board.Scalars(name)] for name in board.Tags()["scalars"]}
    assert [step for step, _ in shown["loss"]] == list(range(1, STEPS + 1))
    assert [value for _, value in shown["loss"]] == pytest.approx(losses)
    assert [step for step, _ in shown["epoch/loss"]] == list(range(1, EPOCHS + 1))
    assert shown["epoch/train_accuracy"][1][1] == pytest.approx(result.sbs[0].statistics["train_accuracy"])
    for name, curve in expected(result).items():
        assert [at for at, _ in shown[name]] == [at for at, _ in curve]
        assert [value for _, value in shown[name]] == pytest.approx([value for _, value in curve])
    histograms = board.Histograms("sbs/learning_speed")
    assert [event.histogram_value.num for event in histograms] == [60, 60, 60]
    texts = {name: board.Tensors(name)[0].tensor_proto.string_val[0].decode() for name in board.Tags()["tensors"]}
    assert texts["command/text_summary"] == result.command
    last = " | ".join(f"{value:.2f}" for value in result.class_il.matrix[2])
    assert f"| 3 | {last} |" in texts["class_il/matrix/text_summary"]


def wandb_file(file: Path) -> Iterator[Any]:
    """The records of an offline run."""
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    store = DataStore()
    store.open_for_scan(str(file))
    while (data := store.scan_data()) is not None:
        record = Record()
        record.ParseFromString(data)
        yield record


def test_wandb_shows_all_of_it(alone: Result) -> None:
    pytest.importorskip("wandb")
    result = train("derpp_sbs", **SMALL, **WANDB)
    assert result.record["results"] == alone.record["results"]
    assert result.record["sbs"] == alone.record["sbs"]
    (file,) = Path("wandb").glob("offline-run-*/*.wandb")
    records = list(wandb_file(file))
    (run,) = (record.run for record in records if record.run.config.update)
    assert (run.entity, run.project, run.display_name) == ("me", "mine", "this one")
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert (config["model"], config["buffer_size"], config["sbs_q"]) == ("derpp-sbs", 50, 0.2)
    rows = [{"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            for record in records if record.WhichOneof("record_type") == "history"]
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, STEPS + 1))
    assert [row["epoch"] for row in rows if "epoch/loss" in row] == list(range(1, EPOCHS + 1))
    for name, curve in expected(result).items():
        found = [(row["task"], row[name]) for row in rows if name in row]
        assert [at for at, _ in found] == [at for at, _ in curve]
        assert [value for _, value in found] == pytest.approx([value for _, value in curve])
    assert sum(any(key.startswith("sbs/learning_speed") for key in row) for row in rows) == 3
    (table,) = Path("wandb").rglob("class_il/matrix*.table.json")
    content = json.loads(table.read_text())
    assert content["columns"] == ["after task", "task 1", "task 2", "task 3"]
    assert content["data"][2] == [3, *result.class_il.matrix[2].tolist()]


@pytest.mark.parametrize(("flags", "module", "message"), [
    ({"tensorboard": "b"}, "torch.utils.tensorboard", r"^--tensorboard: .*pip install 'mammoth-sbs\[tensorboard\]'"),
    (WANDB, "wandb", r"^--wandb_project: .*pip install 'mammoth-sbs\[wandb\]'"),
    ({"wandb_project": "mine"}, "", "^--wandb_entity is missing"),
    ({"wandb_entity": "me"}, "", "^--wandb_project is missing"),
    ({"tensorboard": "file"}, "", "^--tensorboard file: Not a directory"),
])
def test_what_is_missing_is_one_line_before_any_step(
        flags: dict, module: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").touch()
    if module:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=message):
        train("derpp_sbs", progress=lambda now: pytest.fail("a step was made"), **SMALL, **flags)


def test_debug_mode_is_not_shown_to_wandb(start: Callable) -> None:
    train("derpp_sbs", debug_mode=True, **SMALL, **WANDB)
    assert not Path("wandb").exists()


def test_a_run_is_the_same_run_when_it_is_shown(start: Callable) -> None:
    """Its id leaves the flags out, so that a sweep may be shown or not."""
    from utils.checkpoints import NOT_OF_THE_RUN

    args = vars(start("derpp_sbs", "--tensorboard b --wandb_entity a --wandb_project b --wandb_name c").args)
    kept = named({key: value for key, value in args.items() if key not in NOT_OF_THE_RUN})
    assert not [key for key in kept if "wandb" in key or "tensorboard" in key]
