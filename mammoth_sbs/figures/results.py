"""Finished runs as a figure needs them: which bar or cell a run belongs to, what is compared, what may be averaged.

Runs are averaged over seeds and over nothing else. Where anything but the compared flags differs, a line says so.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from mammoth_sbs.errors import UserError
from mammoth_sbs.experiments.store import FIRST_FLAGS, check_versions, differ, is_results, read_all
from mammoth_sbs.metrics import METRICS

SETTINGS = {"task_il": "Task-IL", "class_il": "Class-IL"}
METHODS = {"er": "ER", "der": "DER", "derpp": "DER++", "xder": "X-DER", "gem": "GEM", "agem": "A-GEM", "rpc": "RPC",
           "fdr": "FDR", "sgd": "SGD", "joint": "Joint"}
DATASETS = {"seq-cifar10": "CIFAR-10", "seq-cifar100": "CIFAR-100", "seq-tinyimg": "TinyImageNet",
            "seq-mnist": "MNIST", "seq-digits": "Digits", "seq-fashion": "Fashion-MNIST",
            "seq-quickdraw": "Quick, Draw!"}
SAMPLERS = {"uniform": "Random", "max-entropy": "Max entropy", "ipm": "IPM", "gss": "GSS", "herding": "Herding",
            "lars": "LARS"}  # as Table 1 calls them, in its order
STOCK, UNIFORM, FIXED, TUNED, NONE_LEFT_OUT = "stock", "uniform", "SBS-fix", "SBS", "SBS q=0 s=0"
RESERVOIR = "stream-reservoir"  # the stock buffer's numbers, as a stream sampler
COMPARED = {"model", "sampler"}  # what makes arms of one method different, beside --sbs-...
NAMED_IF_MIXED = ("compile",)  # makes arms too, but only where some runs have it and others have not
OF_ANY_SAMPLER = {"sbs_during": "closed"}  # flags that are part of an arm's name unless they have this value
OF_SPEED = {"sbs_scope": "task", "sbs_score": "speed"}
# other samplers with q or s, which are part of an arm's name
TAKES = {"stream-speed": "qs", "speed-balanced": "qs", "ccs": "s"}
OF_A_CHOICE = {"sbs_tune": "first", "sbs_tune_epochs": None, "sbs_grid": [0.0, 0.2, 0.4, 0.6]}
OF_THE_SETTING = ("n_epochs", "buffer_size", "backbone", "num_filters", "batch_size", "train_per_class", "max_classes",
                  "permute_classes", "validation", "joint", "noise_rate", "imbalance", "blurry", "drift",
                  "threads")  # the same for all methods
OFF = "off"  # to `--where`: runs that do without a flag
Key = TypeVar("Key", bound=Hashable)
V = TypeVar("V")  # what is known of a run


@dataclass(frozen=True)
class Run:
    """One finished run."""

    id: str
    record: dict[str, Any]
    folder: Path = Path()  # where its record is

    @cached_property
    def args(self) -> dict[str, Any]:
        """Everything that must agree where runs are averaged."""
        return {"threads": self.record["threads"], **self.record["args"]}

    @cached_property
    def all_but_the_seed(self) -> str:
        """The same for runs that may be averaged."""
        return json.dumps({**self.args, "seed": None}, sort_keys=True)

    @property
    def seed(self) -> int:
        return self.record["seed"]

    @property
    def host(self) -> str:
        """`embedded`, or `mammoth` for a user's own."""
        return self.args.get("host", "embedded")

    @cached_property
    def method(self) -> str:
        name = self.args["model"].replace("_", "-").removesuffix("-sbs")
        return METHODS.get(name, name)

    @cached_property
    def arm(self) -> str:
        """How the buffer was filled: `stock`, a sampler's name, or SBS with its q and s; and the flags that matter to
        it where they are not the usual ones, such as `SBS-fix, during stock`."""
        if not self.args["model"].replace("_", "-").endswith("-sbs"):
            return STOCK
        q, s = self.band
        matter: dict[str, Any] = dict(OF_ANY_SAMPLER)
        if (name := self.args["sampler"]) == "speed":
            open_ = [side for side in (q, s) if isinstance(side, str)]
            matter |= OF_SPEED | (OF_A_CHOICE if open_ else {})
            if len(open_) == 2 and q == s:
                name = TUNED if q == "auto" else f"SBS {q}"
            else:
                name = FIXED if (q, s) == (0.2, 0.2) else f"SBS q={short(q)} s={short(s)}"
        elif name in TAKES:
            name = " ".join([name, *(f"{side}={short(self.args[f'sbs_{side}'])}" for side in TAKES[name])])
        known = {"sbs_q", "sbs_s", *OF_ANY_SAMPLER, *OF_SPEED, *OF_A_CHOICE}
        matter |= {key: None for key in self.args if key.startswith("sbs_") and key not in known and self.args[key]}
        more = [f"{key.removeprefix('sbs_').replace('_', ' ')} {text(self.args[key])}"
                for key, usual in matter.items() if self.args.get(key, usual) != usual]
        return ", ".join([name, *more])

    @property
    def band(self) -> tuple[Any, Any]:
        """(q, s) as they were asked for."""
        return self.args["sbs_q"], self.args["sbs_s"]

    @cached_property
    def dataset(self) -> str:
        """The paper's name of the split, such as CIFAR-100-20."""
        name = self.args["dataset"]
        if name == "seq-folder":
            name = Path(self.args["data"]).stem
        return f"{DATASETS.get(name, name)}-{self.tasks}"

    @property
    def tasks(self) -> int:
        return len(self.record["results"]["task_il"]["matrix"])

    @property
    def buffer(self) -> str:
        size = self.args.get("buffer_size")
        return f"{size // 1000}k" if size and size % 1000 == 0 else str(size)

    def final(self, setting: str) -> float:
        """The mean accuracy over all tasks after the last one, in percent."""
        return Measure(setting).of(self)


def short(side: float | str) -> str:
    """q or s: a number without needless digits, or a word."""
    return side if isinstance(side, str) else f"{side:g}"


@dataclass(frozen=True)
class Measure:
    """What is compared: a metric, in Task-IL or Class-IL."""

    setting: str
    metric: str = "final"

    def of(self, run: Run) -> float:
        """Computed from the run's accuracy matrix, which all results have; what that does not say must be saved."""
        saved, function = run.record["results"][self.setting], METRICS[self.metric].of
        if function is not None:
            return function(saved["matrix"])
        if self.metric not in saved:
            raise UserError(f"--metric {self.metric}: run {run.id} ({run.dataset}, {run.method}, {run.arm}) was not "
                            "asked for it; make the runs with --enable_other_metrics 1, in a folder of their own")
        return saved[self.metric]

    @property
    def name(self) -> str:
        """For files: the setting, and the metric if it is another than the final accuracy."""
        return self.setting if self.metric == "final" else f"{self.setting}_{self.metric}"

    @property
    def title(self) -> str:
        """`final Task-IL accuracy`, `Task-IL forgetting`."""
        words, setting = METRICS[self.metric].title, SETTINGS[self.setting]
        if not METRICS[self.metric].accuracy:
            return f"{setting} {words}"
        return f"{words.removesuffix('accuracy')}{setting} accuracy"

    @property
    def unit(self) -> str:
        return "%" if METRICS[self.metric].accuracy else "points"

    @property
    def higher(self) -> bool:
        """Whether more is better."""
        return METRICS[self.metric].higher_is_better

    def best(self, values: Mapping[Key, float]) -> list[Key]:
        """All that share the best value."""
        wanted = (max if self.higher else min)(values.values())
        return [key for key, value in values.items() if value == wanted]


def measures(metric: str) -> list[Measure]:
    """A metric in both settings."""
    return [Measure(setting, metric) for setting in SETTINGS]


# ---- which runs


def load(folders: Sequence[Path], accept: Collection[str] = (), where: Iterable[tuple[str, str]] = ()) -> list[Run]:
    """All runs of the folders, each once, whose flags have the values of `where`: any of those of one flag."""
    records: dict[str, dict[str, Any]] = {}
    places: dict[str, Path] = {}
    for folder in folders:
        if not is_results(folder):
            raise UserError(f"{folder}: there is no such folder; give one that `mammoth-sbs sweep` has written")
        found = read_all(folder)
        if not found:
            raise UserError(f"{folder}: holds no finished run; give a folder that `mammoth-sbs sweep` has written")
        for run_id, record in found.items():
            places.setdefault(run_id, folder.with_suffix("") if folder.suffix == ".jsonl" else folder)
            if differ(records.setdefault(run_id, record)["results"], record["results"]):
                raise UserError(f"{folder}, run {run_id}: another folder has the same run with other results; give one "
                                "of the folders")
    check_versions(", ".join(map(str, folders)), records, accept or None)
    runs = [Run(run_id, record, places[run_id]) for run_id, record in records.items()]
    known = {key for run in runs for key in run.args}
    wanted: dict[str, list[str]] = defaultdict(list)
    for flag, value in where:
        wanted[flag].append(value)
    for flag, values in wanted.items():
        key = flag.lstrip("-").replace("-", "_")
        if key not in known:
            raise UserError(f"--where {flag}={values[0]}: no run has the flag --{flag}")
        for value in values:
            if not any(has(run, key, value) for run in runs):
                there = sorted({text(run.args.get(key, OFF)) or OFF for run in runs})
                raise UserError(f"--where {flag}={value}: no run has that; there is {', '.join(there)}")
        runs = [run for run in runs if any(has(run, key, value) for value in values)]
    return runs


def text(value: Any) -> str:
    """A flag's value as one would type it."""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def has(run: Run, key: str, typed: str) -> bool:
    """Whether a run's flag has the value that was typed; one that came later is in its arguments only if it is on."""
    return key in run.args and same(run.args[key], typed) or typed == OFF and not run.args.get(key)


def same(value: Any, typed: str) -> bool:
    """Whether a flag has the value that was typed: 0.10 is 0.1, and derpp_sbs is derpp-sbs."""
    try:
        return float(value) == float(typed)
    except (TypeError, ValueError):
        return text(value).replace("_", "-") == typed.replace("_", "-")


def group(runs: Iterable[Run], key: Callable[[Run], Key]) -> dict[Key, list[Run]]:
    groups: dict[Key, list[Run]] = defaultdict(list)
    for run in runs:
        groups[key(run)].append(run)
    return dict(groups)


def check_alike(what: str, runs: Sequence[Run], may_differ: Collection[str] = (), only: Collection[str] = ()) -> None:
    """No silent average: all runs agree in every flag (or in `only` these) that is not in `may_differ`."""
    given = [set(run.args) for run in runs]
    # a flag that came later is there only if it is on
    names = only or sorted(set.intersection(*given) | set.union(*given) - FIRST_FLAGS)
    for name in names:
        if name == "seed" or name in may_differ:
            continue
        values = Counter(json.dumps(run.args.get(name)) for run in runs)
        if len(values) > 1:
            counts = ", ".join(f"{text(json.loads(value))} in {n} runs" for value, n in values.most_common())
            most = text(json.loads(values.most_common()[0][0]))
            raise UserError(f"{what}: runs with other hyper-parameters are mixed in: --{name} is {counts}. Give "
                            f"--where {name}={most}, or put them into folders of their own")


def arms(what: str, runs: Sequence[Run], of: Callable[[Run], V], common: bool) -> dict[str, dict[int, V]]:
    """What is known of runs, by arm and seed. Arms differ in how the buffer is filled, or in what their name says."""
    sbs = {name for run in runs for name in run.args if name.startswith("sbs_")}
    mixed = [name for name in NAMED_IF_MIXED if len({bool(run.args.get(name)) for run in runs}) > 1]
    check_alike(what, runs, {*COMPARED, *sbs, *mixed})
    found = {}
    for arm, members in group(runs, lambda run: ", ".join([run.arm, *(n for n in mixed if run.args.get(n))])).items():
        check_alike(f"{what}, {arm}", members)
        found[arm] = {run.seed: of(run) for run in members}
    return check_seeds(what, in_order(found), common)


def in_order(found: Mapping[str, dict[int, V]]) -> dict[str, dict[int, V]]:
    """Stock, uniform, the other samplers, then SBS with fixed and with chosen q and s."""
    ranks = {STOCK: 0, UNIFORM: 1, FIXED: 4, TUNED: 6}

    def rank(arm: str) -> tuple[int, str]:
        first = arm.split(", ")[0]
        other = 3 if first == NONE_LEFT_OUT else 5 if first.startswith("SBS") else 2
        return ranks.get(first, other), arm

    return dict(sorted(found.items(), key=lambda item: rank(item[0])))


def references(names: Collection[str]) -> list[str]:
    """The arms that the others are compared with: the uniform buffer and the stock one, or what comes nearest."""
    uniform = next((name for name in (UNIFORM, RESERVOIR, NONE_LEFT_OUT) if name in names), None)
    return [name for name in (uniform, STOCK) if name in names] or list(names)[:1]  # type: ignore[misc]


def check_seeds(what: str, found: dict[Key, dict[int, V]], common: bool) -> dict[Key, dict[int, V]]:
    """Differences are taken seed by seed, so all must have the same seeds, or be cut down to those if `common`."""
    everyone = set().union(*found.values())
    shared = everyone.intersection(*found.values())
    if common and shared:
        return {key: {seed: seeds[seed] for seed in sorted(shared)} for key, seeds in found.items()}
    for key, seeds in found.items():
        missing = sorted(everyone - set(seeds))
        if missing:
            hint = "finish the sweep" + (", or give --common-seeds to take those that all have" if shared else "")
            raise UserError(f"{what}: {key} lacks seed {', '.join(map(str, missing))}, which others have; {hint}")
    return found
