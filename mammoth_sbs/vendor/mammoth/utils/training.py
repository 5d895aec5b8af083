"""The loop over tasks, epochs and batches."""

from __future__ import annotations

import math
import time
from argparse import Namespace
from pathlib import Path
from statistics import fmean
from typing import Any

from mammoth_sbs.errors import UserError

from datasets import get_dataset
from datasets.utils.continual_dataset import ContinualDataset
from models.utils.continual_model import ContinualModel
from utils.args import say
from utils.checkpoints import NOT_OF_THE_FIRST_TASK, load_checkpoint, save_checkpoint
from utils.conf import get_checkpoint_path
from utils.evaluate import evaluate
from utils.loggers import (
    SETTINGS,
    Accuracies,
    metrics,
    print_mean_accuracy,
    print_metrics,
    print_table,
    write_run,
)
from utils.progress import Progress
from utils.schedulers import get_scheduler


def train_task(model: ContinualModel, dataset: ContinualDataset, args: Namespace, note: str = "",
               title: str | None = None, during: list[dict[str, Any]] | None = None) -> None:
    """All epochs of one task; `during` takes what `--eval_epochs` asks for."""
    loader, device = dataset.train_loader, model.device
    scheduler = get_scheduler(model, args)
    steps = min(len(loader), model.get_debug_iters()) if args.debug_mode else len(loader)
    title = title or f"Task {model.current_task + 1}/{dataset.N_TASKS}"
    progress = Progress(title, args.n_epochs * steps, args.non_verbose, note)
    for epoch in range(args.n_epochs):
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
        model.meta_end_epoch(epoch, dataset)
        if scheduler is not None:
            scheduler.step()
        done = epoch + 1
        if during is not None and args.eval_epochs and done % args.eval_epochs == 0 and done < args.n_epochs:
            accuracies, task = evaluate(model, dataset), model.current_task + 1
            progress.bar.clear()  # a terminal shows the bar again below the line
            print_mean_accuracy(accuracies, task, bool(args.joint), epoch=done)
            during.append({"task": task, "epoch": done, **dict(zip(SETTINGS, accuracies, strict=True))})
    progress.close()


def learn_first_task(model: ContinualModel, dataset: ContinualDataset, args: Namespace,
                     during: list[dict[str, Any]] | None = None) -> None:
    """The first task, up to the moment before `end_task`: from `--shared_first_task` if another run left it there."""
    shared = Path(args.shared_first_task) if args.shared_first_task else None
    order = dataset.train_loader.generator
    if shared is not None and shared.exists():
        state = load_checkpoint(shared, model, args, "--shared_first_task", NOT_OF_THE_FIRST_TASK)
        order.set_state(state["order"])
        if during is not None:
            during += state.get("during", [])
        return
    train_task(model, dataset, args, during=during)
    if shared is not None:
        save_checkpoint(shared, model, args, 0, [], order=order.get_state(), during=during or [])


def checkpoint_name(args: Namespace) -> str:
    """What `--savecheck` calls its files, but for the task."""
    buffer = getattr(args, "buffer_size", 0)
    return args.ckpt_name or f"{args.model}_{args.dataset}_{args.dataset_config}_{buffer}_{args.n_epochs}_{args.seed}"


def checkpoint_file(args: Namespace, task: int) -> Path:
    """Where `--savecheck` puts the state after a task."""
    return Path(get_checkpoint_path()) / f"{checkpoint_name(args)}_{'last' if args.savecheck == 'last' else task}.pt"


def train(model: ContinualModel, dataset: ContinualDataset, args: Namespace) -> None:
    """Learn the tasks one after the other, evaluating on all so far after each."""
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
            learn_first_task(model, dataset, args, during)
        else:
            train_task(model, dataset, args, f", acc {fmean(results[-1][0]):.1f}" if results else "", during=during)
        model.meta_end_task(dataset)
        results.append(evaluate(model, dataset))
        model.meta_end_eval(dataset, results[-1])
        print_mean_accuracy(results[-1], task + 1, bool(args.joint))
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
    if not args.disable_log:
        seconds = time.monotonic() - begin
        say(f"\nresult file: {write_run(args, args.command, dataset.SETTING, found, seconds, info)}")


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
