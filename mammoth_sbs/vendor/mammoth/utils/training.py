"""The loop over tasks, epochs and batches."""

from __future__ import annotations

import math
import time
from argparse import Namespace
from pathlib import Path
from statistics import fmean
from typing import Any

from mammoth_sbs import watch
from mammoth_sbs.errors import UserError
from mammoth_sbs.result import NOT_OF_THE_FIRST_TASK, SETTINGS, Accuracies, metrics, run_record, write_run
from mammoth_sbs.watch import say

from datasets import get_dataset
from datasets.utils.continual_dataset import ContinualDataset
from models.utils.continual_model import ContinualModel
from utils.boards import boards
from utils.checkpoints import load_checkpoint, save_checkpoint
from utils.conf import get_checkpoint_path
from utils.evaluate import evaluate
from utils.loggers import print_mean_accuracy, print_metrics, print_table
from utils.progress import Progress
from utils.schedulers import get_scheduler


def train_task(model: ContinualModel, dataset: ContinualDataset, args: Namespace, note: str = "",
               title: str | None = None, during: list[dict[str, Any]] | None = None) -> float:
    """All epochs of one task; `during` takes what `--eval_epochs` asks for. Returns the mean loss of the last epoch."""
    loader, device = dataset.train_loader, model.device
    scheduler = get_scheduler(model, args)
    steps = min(len(loader), model.get_debug_iters()) if args.debug_mode else len(loader)
    title = title or f"Task {model.current_task + 1}/{dataset.N_TASKS}"
    progress = Progress(title, args.n_epochs * steps, args.non_verbose, note)
    for epoch in range(args.n_epochs):
        losses = 0.0
        model.meta_begin_epoch(epoch, dataset)
        for _, (inputs, labels, not_aug_inputs, *rest) in zip(range(steps), loader, strict=False):
            fields = {name: value.to(device)
                      for name, value in zip(loader.dataset.extra_return_fields, rest, strict=True)}
            loss = model.meta_observe(inputs.to(device), labels.to(device), not_aug_inputs.to(device),
                                      epoch=epoch, **fields)
            if not math.isfinite(loss):
                progress.close()
                raise UserError(f"the loss became {loss} in task {model.current_task + 1}, epoch {epoch + 1}: "
                                f"lower --lr (now {args.lr:g}); checkpoints of earlier tasks are kept")
            progress.step(loss)
            losses += loss
            tell("step", model, dataset, args, epoch + 1, progress.done, progress.total, loss)
        model.meta_end_epoch(epoch, dataset)
        if scheduler is not None:
            scheduler.step()
        done, accuracies = epoch + 1, None
        if during is not None and args.eval_epochs and done % args.eval_epochs == 0 and done < args.n_epochs:
            accuracies, task = evaluate(model, dataset), model.current_task + 1
            progress.bar.clear()  # a terminal shows the bar again below the line
            print_mean_accuracy(accuracies, task, bool(args.joint), epoch=done)
            during.append({"task": task, "epoch": done, **dict(zip(SETTINGS, accuracies, strict=True))})
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
    order = dataset.train_loader.generator
    if shared is not None and shared.exists():
        state = load_checkpoint(shared, model, args, "--shared_first_task", NOT_OF_THE_FIRST_TASK)
        order.set_state(state["order"])
        if during is not None:
            during += state.get("during", [])
        return math.nan
    loss = train_task(model, dataset, args, during=during)
    if shared is not None:
        save_checkpoint(shared, model, args, 0, [], order=order.get_state(), during=during or [])
    return loss


def checkpoint_name(args: Namespace) -> str:
    """What `--savecheck` calls its files, but for the task."""
    buffer = getattr(args, "buffer_size", 0)
    return args.ckpt_name or f"{args.model}_{args.dataset}_{args.dataset_config}_{buffer}_{args.n_epochs}_{args.seed}"


def checkpoint_file(args: Namespace, task: int) -> Path:
    """Where `--savecheck` puts the state after a task."""
    return Path(get_checkpoint_path()) / f"{checkpoint_name(args)}_{'last' if args.savecheck == 'last' else task}.pt"


def train(model: ContinualModel, dataset: ContinualDataset, args: Namespace) -> dict[str, Any]:
    """Learn the tasks one after the other, evaluating on all so far after each. Returns what the result file holds."""
    shown = boards(args)
    try:
        with watch.watched(shown):
            return learn(model, dataset, args)
    finally:
        for board in shown:
            board.close()


def learn(model: ContinualModel, dataset: ContinualDataset, args: Namespace) -> dict[str, Any]:
    """All tasks that the run is to learn."""
    begin = time.monotonic()
    results: list[Accuracies] = []
    during: list[dict[str, Any]] = []  # for --eval_epochs
    first, end = args.start_from or 0, min(args.stop_after or dataset.N_TASKS, dataset.N_TASKS)
    untrained = evaluate_untrained(model, args, end) if args.enable_other_metrics else []
    ahead: list[tuple[Accuracies, Accuracies]] | None = [] if args.enable_other_metrics else None
    if args.loadcheck is not None:
        state = load_checkpoint(args.loadcheck, model, args, may_differ={"compile"})
        first = state["tasks_done"] if args.start_from is None else args.start_from
        results = state["results"][:first]
        during = [entry for entry in state.get("during", []) if entry["task"] <= first]
        if ahead is not None:  # not known if the tasks before were learned without it
            ahead = state["ahead"][:first] if state.get("ahead") is not None else None
    if first >= end:
        raise UserError(f"nothing to do: the run would start at task {first + 1} and stop after task {end}; "
                        "see --start_from, --stop_after and --loadcheck")
    if args.savecheck:
        say(f"Saving checkpoint into: {checkpoint_name(args)}")
    model.net.train()
    for _ in range(first):  # go to the first task; what earlier ones left is in the checkpoint
        dataset.get_data_loaders()
    model._current_task = first
    for task in range(first, end):
        dataset.get_data_loaders()
        if ahead is not None:
            ahead.append((evaluate(model, dataset, last=True) if results else untrained[task], untrained[task]))
        model.meta_begin_task(dataset)
        if task == 0:
            loss = learn_first_task(model, dataset, args, during)
        else:
            note = f", acc {fmean(results[-1][0]):.1f}" if results else ""
            loss = train_task(model, dataset, args, note, during=during)
        model.meta_end_task(dataset)
        results.append(evaluate(model, dataset))
        model.meta_end_eval(dataset, results[-1])
        print_mean_accuracy(results[-1], task + 1, bool(args.joint))
        steps = args.n_epochs * len(dataset.train_loader)
        tell("task", model, dataset, args, args.n_epochs, steps, steps, loss, results[-1])
        if args.savecheck == "task" or (args.savecheck == "last" and task == end - 1):
            save_checkpoint(checkpoint_file(args, task), model, args, task + 1, results, during=during, ahead=ahead)
    found = metrics(results, ahead)
    print_table(results)
    print_metrics(found)
    if args.enable_other_metrics and ahead is None:
        say(f"forward transfer is not known: {args.loadcheck} was saved without --enable_other_metrics 1")
    info: dict = getattr(model, "run_info", dict)()
    if args.validation:
        final = evaluate_on_test(model, args, end)
        print_mean_accuracy(final, end, bool(args.joint), "FINAL ")
        info["test"] = {"class_il": final[0], "task_il": final[1]}
    if during:
        info["eval_epochs"] = during
    record = run_record(args, found, time.monotonic() - begin, info)
    if not args.disable_log:
        say(f"\nresult file: {write_run(args, dataset.SETTING, record)}")
    return record


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
