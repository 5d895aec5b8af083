"""Two hosts on purpose: `figure hosts DIR DIR`, means and paired differences by method and arm.

Everywhere else runs of two hosts are never put together.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mammoth_sbs.errors import UserError
from mammoth_sbs.figures.bars import Chart, write_charts
from mammoth_sbs.figures.results import (
    METHODS,
    STOCK,
    Measure,
    Run,
    check_alike,
    check_seeds,
    group,
    in_order,
    measures,
    text,
)

# spelled differently on the hosts, or filled in by one of them only
ASIDE = {"host", "model_config", "minibatch_size", "dataset_config", "seed"}


def label(runs: Sequence[Run]) -> str:
    """`embedded`, or `Mammoth e75a491c69fd`."""
    versions = runs[0].record["volatile"].get("versions", {})
    return "embedded" if runs[0].host == "embedded" else str(versions.get("host", runs[0].host))


def labels(folders: dict[Path, list[Run]]) -> dict[Path, str]:
    """What the two are called; by their folders if they are the same host."""
    if len(folders) != 2:
        raise UserError(f"hosts: two folders with runs are compared, not {len(folders)}; give two that "
                        "`mammoth-sbs sweep` has written, one of them with MAMMOTH_ROOT")
    names = {folder: label(runs) for folder, runs in folders.items()}
    return names if len(set(names.values())) == 2 else {folder: str(folder) for folder in folders}


def collect(runs: Sequence[Run], measure: Measure, common: bool) -> dict[str, Chart]:
    """By data set: for each method and arm that both hosts have, the hosts' seeds."""
    names = labels(group(runs, lambda run: run.folder))
    charts: dict[str, Chart] = {}
    for dataset, members in group(runs, lambda run: run.dataset).items():
        arms = group(members, lambda run: (run.method, run.arm))
        order = list(METHODS.values())
        ranks = list(in_order({arm: {} for _, arm in arms}))
        chart: Chart = {}
        for method, arm in sorted(arms, key=lambda key: (order.index(key[0]) if key[0] in order else len(order), key[0],
                                                         ranks.index(key[1]))):
            what = method if arm == STOCK else f"{method}, {arm}"
            of_host = group(arms[method, arm], lambda run: names[run.folder])
            if len(of_host) < 2:
                continue
            for name, found in of_host.items():
                check_alike(f"{dataset}, {what}, {name}", found)
            check_same_flags(f"{dataset}, {what}", {name: found[0].args for name, found in of_host.items()})
            seeds = {name: {run.seed: measure.of(run) for run in of_host[name]} for name in sorted(of_host)}
            chart[what] = check_seeds(f"{dataset}, {what}", seeds, common)
        if chart:
            charts[dataset] = chart
    if not charts:
        raise UserError("hosts: no method and arm is in both folders; sweep one configuration on both hosts")
    return charts


def check_same_flags(what: str, args: dict[str, dict[str, Any]]) -> None:
    """Flags that both hosts know have the same values; one that is off may be missing."""
    (one, first), (other, second) = args.items()
    for name in sorted((first.keys() & second.keys()) - ASIDE):
        a, b = (None if value in (False, 0, "", []) else value for value in (first[name], second[name]))
        if a != b:
            raise UserError(f"{what}: --{name} is {text(first[name])} on {one} and {text(second[name])} on {other}; "
                            "compare sweeps of one configuration")


def write(runs: Sequence[Run], out: Path, common: bool = False, metric: str = "final") -> list[Path]:
    """As bars, with the hosts as arms: figures, tables and the CSV."""
    files: list[Path] = []
    for measure in measures(metric):
        write_charts(collect(runs, measure, common), measure, out / f"hosts_{measure.name}", files)
    return files
