"""A checkpoint is checked from both sides of every limit; which run it is of, how far it is, what it is called."""

from __future__ import annotations

import copy
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mammoth_sbs.errors import UserError
from mammoth_sbs.values import Unfit
from tests.conftest import Start

from utils import checkpoints
from utils.checkpoints import check, check_same_run, digest, read_checkpoint, run_digest
from utils.conf import get_checkpoint_path
from utils.run import Run, progress, progress_text

GOOD: dict[str, Any] = {
    "format": 2, "args": {"model": "er", "dataset": "seq-digits", "seed": 0, "lr": 0.1, "lr_milestones": [3]},
    "model": {}, "buffer": {"num_seen_examples": 0}, "tasks_done": 2,
    "random": {"torch": torch.zeros(3), "numpy": ["MT19937", 1, 0, 0.0], "python": [3, 1, None]},
    "results": [([100.0], [100.0]), ([0.0, 50.0], [10.0, 60.0])], "run": "a", "seconds": 0.0, "ahead": None,
    "during": [{"task": 1, "class_il": [50.0], "task_il": [60.0], "epoch": 1}],
    "inside": {"leg": 0, "epochs": 1, "steps": 4, "optimizer": {}, "order": torch.zeros(2), "schedule": {}}}


def put(*way: Any, value: Any) -> Callable[[dict[str, Any]], Any]:
    def change(state: dict[str, Any]) -> None:
        at: Any = state
        for part in way[:-1]:
            at = at[part]
        at[way[-1]] = value

    return change


WRONG: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a task more": (put("tasks_done", value=3), "results are of 2 tasks, and tasks_done is 3"),
    "an accuracy less": (put("results", 1, value=([0.0], [10.0, 60.0])), "results[1] has not 2 accuracies"),
    "an accuracy more": (put("results", 0, value=([0.0], [10.0, 60.0])), "results[0] has not 1 accuracies"),
    "an accuracy above 100": (put("results", 0, value=([100.1], [1.0])), "results[0][0][0] is 100.1, not a number"),
    "one setting": (put("results", 0, value=([100.0],)), "results[0] is a list of 1, not of 2"),
    "no buffer's count": (put("buffer", value={}), "buffer.num_seen_examples is missing"),
    "a negative count": (put("buffer", "num_seen_examples", value=-1), "buffer.num_seen_examples is -1, not"),
    "seconds below 0": (put("seconds", value=-0.1), "seconds is -0.1, not a number of at least 0"),
    "a random state of three": (put("random", "numpy", value=[1, 2, 3]), "random.numpy is a list of 3, not of 4"),
    "a random state of two": (put("random", "python", value=[1, 2]), "random.python is a list of 2, not of 3"),
    "no tensor": (put("random", "torch", value=[0]), "random.torch is a list, not a tensor"),
    "no order": (put("inside", "order", value=None), "inside.order is None, not a tensor"),
    "no such flag's value": (put("args", "lr", value=float("nan")), "args.lr is nan, not the value of a flag"),
    "a flag's name that is none": (put("args", 3, value=1), "a name in args is 3, not a text"),
    "no seed": (put("args", "seed", value=-1), "args.seed is -1, not a whole number from 0 to"),
    "no model": (put("args", "model", value=3), "args.model is 3, not a text"),
    "an epoch below 0": (put("during", 0, "epoch", value=-1), "during[0].epoch is -1, not"),
    "what is ahead": (put("ahead", value=[[([1.0], [1.0])]]), "ahead[0] is a list of 1, not of 2"),
}


def test_what_does_not_fit_is_named() -> None:
    for damage, (change, says) in WRONG.items():
        state = copy.deepcopy(GOOD)
        check(state)
        change(state)
        with pytest.raises(Unfit) as error:
            check(state)
        assert says in str(error.value), damage


def test_a_digest_tells_everything_apart() -> None:
    values = [1, 1.0, "1", True, None, [1], [1, 1], [[1], 1], [1, [1]], {"a": 1}, {"b": 1}, {"a": 1, "b": 1},
              torch.tensor([1]), torch.tensor([1.0]), torch.tensor([[1]]), torch.tensor([1, 0]), torch.tensor([2])]
    assert len({digest(value) for value in values}) == len(values)
    x = torch.arange(6.0).view(2, 3)
    assert digest(x.T) == digest(x.T.contiguous()) != digest(x)
    assert digest({"a": [x, 1]}) == digest({"a": [x.clone(), 1]})
    state = copy.deepcopy(GOOD)
    state["digest"] = digest(GOOD)
    check(state)
    state["random"]["torch"][1] = 1e-6
    with pytest.raises(Unfit, match="something in it was changed"):
        check(state)


NONE: list[tuple[Any, str]] = [
    ({"format": 1}, "not a checkpoint of this program; save one with --savecheck"),
    ({"format": "2"}, "not a checkpoint of this program"), ([2], "not a checkpoint of this program"),
    ({**GOOD, "seconds": -1.0}, "not the state of a run: seconds is -1.0, .*; take another"),
    (b"PK", "not a checkpoint, or a damaged one; take another")]


def test_what_is_no_checkpoint_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "c.pt"
    for content, says in NONE:
        if isinstance(content, bytes):
            file.write_bytes(content)
        else:
            torch.save(content, file)
        with pytest.raises(UserError, match=rf"^--here {file}: {says}"):
            read_checkpoint(file, "--here")
    with pytest.raises(UserError, match="--loadcheck .*: a folder; give one of its files"):
        read_checkpoint(tmp_path)
    with pytest.raises(UserError, match="--loadcheck .*x.pt: no such file"):
        read_checkpoint(tmp_path / "x.pt")
    torch.save(GOOD, file)
    assert read_checkpoint(file)["tasks_done"] == 2


# ---- whose it is

def same_run(theirs: dict[str, Any], ours: dict[str, Any], *may_differ: str) -> str | None:
    """What is said against it."""
    usual = {"model": "er", "lr": 0.1}
    try:
        check_same_run({"args": usual | theirs}, Namespace(**usual | ours), "here", "do that", frozenset(may_differ))
    except UserError as e:
        return str(e)
    return None


def test_a_checkpoint_of_another_run_is_refused_with_the_flags_that_differ() -> None:
    assert same_run({}, {}) is None and same_run({"seed": 3}, {"seed": 3}) is None
    assert same_run({}, {"lr": 0.2}) == "here: of another run: --lr 0.1 there and 0.2 here; do that"
    assert same_run({"model": "der"}, {}) == "here: saved by --model der, not er"
    assert same_run({"seed": 1}, {"seed": 2, "lr": 3}) == \
        "here: of another run: --lr 0.1 there and 3 here, --seed 1 there and 2 here; do that"
    assert same_run({}, {"lr": 0.2}, "lr") is None
    assert same_run({"stop_after": 1, "device": "cpu"}, {"stop_after": 2, "device": "cuda"}) is None  # not of the run


def test_a_flag_that_came_later_matters_if_it_is_on() -> None:
    for off in (None, False, 0, "", []):
        assert same_run({}, {"brand_new": off}) is None
    assert same_run({}, {"brand_new": 2}) == "here: of another run: --brand_new None there and 2 here; do that"
    assert same_run({"gone": 2}, {}) == "here: of another run: --gone 2 there and None here; do that"
    assert same_run({"was": 0}, {"was": False}) is None and same_run({"was": 1}, {"was": 0}) is not None


def test_a_runs_short_name_is_of_the_flags_that_make_it() -> None:
    usual = {"model": "er", "lr": 0.1, "seed": 0, "stop_after": 3}
    name = run_digest(Namespace(**usual))
    assert len(name) == 8 and int(name, 16) >= 0
    assert name == run_digest(Namespace(**dict(reversed(usual.items()))))
    assert name == run_digest(Namespace(**usual | {"stop_after": 1, "brand_new": None, "other": []}))
    assert name != run_digest(Namespace(**usual | {"lr": 0.2})) != run_digest(Namespace(**usual | {"brand_new": 1}))


# ---- how far it is

def test_how_far() -> None:
    for tasks, inside, how_far, says in (
            (0, None, (0, -1, 0), "0 tasks"), (1, None, (1, -1, 0), "1 task"),
            (2, {"leg": 0, "epochs": 1}, (2, 0, 1), "2 tasks and 1 epoch"),
            (2, {"leg": 1, "epochs": 0}, (2, 1, 0), "2 tasks and 0 epochs"),
            (1, {"leg": 0, "epochs": 3}, (1, 0, 3), "1 task and 3 epochs")):
        state = {"tasks_done": tasks, "inside": inside}
        assert progress(state) == how_far and progress_text(state) == says


def a_run(it: SimpleNamespace) -> Run:
    return Run(it.model, it.dataset, it.args)


def test_names_of_checkpoints(start: Start, tmp_path: Path) -> None:
    run = a_run(start("er", "--seed 4 --savecheck task"))
    stem = f"er_seq-digits_None_100_2_4_{run_digest(run.args)}"
    assert run.name == stem and get_checkpoint_path() == str(tmp_path)
    run.results = [([1.0], [1.0]), ([1.0, 1.0], [1.0, 1.0])]
    assert run.checkpoint() == tmp_path / f"{stem}_1.pt" and run.checkpoint("last") == tmp_path / f"{stem}_last.pt"
    assert run.points is None
    assert [file.name.removeprefix(stem) for file in run.checkpoints()] == [
        "_last.pt", "_4.pt", "_3.pt", "_2.pt", "_1.pt", "_0.pt"]
    run = a_run(start("sgd", "--seed 4 --savecheck epoch --ckpt_name mine"))
    assert run.checkpoint().name == "mine_last.pt" and run.points == tmp_path / "mine_last.pt.points.jsonl"
    assert run.marked == Path(f"{run.file()}.unfinished") and run.file("x").name == "x.json"


def test_how_much_room_a_checkpoint_needs(start: Start) -> None:
    """Weights, what the optimiser keeps of them, and images with logits and more in the buffer: not far too little."""
    sizes = {}
    for optimizer in ("sgd", "adam", "adagrad", "adamw"):
        run = a_run(start("derpp", f"--optimizer {optimizer} --buffer_size 200"))
        weights = sum(value.nbytes for value in run.model.net.state_dict().values())
        sizes[optimizer] = (run.size() - 4 * 200 * (64 + 10 + 4) - 100_000) / weights
    assert sizes == {"sgd": 2, "adam": 3, "adagrad": 2, "adamw": 3}
    assert a_run(start("sgd")).size() == 2 * weights + 100_000


@pytest.mark.parametrize(("flags", "first", "end"), [("", 0, 5), ("--stop_after 2", 0, 2), ("--stop_after 5", 0, 5)])
def test_which_tasks_a_run_has(start: Start, flags: str, first: int, end: int) -> None:
    run = a_run(start("er", flags))
    assert (run.first, run.end, run.ahead) == (first, end, None)
    assert a_run(start("er", f"{flags} --enable_other_metrics 1")).ahead == []


def test_what_a_checkpoint_keeps_of_a_schedule(start: Start) -> None:
    from torch.optim.lr_scheduler import MultiStepLR

    it = start("er", "--train_per_class 20")
    it.dataset.get_data_loaders()
    it.model.meta_begin_task(it.dataset)
    scheduler = MultiStepLR(it.model.opt, [1], 0.5)
    it.model.opt.step()
    scheduler.step()
    place = checkpoints.place_in_task(it.model, it.dataset.train_loader, scheduler, 3)
    assert (place["leg"], place["epochs"], place["steps"]) == (0, 3, 0)
    assert place["schedule"] == {"last_epoch": 1, "_step_count": 2, "_last_lr": [0.025]}
    assert checkpoints.place_in_task(it.model, it.dataset.train_loader, None, 3, 1)["schedule"] == {}
    assert checkpoints.place_in_task(it.model, it.dataset.train_loader, None, 3, 1)["leg"] == 1
