"""The loop over tasks, epochs and batches."""

from __future__ import annotations

import math
from argparse import Namespace
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import Tensor

from mammoth_sbs import watch
from mammoth_sbs.errors import UserError, heed
from mammoth_sbs.result import NOT_OF_THE_FIRST_TASK, SETTINGS, Accuracies, metrics
from mammoth_sbs.watch import say, warn

from datasets import get_dataset
from datasets.utils.continual_dataset import ContinualDataset, batches_on
from models.utils.continual_model import ContinualModel
from utils.boards import boards
from utils.checkpoints import check_same_run, place_in_task, read_checkpoint, restore, save_checkpoint
from utils.evaluate import evaluate
from utils.loggers import print_mean_accuracy, print_metrics, print_table
from utils.progress import Progress
from utils.run import Run
from utils.schedulers import get_scheduler

LOOK = 50  # steps after which a GPU's loss is looked at


def train_task(model: ContinualModel, dataset: ContinualDataset, args: Namespace, note: str = "",
               title: str | None = None, during: list[dict[str, Any]] | None = None) -> float:
    """All epochs of one task that a checkpoint has not behind it; `during` takes what `--eval_epochs` and
    `--eval_steps` ask for.

    Returns the mean loss of the last epoch.
    """
    loader, device, run = dataset.train_loader, model.device, model.run
    scheduler = get_scheduler(model, args)
    steps = min(len(loader), model.get_debug_iters()) if args.debug_mode else len(loader)
    title = title or f"Task {model.current_task + 1}/{dataset.N_TASKS}"
    first = run.begin_training(loader, scheduler) if run is not None else 0
    if during is not None and not model.current_task and args.eval_steps and args.eval_steps > args.n_epochs * steps:
        warn(f"--eval_steps {args.eval_steps}: the first task has {args.n_epochs * steps} steps, so nothing is "
             "measured on the way; give less")
    progress = Progress(title, args.n_epochs * steps, args.non_verbose, note, first * steps)
    losses: Any = math.nan
    known = math.nan  # the loss that was looked at last
    for epoch in range(first, args.n_epochs):
        losses = 0.0
        model.meta_begin_epoch(epoch, dataset)
        for i, (inputs, labels, not_aug_inputs, *rest) in zip(range(steps), batches_on(loader, device), strict=False):
            fields = {name: value.to(device)
                      for name, value in zip(loader.dataset.extra_return_fields, rest, strict=True)}
            loss = model.meta_observe(inputs.to(device), labels.to(device), not_aug_inputs.to(device),
                                      epoch=epoch, **fields)
            losses += loss
            if not isinstance(loss, Tensor) or i % LOOK == LOOK - 1 or i == steps - 1:
                known, losses = float(loss), float(losses)  # on a GPU, the wait for all steps so far
                if not math.isfinite(losses):
                    progress.close()
                    bad = losses if math.isfinite(known) else known
                    raise UserError(f"the loss became {bad} in task {model.current_task + 1}, epoch {epoch + 1}: "
                                    f"lower --lr (now {args.lr:g}); checkpoints of earlier tasks are kept")
            heed()
            progress.step(known)
            if during is not None and args.eval_steps and progress.done % args.eval_steps == 0:
                during.append({"task": model.current_task + 1, "step": progress.done,
                               **dict(zip(SETTINGS, evaluate(model, dataset), strict=True))})
            tell("step", model, dataset, args, epoch + 1, progress.done, progress.total, known)
        model.meta_end_epoch(epoch, dataset)
        if scheduler is not None:
            scheduler.step()
        done, accuracies = epoch + 1, None
        if during is not None and args.eval_epochs and done % args.eval_epochs == 0 and done < args.n_epochs:
            accuracies, task = evaluate(model, dataset), model.current_task + 1
            progress.bar.clear()  # a terminal shows the bar again below the line
            print_mean_accuracy(accuracies, task, bool(args.joint), epoch=done)
            during.append({"task": task, "epoch": done, **dict(zip(SETTINGS, accuracies, strict=True))})
        if run is not None:
            run.epoch_done(done, loader, scheduler)
        tell("epoch", model, dataset, args, done, progress.done, progress.total, losses / steps, accuracies)
    progress.close()
    return losses / steps


def tell(event: str, model: ContinualModel, dataset: ContinualDataset, args: Namespace, epoch: int, step: int,
         steps: int, loss: float, accuracies: Accuracies | None = None) -> None:
    """Where the run stands, for whoever watches it."""
    if not watch.watchers():
        return
    task = model.current_task + (event != "task")  # when a task has ended, the next is the current one
    class_il, task_il = accuracies or (None, None)
    speed = getattr(model, "speed", None) if event == "epoch" else None
    learned = getattr(model, "learned", None) if event == "task" else None
    now = watch.Progress(event, task, min(args.stop_after or dataset.N_TASKS, dataset.N_TASKS), epoch, args.n_epochs,
                         step, steps, loss, 100 * speed.accuracy if speed is not None else None, class_il, task_il,
                         learned)
    for watcher in watch.watchers():
        watcher(now)


def learn_first_task(model: ContinualModel, dataset: ContinualDataset, args: Namespace,
                     during: list[dict[str, Any]] | None = None) -> float:
    """The first task, up to the moment before `end_task`: from `--shared_first_task` if another run left it there."""
    shared = Path(args.shared_first_task) if args.shared_first_task else None
    within = model.run is not None and model.run.inside is not None
    if shared is not None and shared.exists() and not within:
        state = from_another_run(shared, args)
        if state is not None:
            restore(state, model, dataset.train_loader)
            if during is not None:
                during += state["during"]
            if model.run is not None:
                model.run.leg = 1
            return math.nan
    loss = train_task(model, dataset, args, during=during)
    if shared is not None:
        inside = place_in_task(model, dataset.train_loader, None, args.n_epochs)
        try:
            save_checkpoint(shared, model, args, 0, [], inside=inside, run="", seconds=0.0, during=during or [],
                            ahead=None)
        except UserError as e:
            warn(f"{e.what}; the run goes on without it")
    return loss


def from_another_run(shared: Path, args: Namespace) -> dict[str, Any] | None:
    """A shared first task; one that is damaged is learned again."""
    try:
        state = read_checkpoint(shared, "--shared_first_task")
    except UserError as e:
        warn(f"{e.what}; the task is learned again")
        return None
    check_same_run(state, args, f"--shared_first_task {shared}", "leave these flags out", NOT_OF_THE_FIRST_TASK)
    return state


def train(model: ContinualModel, dataset: ContinualDataset, args: Namespace) -> dict[str, Any]:
    """Learn the tasks one after the other, evaluating on all so far after each. Returns what the result file holds."""
    run = model.run = Run(model, dataset, args)
    shown: list[Any] = []
    try:
        untrained = evaluate_untrained(model, args, run.end) if args.enable_other_metrics else []
        finished = run.prepare()
        if finished is not None:
            return finished
        shown += boards(args)
        with watch.watched(shown):
            return learn(run, untrained)
    except KeyboardInterrupt as e:
        raise run.stopped(e) from None
    finally:
        for board in shown:
            board.close()


def learn(run: Run, untrained: list[Accuracies]) -> dict[str, Any]:
    """All tasks that the run is to learn."""
    model, dataset, args = run.model, run.dataset, run.args
    model.net.train()
    for _ in range(run.first):  # go to the first task; what earlier ones left is in the checkpoint
        dataset.get_data_loaders()
    model._current_task = run.first
    for task in range(run.first, run.end):
        dataset.get_data_loaders()
        if run.ahead is not None and len(run.ahead) == len(run.results):
            before = evaluate(model, dataset, last=True) if run.results else untrained[task]
            run.ahead.append((before, untrained[task]))
        model.meta_begin_task(dataset)
        if task == 0:
            loss = learn_first_task(model, dataset, args, run.during)
        else:
            note = f", acc {fmean(run.results[-1][0]):.1f}" if run.results else ""
            loss = train_task(model, dataset, args, note, during=run.during)
        model.meta_end_task(dataset)
        accuracies = evaluate(model, dataset)
        model.meta_end_eval(dataset, accuracies)
        print_mean_accuracy(accuracies, task + 1, bool(args.joint))
        steps = args.n_epochs * len(dataset.train_loader)
        run.task_done(accuracies)
        tell("task", model, dataset, args, args.n_epochs, steps, steps, loss, accuracies)
    print_table(run.results)
    print_metrics(metrics(run.results, run.ahead, run.during))
    if args.enable_other_metrics and run.ahead is None:
        say("forward transfer is not known: the checkpoint was saved without --enable_other_metrics 1")
    info = {}
    if args.validation:
        final = evaluate_on_test(model, args, run.end)
        print_mean_accuracy(final, run.end, bool(args.joint), "FINAL ")
        info["test"] = {"class_il": final[0], "task_il": final[1]}
    return run.finish(info)


def evaluate_untrained(model: ContinualModel, args: Namespace, tasks: int) -> list[Accuracies]:
    """Accuracy of the network as it was made, on each task alone: what forward transfer is measured from."""
    dataset, found = get_dataset(args), []
    for _ in range(tasks):
        dataset.get_data_loaders()
        found.append(evaluate(model, dataset, last=True))
    return found


def evaluate_on_test(model: ContinualModel, args: Namespace, tasks: int) -> tuple[list[float], list[float]]:
    """Accuracy on the real test set, for runs that looked at validation data so far."""
    dataset = get_dataset(Namespace(**{**vars(args), "validation": None}))
    for _ in range(tasks):
        dataset.get_data_loaders()
    return evaluate(model, dataset)
