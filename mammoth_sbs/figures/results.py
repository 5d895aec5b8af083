"""Finished runs as a figure needs them: which bar or cell a run belongs to, what may be averaged, and how surely.

Runs are averaged over seeds and over nothing else. Where anything but the compared flags differs, a line says so.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, TypeVar

from mammoth_sbs.errors import UserError
from mammoth_sbs.experiments.store import FIRST_FLAGS, check_versions, differ, is_results, read_all

SETTINGS = {"task_il": "Task-IL", "class_il": "Class-IL"}
METHODS = {"er": "ER", "der": "DER", "derpp": "DER++", "xder": "X-DER", "gem": "GEM", "agem": "A-GEM", "rpc": "RPC",
           "fdr": "FDR", "sgd": "SGD", "joint": "Joint"}
DATASETS = {"seq-cifar10": "CIFAR-10", "seq-cifar100": "CIFAR-100", "seq-tinyimg": "TinyImageNet",
            "seq-mnist": "MNIST", "seq-digits": "Digits"}
SAMPLERS = {"uniform": "Random", "max-entropy": "Max entropy", "ipm": "IPM", "gss": "GSS", "herding": "Herding",
            "lars": "LARS"}  # as Table 1 calls them, in its order
STOCK, UNIFORM, FIXED, TUNED = "stock", "uniform", "SBS-fix", "SBS"
COMPARED = {"model", "sampler"}  # what makes arms of one method different, beside --sbs-...
OF_THE_SETTING = ("n_epochs", "buffer_size", "backbone", "num_filters", "batch_size", "train_per_class", "max_classes",
                  "permute_classes", "validation", "joint", "threads")  # the same for all methods
Seeds = dict[int, float]  # a number per seed
Key = TypeVar("Key", bound=Hashable)


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

    @cached_property
    def method(self) -> str:
        name = self.args["model"].replace("_", "-").removesuffix("-sbs")
        return METHODS.get(name, name)

    @cached_property
    def arm(self) -> str:
        """How the buffer was filled: `stock`, a sampler's name, or SBS with its q and s."""
        if not self.args["model"].replace("_", "-").endswith("-sbs"):
            return STOCK
        if self.args["sampler"] != "speed":
            return self.args["sampler"]
        q, s = self.band
        if (q, s) == ("auto", "auto"):
            return TUNED
        return FIXED if (q, s) == (0.2, 0.2) else f"SBS q={q} s={s}"

    @property
    def band(self) -> tuple[Any, Any]:
        """(q, s) as they were asked for."""
        return self.args["sbs_q"], self.args["sbs_s"]

    @cached_property
    def dataset(self) -> str:
        """The paper's name of the split, such as CIFAR-100-20."""
        name = self.args["dataset"]
        return f"{DATASETS.get(name, name)}-{len(self.record['results']['task_il']['matrix'])}"

    @property
    def buffer(self) -> str:
        size = self.args.get("buffer_size")
        return f"{size // 1000}k" if size and size % 1000 == 0 else str(size)

    def final(self, setting: str) -> float:
        """The mean accuracy over all tasks after the last one, in percent."""
        return self.record["results"][setting]["final"]


@dataclass(frozen=True)
class Mean:
    """A mean over seeds; its standard error is unknown for one seed."""

    mean: float
    error: float | None
    seeds: int
    up: int  # seeds above zero: for differences

    @classmethod
    def of(cls, values: Collection[float]) -> Mean:
        error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
        return cls(fmean(values), error, len(values), sum(value > 0 for value in values))

    def text(self, sign: bool = False) -> str:
        """`61.13 ± 0.40`; without the error if it is unknown."""
        mean = f"{self.mean:+.2f}" if sign else f"{self.mean:.2f}"
        return mean if self.error is None else f"{mean} ± {self.error:.2f}"


def paired(left: Seeds, right: Seeds) -> Mean:
    """Of the differences seed by seed; `check_seeds` has seen to it that both have the same."""
    return Mean.of([left[seed] - right[seed] for seed in sorted(left)])


# ---- which runs


def load(folders: Sequence[Path], accept: Collection[str] = (), where: Mapping[str, str] | None = None) -> list[Run]:
    """All runs of the folders that are as `where` says, each once."""
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
    for flag, value in (where or {}).items():
        key = flag.lstrip("-").replace("-", "_")
        if key not in known:
            raise UserError(f"--where {flag}={value}: no run has the flag --{flag}")
        there = sorted({text(run.args[key]) for run in runs if key in run.args})
        runs = [run for run in runs if key in run.args and same(run.args[key], value)]
        if not runs:
            raise UserError(f"--where {flag}={value}: no run has that; there is {', '.join(there)}")
    return runs


def text(value: Any) -> str:
    """A flag's value as one would type it."""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


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


def arms(what: str, runs: Sequence[Run], setting: str, common: bool) -> dict[str, Seeds]:
    """Final accuracies by arm and seed. The arms differ in how the buffer is filled and in nothing else."""
    sbs = {name for run in runs for name in run.args if name.startswith("sbs_")}
    check_alike(what, runs, COMPARED | sbs)
    found = {}
    for arm, members in group(runs, lambda run: run.arm).items():
        check_alike(f"{what}, {arm}", members)
        found[arm] = {run.seed: run.final(setting) for run in members}
    return check_seeds(what, found, common)


def check_seeds(what: str, found: dict[Key, Seeds], common: bool) -> dict[Key, Seeds]:
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
