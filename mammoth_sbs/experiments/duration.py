"""How long a run will take at this machine's speed, known before it begins."""

from __future__ import annotations

import time
import warnings
from argparse import Namespace
from collections import defaultdict
from datetime import timedelta
from statistics import median
from typing import Any

from mammoth_sbs import host
from mammoth_sbs.models import load_host
from mammoth_sbs.models.flags import TRIED
from mammoth_sbs.watch import say, watched

CALIBRATION_STEPS = 5  # what the host makes of an epoch in --debug_mode
CALIBRATION_SECONDS = 1.0  # of steps in a task: then the rest is passed over
LONG = 120.0  # seconds: of a run that takes less, nothing is said


def duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def announce(words: list[str]) -> None:
    """A line about a run that will be long. It costs a training step or two, and for a long run a few seconds."""
    args = load_host().parse_args(words)
    search = searches(args)
    if args.non_verbose or args.debug_mode or args.loadcheck or args.shared_first_task or not looks_long(args):
        return
    import torch

    with warnings.catch_warnings(), watched([], quiet=True):
        warnings.simplefilter("ignore")
        seconds = sum(calibrate(words, torch.get_num_threads(), most=2))
    if seconds > LONG:
        beside = ", and the search for q and s beside" if search else ""
        other = "" if args.backbone == "tiny-resnet18" else "--backbone tiny-resnet18 or "
        advice = "" if torch.cuda.is_available() else f"; {other}a GPU would change that"
        say(f"this will take about {duration(seconds)} at this machine's speed (a few steps were timed)"
            f"{beside}{advice}")


def looks_long(args: Namespace) -> bool:
    """From the number of training steps, and one that is made on a network of this kind."""
    with warnings.catch_warnings(), watched([], quiet=True):
        warnings.simplefilter("ignore")
        model, dataset, args = load_host().initialize(without_files(args))
        dataset.get_data_loaders()
        steps = len(dataset.train_loader) * args.n_epochs * min(args.stop_after or dataset.N_TASKS, dataset.N_TASKS)
        images = next(iter(dataset.train_loader))[0].to(model.device)
        took: list[float] = []
        while not took or (len(took) < 2 and took[0] * steps < 10 * LONG):  # the first is slower
            begin = time.perf_counter()
            model.net(images).sum().backward()
            took.append(time.perf_counter() - begin)
        return took[-1] * steps > LONG / 2  # replay and evaluation come on top


def without_files(args: Namespace) -> Namespace:
    """The same run, but it leaves nothing behind."""
    args.sbs_record = args.savecheck = args.tensorboard = args.wandb_entity = args.wandb_project = None
    args.resume = False
    if searches(args):  # the search for q and s is not among the steps that are timed
        args.sbs_q = args.sbs_s = 0.2
    return args


def searches(args: Namespace) -> bool:
    return bool({getattr(args, "sbs_q", None), getattr(args, "sbs_s", None)} & set(TRIED))


def calibrate(words: list[str], threads: int, most: int = CALIBRATION_STEPS) -> tuple[float, float]:
    """Seconds that the first task would take, and all the rest of the run: from at `most` so many steps of two tasks,
    on no more images than these need, and an evaluation of as many images as a step has."""
    import torch

    main = load_host()
    torch.set_num_threads(threads)
    if not host.is_embedded():
        return calibrate_mammoth(main, words, most)
    from mammoth_sbs.models.record import images_passed

    from utils import training

    args = main.parse_args(words)
    recorded = args if args.sbs_record else None
    whole = main.initialize(without_files(args))[1]
    tasks, epochs = min(args.stop_after or whole.N_TASKS, whole.N_TASKS), args.n_epochs
    steps = []
    for _ in range(min(tasks, 2)):
        whole.get_data_loaders()
        steps.append(len(whole.train_loader))
    trained, tested = (len(loader.dataset) for loader in (whole.train_loader, whole.test_loaders[0]))
    few = -(-most * args.batch_size * whole.N_TASKS // whole.N_CLASSES)
    args = without_files(main.parse_args(words))
    args.train_per_class = min(few, args.train_per_class or few, int(whole.train_counts().min()))

    start = time.perf_counter()
    model, dataset, args = main.initialize(args)
    build = time.perf_counter() - start
    seconds: defaultdict[int, list[float]] = defaultdict(list)
    evaluating: list[float] = []  # per image
    observe, evaluate = model.meta_observe, training.evaluate

    def timed(*batch: Any, **fields: Any) -> float:
        if sum(seconds[model.current_task]) > CALIBRATION_SECONDS:
            return 0.0
        begin = time.perf_counter()
        loss = observe(*batch, **fields)
        seconds[model.current_task].append(time.perf_counter() - begin)
        return loss

    @torch.no_grad()
    def evaluate_a_batch(model: Any, dataset: Any, last: bool = False) -> tuple[list[float], list[float]]:
        inputs = next(iter(dataset.test_loaders[-1]))[0][: args.batch_size].to(model.device)
        begin = time.perf_counter()
        model.net.eval()
        model(inputs)
        model.net.train()
        evaluating.append((time.perf_counter() - begin) / len(inputs))
        found = [0.0] * (1 if last else len(dataset.test_loaders))
        return found, found

    model.meta_observe, training.evaluate = timed, evaluate_a_batch
    args.debug_mode = args.disable_log = args.non_verbose = True
    within = (epochs - 1) // args.eval_epochs if args.eval_epochs else 0  # evaluations before a task ends
    within += epochs * steps[-1] // args.eval_steps if args.eval_steps else 0
    args.n_epochs, args.stop_after = 1, min(tasks, 2)
    try:
        main.train(model, dataset, args)
    finally:
        training.evaluate = evaluate
    first, *other = (epochs * n * median(seconds[task] or [0.0]) for task, n in enumerate(steps))
    passed = tested * (1 + within) * tasks * (tasks + 1) / 2  # after each task on all so far
    passed += tested * 2 * tasks * bool(args.enable_other_metrics)
    if recorded is not None:
        passed += images_passed(trained, tested, tasks, recorded)
    return first, build + (tasks - 1) * sum(other) + median(evaluating) * passed


def calibrate_mammoth(main: Any, words: list[str], most: int) -> tuple[float, float]:
    """The same on a user's own Mammoth, more roughly: from steps of the first task, and no task is shared."""
    import torch

    begin = time.perf_counter()
    args = main.parse_args([*words, "--disable_log", "1"])
    model, dataset, args = main.initialize(without_files(args))
    loader, tests = dataset.get_data_loaders()
    model.net.train()
    model.meta_begin_task(dataset)
    build = time.perf_counter() - begin
    fields, took = loader.dataset.extra_return_fields, []
    for _, batch in zip(range(most), loader, strict=False):
        begin = time.perf_counter()
        more = {name: value.to(model.device) for name, value in zip(fields, batch[3:], strict=False)}
        model.meta_observe(*(part.to(model.device) for part in batch[:3]), epoch=0, **more)
        took.append(time.perf_counter() - begin)
    begin = time.perf_counter()
    with torch.no_grad():
        model.net(next(iter(tests))[0].to(model.device))
    evaluating = (time.perf_counter() - begin) * len(tests)
    tasks = min(args.stop_after or dataset.N_TASKS, dataset.N_TASKS)
    return 0.0, build + tasks * args.n_epochs * len(loader) * median(took) + evaluating * tasks * (tasks + 1) / 2
