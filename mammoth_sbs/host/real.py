"""A user's Mammoth with the embedded host's way in, so that sweeps and commands have one code path for both.

`parse_args(words)`, `initialize(args)` and `train(model, dataset, args)`, which returns what is kept of a run. A
namespace is to be initialized before the next command line is read: Mammoth keeps a split in its data set's class.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import os
import re
import shlex
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from mammoth_sbs.errors import UserError, reason
from mammoth_sbs.few import per_class
from mammoth_sbs.files import partial_folder, try_to_write, write_somewhere
from mammoth_sbs.host import MODELS, as_seen_from_here, commit, published, way_in
from mammoth_sbs.parser import program
from mammoth_sbs.result import metrics, new_id, result_file, run_record
from mammoth_sbs.values import at_least
from mammoth_sbs.watch import say

OTHERWISE = ("n_tasks", "train_per_class", "test_per_class")  # flags of the embedded host that can be had here too
OF_THE_START = {"conf_jobnum", "conf_timestamp", "conf_host", "conf_git_hash", "nowand", "notes", "load_best_args",
                "save_checkpoint_mode", "save_after_interrupt", "cache_path_noisy_labels",
                "wandb_url"}  # arguments that make no other run
Words = list[str]


class Mammoth:
    """The host's `main` module; other names are the module's own."""

    OF_THE_START = OF_THE_START

    def __init__(self, module: ModuleType, folder: Path) -> None:
        self.module, self.folder = module, folder
        self.asked: dict[str, type] = {}  # the method that the last command line asked for, if it was made for it
        self.classes: dict[type, dict[str, Any]] = {}  # of data sets, as they were before a split was chosen
        self.offer: Callable[[dict[str, Any], str, bool], type | None] = lambda known, name, is_recorded: None
        self._names = self._extend_models()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    @contextlib.contextmanager
    def at_home(self, words: Words | None = None) -> Iterator[None]:
        """Mammoth looks for its files below the working directory, and at the command line that it was started with."""
        here, typed = os.getcwd(), sys.__dict__["argv"]
        os.chdir(self.folder)
        if words is not None:
            sys.__dict__["argv"] = [str(self.folder / "main.py"), *words]
        try:
            yield
        finally:
            sys.__dict__["argv"] = typed
            os.chdir(here)

    # ---- methods

    def _extend_models(self) -> Callable[[], dict[str, Any]]:
        """Let the host find methods that a command line asks for and that are made for it."""
        models = importlib.import_module("models")
        names = models.get_model_names

        def extended() -> dict[str, Any]:
            with self.at_home():  # whoever asks, and wherever from
                return {**names(), **self.asked}

        for module in (models, importlib.import_module("utils.args")):
            vars(module)["get_model_names"] = extended
        return names

    # ---- the command line

    def parse_args(self, cmd: Words, verbose: bool = False) -> Namespace:
        """The arguments of a command line, as Mammoth reads it; what is wrong with it is one line."""
        words, more = self.translate(as_seen_from_here(list(cmd)))
        self.forget_splits()
        with self.at_home(words), self.split(more.get("n_tasks")), quiet(not verbose), one_line_for(words):
            args = self.module.parse_args(words, verbose=verbose)
        vars(args).update(more, command=self.command(cmd))
        return args

    def translate(self, words: Words) -> tuple[Words, dict[str, int]]:
        """Without the flags that Mammoth lacks and that are given to it otherwise; and these."""
        given = by_flag(words)
        more = {}
        for name in OTHERWISE:
            if (values := given.pop(f"--{name}", None)) is not None:
                try:
                    more[name] = at_least(1)(" ".join(values))
                except Exception as e:
                    raise UserError(f"argument --{name}: {e}") from None
        model, dataset = (" ".join(given.get(flag, [])).replace("_", "-") for flag in ("--model", "--dataset"))
        if given.get("--model_config") == ["best"] and not self.has_best(model, dataset, given.get("--buffer_size")):
            stock = model.removesuffix("-sbs")
            if stock in MODELS and (ours := published(stock, dataset)):
                del given["--model_config"]
                for name, value in ours.items():
                    given.setdefault(f"--{name}", [str(value)])
        self.asked.clear()
        if "--sbs-record" in given or model.endswith("-sbs"):
            with self.at_home(), quiet(True):
                made = self.offer(self._names(), model, "--sbs-record" in given)
            if made is not None:
                self.asked[model] = made
        return [word for flag, values in given.items() for word in (flag, *values)], more

    def has_best(self, model: str, dataset: str, buffer: Words | None) -> bool:
        """Whether the checkout has a `best` configuration for these; Mammoth stops where it has not."""
        for file in (self.folder / "models" / "config").glob("*.yaml"):
            if re.sub("[-_]", "", file.stem) == re.sub("[-_]", "", model):
                found = (yaml.safe_load(file.read_text(encoding="utf-8")) or {}).get(dataset)
                return found is not None and (buffer is None or not buffer[0].isdecimal() or int(buffer[0]) in found)
        return False

    @contextlib.contextmanager
    def split(self, n_tasks: int | None) -> Iterator[None]:
        """`--n_tasks` as what it is here: a configuration of the data set."""
        utils = importlib.import_module("datasets.utils")
        load = utils.load_dataset_config

        def with_split(name: str | None, dataset: str) -> dict[str, Any]:
            cls = importlib.import_module("datasets").get_dataset_class(Namespace(dataset=dataset))
            self.classes.setdefault(cls, dict(vars(cls)))
            config = load(name, dataset)
            if n_tasks is None:
                return config
            classes = config.get("N_CLASSES") or cls.N_CLASSES
            if classes % n_tasks:
                raise UserError(f"--n_tasks {n_tasks} does not divide the {classes} classes of {dataset}; give a "
                                "number that does")
            return {**config, "N_TASKS": n_tasks, "N_CLASSES_PER_TASK": classes // n_tasks, "N_CLASSES": classes}

        vars(utils)["load_dataset_config"] = with_split
        try:
            yield
        finally:
            vars(utils)["load_dataset_config"] = load

    def forget_splits(self) -> None:
        """Data sets' classes as they were before the last command line."""
        for cls, before in self.classes.items():
            for name in set(vars(cls)) - set(before):
                delattr(cls, name)
            for name, value in before.items():
                if vars(cls).get(name) is not value:
                    setattr(cls, name, value)

    def command(self, words: Words) -> str:
        return f"{way_in()}{program()} {shlex.join(words)}"

    # ---- the run

    def initialize(self, args: Namespace, must_compile: bool = False) -> tuple[Any, Any, Namespace]:
        """Method, data set and arguments."""
        with self.at_home([]):
            try:
                model, dataset, args = self.module.initialize(args)
            except (AssertionError, NotImplementedError) as e:
                raise UserError(f"MAMMOTH_ROOT {self.folder}: Mammoth refuses this run: {reason(e)}") from None
        if dataset.SETTING not in ("class-il", "task-il", "domain-il"):
            raise UserError(f"--dataset {args.dataset}: its setting is {dataset.SETTING}, which has no accuracy per "
                            "task; use Mammoth's own main.py")
        self.cut(dataset, args)
        return model, dataset, args

    def cut(self, dataset: Any, args: Namespace) -> None:
        """A few images of every class, the same as on the embedded host, if the flags say so."""
        if not (getattr(args, "train_per_class", None) or getattr(args, "test_per_class", None)):
            return
        if args.validation:
            raise UserError("--validation: Mammoth cannot hold data out of a few images of every class; leave out "
                            "--train_per_class and --test_per_class, or export a few images (mammoth-sbs data export)")
        module = sys.modules[type(dataset).__module__]
        store = getattr(module.store_masked_loaders, "whole", module.store_masked_loaders)

        def few(train: Any, test: Any, setting: Any) -> Any:
            for data, flag in ((train, "train_per_class"), (test, "test_per_class")):
                if count := getattr(setting.args, flag, None):
                    few_of(data, count, f"--{flag}")
            return store(train, test, setting)

        few.whole = store  # type: ignore[attr-defined]
        vars(module)["store_masked_loaders"] = few

    def check_places(self, model: Any, dataset: Any, args: Namespace) -> None:
        """What would go wrong at the first task: its data is read."""
        with self.at_home([]):
            dataset.get_data_loaders()

    def train(self, model: Any, dataset: Any, args: Namespace, plain: bool = True) -> dict[str, Any]:
        """Train by Mammoth's own loop; returns what is kept of the run, from the numbers that its loop hands over to
        be logged. Not `plain`: with Mammoth's own handling of signals, which saves a checkpoint."""
        loop = importlib.import_module("utils.training").train
        loop = getattr(loop, "__wrapped__", loop) if plain else loop
        results, info = [], {}
        begin, write = time.monotonic(), not args.disable_log
        log = type(dataset).log

        def keep(self: Any, args: Any, logger: Any, accs: Any, t: Any, *rest: Any, **more: Any) -> Any:
            if t == "final":
                info["test"] = {"class_il": list(accs[0]), "task_il": list(accs[1])}
            elif more.get("epoch") is None and not more.get("future"):
                results.append((list(accs[0]), list(accs[1])))
            return log(self, args, logger, accs, t, *rest, **more)

        tasks = min(args.stop_after or dataset.N_TASKS, dataset.N_TASKS) - (args.start_from or 0)
        known = Namespace(**vars(args))
        file = result_file(known, dataset.SETTING, new_id())
        if write:
            try_to_write(file, "result file", "--base_path and --results_path")
        with partial_folder() as nowhere, self.at_home([]):
            if not write:  # Mammoth's loop fails without a log
                args.disable_log, args.results_path = False, str(nowhere)
            type(dataset).log = keep
            try:
                loop(model, dataset, args)
            finally:
                type(dataset).log = log
                args.disable_log, args.results_path = known.disable_log, known.results_path
        if len(results) < tasks:
            raise KeyboardInterrupt  # which Mammoth has caught
        if hasattr(model, "run_info"):
            info |= model.run_info()
        seconds, code = time.monotonic() - begin, f"Mammoth {commit(self.folder)}"
        record = run_record(known, metrics(results, None), seconds, info, code)
        if write:
            text = json.dumps(record, indent=1).encode()
            place, elsewhere = write_somewhere(file, lambda f: f.write(text), "result file")
            say(elsewhere or f"result file: {place}")
        return record

    def main(self, words: Words) -> dict[str, Any]:
        """All of a run."""
        return self.train(*self.initialize(self.parse_args(words, verbose=True)), plain=False)


def by_flag(words: Words) -> dict[str, Words]:
    """What is given to each flag. One that is given twice is a mistake."""
    found: dict[str, Words] = {}
    for word in words:
        if word.startswith("--") or not found:
            flag, equals, value = word.partition("=")
            if flag in found:
                raise UserError(f"{flag} is given twice; give it once")
            found[flag] = [value] if equals else []
        else:
            found[next(reversed(found))].append(word)
    return found


@contextlib.contextmanager
def quiet(wanted: bool) -> Iterator[None]:
    """Without Mammoth's warnings, most of which are about methods that nobody asked for."""
    before = logging.root.manager.disable
    if wanted:
        logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def one_line_for(words: Words) -> Iterator[None]:
    """argparse's and Mammoth's complaints about a command line as a `UserError`."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            yield
    except SystemExit as e:
        if not e.code:
            raise
        line = (said.getvalue().strip().splitlines() or ["not a command line that Mammoth takes"])[-1]
        line = line.partition("error: ")[2] or line
        if line.startswith("unrecognized arguments: "):
            flag = line.split()[2]
            line = f"{flag}: Mammoth has no such flag here; leave it out, or unset MAMMOTH_ROOT for the embedded host"
        raise UserError(line) from None
    except (AssertionError, FileNotFoundError, KeyError, ValueError) as e:
        flag = "--model_config: " if "onfiguration" in str(e) and "--model_config" in words else ""
        raise UserError(f"{flag}{reason(e)}") from None
    print(said.getvalue(), file=sys.stderr, end="")


def few_of(data: Any, count: int, flag: str) -> None:
    """Leave `count` images of every class."""
    import numpy as np

    labels = np.asarray(data.targets)
    least = int(np.bincount(labels).min())
    if count > least:
        raise UserError(f"{flag} {count}: a class has {least} images; give at most {least}")
    rows = per_class(labels, count, 0)
    data.data, data.targets = data.data[rows], labels[rows]
