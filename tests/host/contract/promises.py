"""What the plugin relies on from its host: each `check_*` is one promise."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mammoth_sbs.errors import UserError
from tests.host.contract.small_runs import BATCH, BUFFER, MODELS, PER_CLASS, Host, output


def check_sixteen_models_are_found(host_: Host) -> None:
    from models import get_model_names
    from models.utils.continual_model import ContinualModel

    names = get_model_names()
    for name in MODELS:
        assert name == names[name].NAME, name
        ours = names[f"{name}-sbs"]
        stock = next(cls for cls in names[name].__mro__ if cls.__module__ == f"models.{name}")  # it may be extended
        assert issubclass(ours, stock) and issubclass(ours, ContinualModel)
        assert f"{name}_sbs" == ours.NAME and ours.COMPATIBILITY == names[name].COMPATIBILITY
    for spelled in ("derpp_sbs", "derpp-sbs"):
        assert host_.parse(host_.words(spelled)).model == "derpp-sbs"


def check_defaults_hold_and_typed_flags_win(host_: Host) -> None:
    words = ["--model", "derpp_sbs", "--dataset", "seq-cifar10", "--seed", "0"]
    args = host_.parse(words)
    assert (args.buffer_size, args.lr, args.alpha, args.beta, args.batch_size) == (500, 0.03, 0.2, 0.5, 32)
    assert (args.sbs_q, args.sbs_s, args.sampler, args.optimizer, args.optim_mom) == (0.2, 0.2, "speed", "sgd", 0)
    args = host_.parse([*words, "--lr=.5", "--buffer_size", "77", "--sbs-q", ".3"])
    assert (args.buffer_size, args.lr, args.alpha, args.sbs_q) == (77, 0.5, 0.2, 0.3)
    args = host_.parse(["--model", "xder_sbs", *words[2:]])
    assert (args.simclr_num_aug, args.gamma, args.lambd) == (2, 0.85, 0.05)  # ours, not the method's own 4


def check_help_shows_the_flags(host_: Host) -> None:
    with output() as text:
        try:
            host_.parse([*host_.words("derpp_sbs"), "--help"])
        except SystemExit as e:
            assert not e.code, e.code
    for flag in ("--sbs-q", "--sbs-s", "--sampler", "--sbs-record", "--alpha", "--buffer_size"):
        assert flag in text.getvalue(), flag


def check_the_command_line(host_: Host) -> None:
    """Every flag that design and docs promise, with Mammoth's default."""
    args = host_.parse(["--model", "er", "--dataset", "seq-cifar10", "--lr", ".1", "--buffer_size", "10"])
    defaults = {"optimizer": "sgd", "optim_wd": 0, "optim_mom": 0, "lr_scheduler": None, "savecheck": None,
                "loadcheck": None, "start_from": None, "stop_after": None, "permute_classes": False,
                "debug_mode": False, "non_verbose": False, "joint": 0, "validation": None,
                "enable_other_metrics": False,
                "results_path": "results/", "dataset_config": None, "num_workers": None, "device": None}
    for name, value in defaults.items():
        assert getattr(args, name) == value, f"--{name}: {getattr(args, name)}"
    typed = ("--lr_scheduler multisteplr --lr_milestones 3 5 --optim_wd .1 --optim_mom .9 --permute_classes 1 "
             "--debug_mode 1 --validation 10 --enable_other_metrics 1 --savecheck last --start_from 0 --stop_after 2")
    args = host_.parse(host_.words("er", typed))
    assert args.lr_milestones == [3, 5] and args.validation == 10 and args.savecheck == "last" and args.optim_mom == 0.9


def check_counters_and_order_of_calls(host_: Host) -> None:
    it = host_.start("er", "--stop_after 2")
    model, calls = it.model, []
    for name in ("net", "loss", "args", "opt", "transform", "device", "dataset", "buffer"):
        assert getattr(model, name) is not None, name
    assert (model.n_tasks, model.cpt, model.num_classes, model.current_task) == (5, 2, 10, 0)

    def watch(name: str) -> None:
        original = getattr(model, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append((name, model.current_task))
            if name == "begin_task":
                t = model.current_task
                assert (model.n_past_classes, model.n_seen_classes) == (2 * t, 2 * t + 2)
                assert model.n_classes_current_task == 2
            return original(*args, **kwargs)

        setattr(model, name, call)

    for name in ("begin_task", "begin_epoch", "end_epoch", "end_task"):
        watch(name)
    observed = []
    observe = model.observe

    def step(inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: int | None = None) -> float:
        observed.append((model.current_task, epoch))
        assert inputs.shape == not_aug_inputs.shape == (BATCH, 3, 32, 32) and labels.dtype == torch.long
        assert not_aug_inputs.min() >= 0 and not_aug_inputs.max() <= 1 and inputs.min() < 0
        first, end = it.dataset.get_offsets(model.current_task)
        assert bool(((labels >= first) & (labels < end)).all())
        return observe(inputs, labels, not_aug_inputs, epoch=epoch)

    model.observe = step
    host_.train(it)
    epoch_calls = ["begin_epoch", "end_epoch"] * 2
    assert calls == [(name, t) for t in range(2) for name in ("begin_task", *epoch_calls, "end_task")], calls
    steps = 2 * PER_CLASS // BATCH
    assert observed == [(t, e) for t in range(2) for e in range(2) for _ in range(steps)], observed


def check_buffer(host_: Host) -> None:
    from utils.buffer import Buffer

    buffer = Buffer(5)
    assert buffer.is_empty() and len(buffer) == 0 and buffer.buffer_size == 5
    x = torch.arange(4.0).view(4, 1, 1, 1).expand(4, 3, 2, 2)
    buffer.add_data(examples=x, labels=torch.arange(4), logits=torch.eye(4), task_labels=torch.ones(4))
    assert not buffer.is_empty() and len(buffer) == buffer.num_seen_examples == 4
    everything = buffer.get_all_data()
    assert [list(part.shape[:1]) for part in everything] == [[4]] * 4 and torch.equal(everything[1], torch.arange(4))
    np.random.seed(3)
    drawn = np.random.choice(4, size=3, replace=False)
    np.random.seed(3)
    got = buffer.get_data(3, transform=lambda v: v + 1, return_index=True, device="cpu")
    index, images, labels, logits, tasks = got
    assert index.tolist() == drawn.tolist() == labels.tolist()  # the same draws on every host
    assert torch.equal(images, x[index] + 1) and torch.equal(logits, torch.eye(4)[index])
    assert tasks.dtype == torch.int64 and tasks.tolist() == [1, 1, 1]
    assert len(buffer.get_data(99)[0]) == 4
    for _ in range(9):
        buffer.add_data(examples=x, labels=torch.arange(4) + 10, logits=torch.eye(4), task_labels=torch.zeros(4))
    assert len(buffer) == 5 and buffer.num_seen_examples == 40 and bool((buffer.labels >= 0).all())
    assert int((buffer.labels >= 10).sum()) > 1  # a reservoir of 36 more
    buffer.empty()
    assert buffer.is_empty() and len(buffer) == 0 and not hasattr(buffer, "logits")


def check_data_set_and_extra_field(host_: Host) -> None:
    it = host_.start("er")
    dataset = it.dataset
    assert (dataset.N_TASKS, dataset.N_CLASSES_PER_TASK, dataset.SETTING) == (5, 2, "class-il")
    assert tuple(dataset.SIZE) == (32, 32)
    dataset.get_data_loaders()
    loader, _ = dataset.get_data_loaders()
    assert loader is dataset.train_loader and len(dataset.test_loaders) == 2 and dataset.get_offsets() == (2, 4)
    data = loader.dataset
    n = 2 * PER_CLASS
    assert len(data) == len(data.data) == len(data.targets) == n and data.extra_return_fields == ()
    data.add_extra_return_field("place", range(n))
    assert data.extra_return_fields == ("place",)
    places = []
    for inputs, labels, _, place in loader:
        assert torch.equal(torch.as_tensor(data.targets)[place], labels) and len(inputs) == BATCH
        places += place.tolist()
    assert sorted(places) == list(range(n)) and places != list(range(n))
    for transform in (dataset.get_transform(), dataset.get_normalization_transform(), dataset.get_loss()):
        assert callable(transform)
    denormalize = dataset.get_denormalization_transform()
    assert len(denormalize.mean) == len(denormalize.std) == 3


def check_printed_result(host_: Host) -> None:
    text = host_.train(host_.start("derpp_sbs", "--stop_after 2"))
    for t in (1, 2):
        line = rf"^Accuracy for {t} task\(s\): \t \[Class-IL\]: [\d.]+ % \t \[Task-IL\]: [\d.]+ %$"
        assert re.search(line, text, re.M), text
        assert re.search(rf"^SBS task {t}: 24 examples, learning speed 0\.\d+ .*, left out 4 quickest and 4 slowest, "
                         r".* stored at 0\.\d+$", text, re.M), text


def measured_twice(it: SimpleNamespace, twin: Any) -> list[tuple[Tensor, Tensor]]:
    """Learning speeds of each task: as the plugin measures them, and by a second forward pass of every step."""
    model, results = it.model, []
    n = 2 * PER_CLASS
    count = torch.zeros(n)
    observe, end_task = model.observe, model.end_task

    def step(inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: int | None = None,
             sbs_index: Tensor | None = None) -> float:
        twin.load_state_dict(model.net.state_dict())
        twin.train()
        passes: list[Tensor] = []
        handle = model.net.register_forward_pre_hook(lambda _, given: passes.append(given[0].detach().clone()))
        loss = observe(inputs, labels, not_aug_inputs, epoch=epoch, sbs_index=sbs_index)
        handle.remove()
        batch = next(x for x in passes if len(x) >= len(inputs) and torch.equal(x[: len(inputs)], inputs))
        with torch.no_grad():
            logits = twin(batch)[: len(inputs)]
            if "rpc" in model.NAME:
                logits = logits[:, :-1] @ model.rpchead
        first, end = it.dataset.get_offsets(model.current_task)
        assert sbs_index is not None
        count[sbs_index] += (logits[:, first:end].argmax(1) + first == labels).float()
        return loss

    def end(dataset: Any) -> None:
        results.append((model.speed.value.clone(), count / it.args.n_epochs))
        count.zero_()
        end_task(dataset)

    model.observe, model.end_task = step, end
    return results


def check_eight_models_train_and_measure_what_a_second_pass_measures(host_: Host) -> None:
    from backbone import get_backbone

    for name in MODELS:
        it = host_.start(f"{name}_sbs", "--stop_after 2 --lr .02")
        speeds = measured_twice(it, get_backbone(it.args))
        host_.train(it)
        assert len(speeds) == 2, name
        for mine, second in speeds:
            assert torch.equal(mine, second), f"{name}: {mine.tolist()} and {second.tolist()}"
            assert 0 < mine.mean() < 1, f"{name}: nothing to rank in {mine.tolist()}"
        buffer = it.model.buffer
        assert 0 < len(buffer) <= BUFFER, name
        if hasattr(buffer, "labels"):
            tasks = set((buffer.labels[: len(buffer)] // 2).tolist())
            assert tasks == {0, 1} or name == "rpc", f"{name}: tasks {tasks} in the buffer"  # RPC has no room left
        assert bool(torch.isfinite(buffer.examples[: len(buffer)]).all()) and buffer.examples.max() <= 1, name


def check_samplers_scores_and_records(host_: Host) -> None:
    """What looks into the network or the data beyond a training step."""
    record = host_.base / "record.npz"
    for flags in (f"--sbs-record {record}", "--sampler herding",
                  "--sbs-score loss --sbs-during stock --sbs-scope seen"):
        text = host_.train(host_.start("derpp_sbs", f"--stop_after 2 {flags}"))
        assert "Accuracy for 2 task(s)" in text, f"{flags}: {text}"
    assert record.exists()


def check_stream_samplers(host_: Host) -> None:
    """Slots are the sampler's to give and replays its to see; as a reservoir it is the stock method, bit for bit."""
    for name in ("er", "der", "derpp"):
        more, runs = {"der": "--alpha .3", "derpp": "--alpha .3 --beta .5"}.get(name, ""), []
        for model, sampler in ((name, ""), (f"{name}_sbs", "--sampler stream-reservoir"),
                               (f"{name}_sbs", "--sampler stream-speed")):
            runs.append(host_.start(model, f"--stop_after 2 --n_epochs 1 {more} {sampler}"))
            torch.manual_seed(1)
            np.random.seed(1)
            host_.train(runs[-1])
        stock, same, ours = runs
        for attribute in ("examples", "logits"):
            if hasattr(stock.model.buffer, attribute):
                assert torch.equal(*(getattr(it.model.buffer, attribute) for it in (stock, same))), name
        sampler = ours.model.feed.sampler
        assert sampler.seen == 2 * 2 * PER_CLASS and sampler.count.max() > 1, "no replay was seen"
        if hasattr(ours.model.buffer, "labels"):
            assert ours.model.buffer.labels.tolist() == sampler.labels.tolist(), name


def check_checkpoints(host_: Host) -> None:
    """Saved after the first task, loaded without any other flag: buffer, draws and hyper-parameters are back."""
    folder = host_.base / "checkpoints"
    folder.mkdir(exist_ok=True)
    for name in ("er", "gem"):
        for old in folder.glob("*.pt"):
            old.unlink()
        saved = host_.start(f"{name}_sbs", "--stop_after 1 --savecheck task --buffer_size 30")
        host_.train(saved)
        (file,) = folder.glob("*.pt")
        words = f"--loadcheck {file} --start_from 1 --stop_after 2 --base_path {host_.base}/ --non_verbose 1".split()
        model, dataset, args = host_.main.initialize(host_.parse(words))
        assert (args.buffer_size, args.lr, args.n_epochs) == (30, 0.05, 2), args
        loaded = SimpleNamespace(model=model, dataset=dataset, args=args)
        seen: dict[str, Any] = {}
        begin = model.begin_task

        def look(dataset: Any, model: Any = model, begin: Any = begin, seen: dict = seen) -> None:
            if model.current_task == 1:  # Mammoth passes through the task before, and then loads
                seen.update(n=len(model.buffer), draw=model.generator.get_state(), labels=model.buffer.labels.clone(),
                            history=len(model._history))
            begin(dataset)

        model.begin_task = look
        text = host_.train(loaded)
        was = saved.model
        assert seen["n"] == len(was.buffer) < 30, (name, seen["n"], len(was.buffer))
        assert torch.equal(seen["draw"], was.generator.get_state()) and seen["history"] == 1
        assert torch.equal(seen["labels"], was.buffer.labels)
        assert "SBS task 2" in text and "SBS task 1" not in text, text


def check_errors_in_training_are_heard(host_: Host) -> None:
    it = host_.start("er_sbs")
    original = it.dataset.get_data_loaders

    def wrong() -> Any:
        loaders = original()
        loaders[0].dataset.targets += 7
        return loaders

    it.dataset.get_data_loaders = wrong
    try:
        host_.train(it)
    except UserError as e:
        assert "outside its classes 0 to 1" in str(e)
    else:
        raise AssertionError("labels of other tasks went unnoticed")


CHECKS: dict[str, Callable[[Host], None]] = {
    name.removeprefix("check_"): value for name, value in list(globals().items()) if name.startswith("check_")}
