"""The documents' tables and figures come out of the committed runs."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from statistics import fmean

import pytest

from mammoth_sbs.commands import main
from mammoth_sbs.figures import heatmap, table1
from mammoth_sbs.figures.bars import collect
from mammoth_sbs.figures.results import Measure, load, measures
from mammoth_sbs.figures.statistics import POOLED, Mean, compare, paired, probability
from tests.conftest import REPO


def test_the_documents_tables_and_figures_come_out_of_the_committed_runs(tmp_path: Path) -> None:
    """By the command beside them, in docs/evidence.md."""
    evidence = REPO / "results" / "small_bars_cifar10_5"
    document = (REPO / "docs" / "evidence.md").read_text(encoding="utf-8")
    runs = load([evidence])
    assert {run.dataset for run in runs} == {"CIFAR-10-5"} and len(runs) == 8 * 3 * 10
    assert "mammoth-sbs figure bars results/small_bars_cifar10_5 -o docs/figures" in document
    main(["figure", "bars", str(evidence), "-o", str(tmp_path)])
    for setting in ("task_il", "class_il"):
        tables = (tmp_path / f"bars_{setting}.md").read_text().split("\n\nCIFAR-10-5: ")
        assert len(tables) == 4  # means, then each arm less uniform or stock
        assert all(table.strip() in document for table in tables[:2])
        for suffix in ("csv", "md", "tex"):
            name = f"bars_{setting}.{suffix}"
            assert (tmp_path / name).read_text() == (REPO / "docs" / "figures" / name).read_text()


FROZEN = REPO / "results" / "frozen_bars_cifar100_5_500"
TWENTY, TINY, TEN = (REPO / "results" / f"frozen_bars_{name}"
                     for name in ("cifar100_20_500", "tinyimg_10", "cifar10_5"))
SCRATCH, FIRST = REPO / "results" / "small_following", [("second_task", "off")]
SCRATCH_TITLE = "Networks from scratch: CIFAR-100-2"
CHOSEN = "SBS q=0 s=0.4"
NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven", "all eight")


def shown_of(tables: list[str]) -> list[str]:
    """Of a chart's tables: means, and what was chosen less uniform. The page links to the others."""
    means, *changes = tables
    (change,) = [table for table in changes if table.startswith(f"{CHOSEN} − uniform")]
    return [means, change]


def test_the_chart_on_a_frozen_network_comes_out_of_the_committed_runs(tmp_path: Path) -> None:
    """By the command beside it: docs/evidence.md has its tables."""
    runs = load([FROZEN])
    seeds = {run.seed for run in runs}
    assert len(runs) == 8 * 4 * len(seeds) and {run.dataset for run in runs} == {"CIFAR-100-5"}
    drawn = f"mammoth-sbs figure bars results/{FROZEN.name} -o docs/figures/frozen"
    document = (REPO / "docs" / "evidence.md").read_text(encoding="utf-8")
    assert drawn in document and drawn in (REPO / "README.md").read_text(encoding="utf-8")
    main(["figure", "bars", str(FROZEN), "-o", str(tmp_path)])
    for setting in ("task_il", "class_il"):
        tables = (tmp_path / f"bars_{setting}.md").read_text().split("\n\nCIFAR-100-5: ")
        assert all(table.strip() in document for table in shown_of(tables))
        for suffix in ("csv", "md", "tex"):
            name = f"bars_{setting}.{suffix}"
            assert (tmp_path / name).read_text() == (REPO / "docs" / "figures" / "frozen" / name).read_text()


@pytest.mark.parametrize(("results", "figures", "chart", "methods", "seeds"), [
    (TWENTY, "cifar100_20", "CIFAR-100-20", 8, range(100, 104)),
    (TINY, "tinyimg", "TinyImageNet-10", 4, range(100, 106)), (TEN, "cifar10", "CIFAR-10-5", 8, range(100, 110))])
def test_the_charts_of_further_data_sets_come_out_of_the_committed_runs(
        results: Path, figures: str, chart: str, methods: int, seeds: range, tmp_path: Path) -> None:
    """docs/evidence.md has their means and what is ahead of uniform."""
    runs = load([results])
    assert len(runs) == methods * 4 * len(seeds) and {run.seed for run in runs} == set(seeds)
    document = (REPO / "docs" / "evidence.md").read_text(encoding="utf-8")
    assert f"mammoth-sbs figure bars results/{results.name} -o docs/figures/{figures}" in document
    main(["figure", "bars", str(results), "-o", str(tmp_path)])
    for setting in ("task_il", "class_il"):
        tables = (tmp_path / f"bars_{setting}.md").read_text().split(f"\n\n{chart}: ")
        assert all(table.strip() in document for table in shown_of(tables))
        for suffix in ("csv", "md", "tex"):
            name = f"bars_{setting}.{suffix}"
            assert (tmp_path / name).read_text() == (REPO / "docs" / "figures" / figures / name).read_text()


def test_what_is_said_of_tiny_imagenet_comes_out_of_the_committed_runs() -> None:
    task, both = (compare(collect(load([TINY]), Measure(setting))["TinyImageNet-10"], CHOSEN, "uniform")
                  for setting in ("task_il", "class_il"))
    assert all(change.mean > 2 * change.error for change in both.values())  # "ahead ... for all four"
    assert task["DER"].mean < -2 * task["DER"].error and task[POOLED].mean < 2 * task[POOLED].error


def test_what_is_said_of_twenty_tasks_comes_out_of_the_committed_runs() -> None:
    """Which methods are ahead of uniform by two standard errors, and that none is behind by as much."""
    document = " ".join((REPO / "docs" / "evidence.md").read_text(encoding="utf-8").split())
    section = document[document.index("## CIFAR-100 in 20 tasks") : document.index("## Tiny ImageNet: four methods")]
    for arm in (CHOSEN, "SBS-fix"):
        counts, unsure = [], []
        for setting in ("task_il", "class_il"):
            found = compare(collect(load([TWENTY]), Measure(setting))["CIFAR-100-20"], arm, "uniform")
            ahead = {name for name, it in found.items() if it.mean > 2 * (it.error or 0)}
            assert all(it.mean > -2 * (it.error or 0) for it in found.values()) and POOLED in ahead
            counts.append(NUMBERS[len(ahead) - 1])
            unsure.append(", ".join(name for name in found if name not in ahead))
        assert f"{counts[0]} of eight methods in Task-IL (not {unsure[0]}) and {counts[1]} in Class-IL " \
               f"(not {unsure[1]})" in section
    runs = load([TWENTY])
    speeds = [task["speed_mean"] for run in runs if run.arm == CHOSEN for task in run.record["sbs"]["tasks"]]
    assert f"learning speed is {fmean(speeds):.2f} on average" in section


def test_readmes_block_comes_out_of_the_committed_runs() -> None:
    """Picture, rows and what is said about them."""
    text = (REPO / "README.md").read_text(encoding="utf-8")
    block = " ".join(text[text.index("<!-- result") : text.index("<!-- end of result -->")].split())
    assert "(docs/figures/frozen/bars_task_il.png)" in block
    runs = load([FROZEN])
    assert f"{len({run.seed for run in runs})} seeds" in block
    for measure in measures("final"):
        tables = (REPO / "docs" / "figures" / "frozen" / f"bars_{measure.setting}.md").read_text(encoding="utf-8")
        means = tables.split("\n\nCIFAR-100-5: ")[0].splitlines()
        (row,) = [line for line in means if line.startswith(f"| {POOLED} |")]
        assert row.replace(f"| {POOLED} |", f"| {measure.title.removeprefix('final ')} |") in block
        found = compare(collect(runs, measure)["CIFAR-100-5"], CHOSEN, "uniform")
        assert f"{found[POOLED].text(sign=True)} points of {measure.title.removeprefix('final ').split()[0]}" in block
        sure = sum(change.mean > 2 * (change.error or 0) for name, change in found.items() if name != POOLED)
        assert f"{NUMBERS[sure]} in {measure.title.removeprefix('final ').split()[0]}" in block
        assert all(change.mean > -2 * (change.error or 0) for change in found.values())  # "none is behind"
    assert "by two standard errors" in block and "none is behind by as much" in block


def test_the_maps_on_a_frozen_network_come_out_of_the_committed_runs(tmp_path: Path) -> None:
    """docs/evidence.md: small and large buffer."""
    document = (REPO / "docs" / "evidence.md").read_text(encoding="utf-8")
    folders = [REPO / "results" / f"frozen_heatmap_cifar100_2_{size}" for size in ("1k", "10k")]
    names = " ".join(f"results/{folder.name}" for folder in folders)
    assert f"mammoth-sbs figure heatmap {names} -o docs/figures/frozen" in document
    main(["figure", "heatmap", *map(str, folders), "-o", str(tmp_path)])
    for setting in ("task_il", "class_il"):
        file = f"heatmap_{setting}.csv"
        assert (tmp_path / file).read_text() == (REPO / "docs" / "figures" / "frozen" / file).read_text()
        for line in csv.DictReader((tmp_path / file).open()):
            size, pair = line["panel"].split()[-1], f"({float(line['q']):g}, {float(line['s']):g})"
            if pair != "(0, 0)":
                gain = f"{float(line['minus_uniform']):+.2f} ± {float(line['minus_uniform_standard_error']):.2f}"
                assert re.search(rf"\| {re.escape(pair)} \|.* {re.escape(gain)} \|", document), (size, pair)


def test_the_map_of_networks_from_scratch_comes_out_of_the_committed_runs() -> None:
    """docs/evidence.md: each pair less uniform; README says it of two of them."""
    document = (REPO / "docs" / "evidence.md").read_text(encoding="utf-8")
    section = document[document.index(f"## {SCRATCH_TITLE}") :]
    section = section[: section.index("\n## ")]
    surfaces = [surface for measure in measures("final")
                for surface in heatmap.collect(load([SCRATCH], where=FIRST), measure).values()]
    assert {len(seeds) for surface in surfaces for seeds in surface.values()} == {10}
    for pair in surfaces[0]:
        cells = [paired(surface[pair], surface[0.0, 0.0]).text(sign=True) if any(pair) else
                 Mean.of(surface[pair].values()).text() for surface in surfaces]
        assert f"| ({pair[0]:g}, {pair[1]:g}) | {' | '.join(cells)} |" in section
    readme = " ".join((REPO / "README.md").read_text(encoding="utf-8").split())
    quick, fixed = (paired(surfaces[0][pair], surfaces[0][0.0, 0.0]) for pair in ((0.0, 0.4), (0.2, 0.2)))
    assert f"gains {quick.text(sign=True)} points of Task-IL" in readme
    assert f"{fixed.text(sign=True)}" in readme


def test_the_summary_comes_out_of_the_committed_runs() -> None:
    """The first table of docs/evidence.md."""
    document = (REPO / "docs" / "evidence.md").read_text(encoding="utf-8")
    summary = document[: document.index("\n## ")]
    bars = {arm: [compare(collect(load([FROZEN]), measure)["CIFAR-100-5"], arm, "uniform")[POOLED]
                  for measure in measures("final")] for arm in (CHOSEN, "SBS-fix")}
    for results, chart in ((TWENTY, "CIFAR-100-20"), (TINY, "TinyImageNet-10"), (TEN, "CIFAR-10-5")):
        bars[chart] = [compare(collect(load([results]), measure)[chart], CHOSEN, "uniform")[POOLED]
                       for measure in measures("final")]
    maps = {size: load([REPO / "results" / f"frozen_heatmap_cifar100_2_{size}"]) for size in ("1k", "10k")}
    for (name, runs), pair in zip({**maps, "scratch": load([SCRATCH], where=FIRST)}.items(),
                                  ((0.0, 0.4), (0.2, 0.4), (0.0, 0.4)), strict=True):
        bars[name] = []
        for measure in measures("final"):
            ((_, surface),) = heatmap.collect(runs, measure).items()
            bars[name].append(paired(surface[pair], surface[0.0, 0.0]))
    small = collect(load([REPO / "results" / "small_bars_cifar10_5"]), Measure("task_il"))["CIFAR-10-5"]
    rows = [line for line in summary.splitlines() if line.startswith("|")][2:]
    assert len(rows) == 10
    for row, found in zip(rows, bars.values(), strict=False):
        assert row.endswith("| " + " | ".join(change.text(sign=True) for change in found) + " |")
    assert f"| {compare(small, 'SBS', 'uniform')[POOLED].text(sign=True)} |" in rows[-1]


def test_the_later_seeds_alone_say_the_same() -> None:
    """docs/evidence.md: of CIFAR-100-5, those that were run after the first four had been looked at."""
    document = (REPO / "docs" / "evidence.md").read_text(encoding="utf-8")
    later = [run for run in load([FROZEN]) if run.seed > 103]
    assert {run.seed for run in later} == set(range(104, 110))
    task, both = (compare(collect(later, measure)["CIFAR-100-5"], CHOSEN, "uniform")[POOLED].text(sign=True)
                  for measure in measures("final"))
    assert f"gains {task} points of Task-IL and {both} of Class-IL, pooled" in document


def test_the_table_of_the_current_task_comes_out_of_the_committed_runs() -> None:
    """docs/evidence.md: SBS with and without replay of the current task, and stock."""
    document = (REPO / "docs" / "evidence.md").read_text(encoding="utf-8")
    methods = [("model", name) for method in ("er", "der", "derpp") for name in (method, f"{method}_sbs")]
    cells: dict[str, list[str]] = {}
    for results, dataset, chart in ((FROZEN, "seq-cifar100", "CIFAR-100-5"), (TEN, "seq-cifar10", "CIFAR-10-5")):
        runs = load([REPO / "results" / "frozen_during_stock", results], where=[("dataset", dataset), *methods])
        for measure in measures("final"):
            for method, arms in collect(runs, measure, common=True)[chart].items():
                for name, other in (("closed", CHOSEN), ("stock", "stock")):
                    change = paired(arms[f"{CHOSEN}, during stock"], arms[other])
                    cells.setdefault(f"{method}, less {name}", []).append(change.text(sign=True))
                    assert name == "stock" or change.mean < 2 * change.error  # "never ahead"
    for name, row in cells.items():
        assert f"| {name} | {' | '.join(row)} |" in document


def test_table_1_comes_out_of_the_committed_runs(tmp_path: Path) -> None:
    """docs/evidence.md: Random's accuracy, and what the other samplers gain or lose."""
    results = REPO / "results" / "frozen_table1"
    assert len(load([results])) == 8 * 6 * 6
    document = (REPO / "docs" / "evidence.md").read_text(encoding="utf-8")
    assert f"mammoth-sbs figure samplers results/{results.name} -o docs/figures/table1" in document
    main(["figure", "samplers", str(results), "-o", str(tmp_path)])
    for setting in ("task_il", "class_il"):
        for suffix in ("csv", "md", "tex"):
            name = f"samplers_{setting}.{suffix}"
            assert (tmp_path / name).read_text() == (REPO / "docs" / "figures" / "table1" / name).read_text()
        cells: dict[str, list[str]] = {}
        for line in csv.DictReader((tmp_path / f"samplers_{setting}.csv").open()):
            shown, sign = ("mean", "") if line["sampler"] == "Random" else ("minus_random", "+")
            error = "standard_error" if line["sampler"] == "Random" else "minus_random_standard_error"
            cells.setdefault(line["sampler"], []).append(f"{float(line[shown]):{sign}.2f} ± {float(line[error]):.2f}")
        for name, row in cells.items():
            assert f"| {name} | {' | '.join(row)} |" in document.replace("**", ""), (setting, name)


def test_what_is_said_of_table_1_comes_out_of_the_committed_runs() -> None:
    """Who is best, and who is ahead of whom by two standard errors."""
    tables = [table1.collect(load([REPO / "results" / "frozen_table1"]), measure) for measure in measures("final")]

    def ahead(name: str, other: str) -> list[set[str]]:
        changes = [{column: paired(found[name], found[other]) for column, found in table.items()} for table in tables]
        return [{column for column, change in of.items() if change.mean > 2 * change.error} for of in changes]

    best = [[max(found, key=lambda name: fmean(found[name].values())) for found in table.values()] for table in tables]  # noqa: B023
    assert [names.count("Herding") for names in best] == [3, 5]
    assert [sum(name.startswith("SBS") for name in names) for names in best] == [3, 1]
    small = {"CIFAR-10-5 200", "CIFAR-100-20 200", "TinyImageNet-2 100"}
    for arm, counts in (("SBS-fix", [5, 3]), ("SBS share", [4, 3])):
        assert [len(columns) for columns in ahead(arm, "Random")] == counts
        assert all(columns >= small for columns in ahead(arm, "Random"))
        assert all(columns >= small - {"CIFAR-10-5 200"} for columns in ahead("Herding", arm))
    assert "CIFAR-10-5 200" in ahead("SBS share", "Herding")[0] and "CIFAR-10-5 2k" in ahead("SBS-fix", "Herding")[0]
    assert ahead("Random", "SBS share") == [set(), {"CIFAR-10-5 2k"}]
    assert ahead("SBS share", "SBS-fix") == [set(), {"TinyImageNet-2 100", "CIFAR-100-20 2k"}]
    assert ahead("SBS-fix", "SBS share") == [{"CIFAR-10-5 2k"}, set()]


def test_the_table_of_balanced_buffers_comes_out_of_the_committed_runs() -> None:
    document = (REPO / "docs" / "evidence.md").read_text(encoding="utf-8")
    runs = load([REPO / "results" / "frozen_balanced"])
    assert {run.seed for run in runs} == set(range(310, 314))
    tables = [table1.collect(runs, measure) for measure in measures("final")]
    for name in tables[0]["CIFAR-10-5 200"].keys() - {"Random"}:
        changes = [paired(table[column][name], table[column]["Random"]) for column in tables[0] for table in tables]
        assert f"| {name} | {' | '.join(change.text(sign=True) for change in changes)} |" in document
        assert name != "speed-balanced q=0 s=0" or all(change.mean < 2 * change.error for change in changes)


def test_the_table_of_other_metrics_comes_out_of_the_committed_runs() -> None:
    document = (REPO / "docs" / "evidence.md").read_text(encoding="utf-8")
    for results, chart in ((FROZEN, "CIFAR-100-5"), (TWENTY, "CIFAR-100-20"), (TINY, "TinyImageNet-10"),
                           (TEN, "CIFAR-10-5")):
        runs = load([results])
        cells = [compare(collect(runs, measure)[chart], CHOSEN, "uniform")[POOLED].text(sign=True)
                 for metric in ("final", "average_incremental", "forgetting") for measure in measures(metric)]
        trained = [fmean(task["train_accuracy"] for run in runs if run.method == method and run.arm != "stock"
                         for task in run.record["sbs"]["tasks"]) for method in {run.method for run in runs}]
        assert f"| {chart} | {' | '.join(cells)} | {min(trained):.0f} to {max(trained):.0f}% |" in document


def test_the_table_of_both_hosts_comes_out_of_the_committed_runs(tmp_path: Path) -> None:
    """docs/mammoth.md: stock methods, ten seeds on each host."""
    document = (REPO / "docs" / "mammoth.md").read_text(encoding="utf-8")
    folders = [f"results/hosts/{name}" for name in ("embedded", "mammoth")]
    assert f"mammoth-sbs figure hosts {' '.join(folders)} -o" in document
    main(["figure", "hosts", *(str(REPO / folder) for folder in folders), "-o", str(tmp_path)])
    for setting in ("task_il", "class_il"):
        tables = (tmp_path / f"hosts_{setting}.md").read_text(encoding="utf-8")
        assert "10 seeds" in tables
        assert all(table.strip() in document for table in tables.split("\n\nCIFAR-10-5: ")), setting


def test_gem_on_both_hosts_once_more_comes_out_of_the_committed_runs() -> None:
    """docs/mammoth.md: the one difference beyond two standard errors, on seeds of its own and on all."""
    document = " ".join((REPO / "docs" / "mammoth.md").read_text(encoding="utf-8").split())
    found: dict[str, dict[str, dict[int, float]]] = {"first": {}, "more": {}}
    for part, prefix in (("first", ""), ("more", "gem_")):
        for name in ("embedded", "mammoth"):
            runs = load([REPO / "results" / "hosts" / f"{prefix}{name}"], where=[("model", "gem")])
            found[part][name] = {run.seed: run.final("class_il") for run in runs}
    first, more = (paired(hosts["embedded"], hosts["mammoth"]) for hosts in found.values())
    both = paired(*({**found["first"][name], **found["more"][name]} for name in ("embedded", "mammoth")))
    assert abs(first.mean) > 2 * first.error > 0 and abs(both.mean) < 2 * both.error
    for change in (first, more, both):
        assert change.text(sign=True) in document


def test_the_regret_of_fixed_pairs_comes_out_of_the_committed_runs(tmp_path: Path) -> None:
    folders = [f"results/frozen_heatmap_cifar100_2_{size}" for size in ("1k", "10k")]
    document = (REPO / "docs" / "tune.md").read_text(encoding="utf-8")
    assert f"mammoth-sbs figure regret {' '.join(folders)} -o docs/figures/frozen" in document
    main(["figure", "regret", *(str(REPO / folder) for folder in folders), "-o", str(tmp_path)])
    for setting in ("task_il", "class_il"):
        assert (tmp_path / f"regret_{setting}.md").read_text().split("\n\n", 1)[1].strip() in document


def regrets(folder: Path) -> dict[str, dict[str, list[dict[str, str]]]]:
    """By way and setting, a line of CSV for each map."""
    found: dict[str, dict[str, list[dict[str, str]]]] = {}
    for setting in ("task_il", "class_il"):
        for line in csv.DictReader((folder / f"regret_{setting}.csv").open()):
            found.setdefault(line["way"], {}).setdefault(setting, []).append(line)
    return found


def judged(folder: Path, maps: int) -> tuple[dict[str, list[str]], dict[str, float]]:
    """By way: what stands on the page, mean and worst regret and how often below uniform; and by what it is sorted."""
    cells, order = {}, {}
    for way, found in regrets(folder).items():
        of = [[float(line["regret"]) for line in lines] for lines in found.values()]
        below = ", ".join(str(sum(line["below_uniform"] == "True" for line in lines)) for lines in found.values())
        assert [len(values) for values in of] == [maps, maps]
        cells[way] = [*(f"{fmean(values):.2f}, {max(values):.2f}" for values in of), below]
        order[way] = fmean(map(fmean, of))
    return cells, order


def test_the_regret_on_maps_of_cifar100_and_cifar10_comes_out_of_the_committed_runs(tmp_path: Path) -> None:
    """Seeds that ways were compared on, seeds and a data set that confirm: tables on the page, the CSV beside them."""
    document = (REPO / "docs" / "tune.md").read_text(encoding="utf-8")
    found: dict[str, dict[str, list[str]]] = {}
    order: dict[str, dict[str, float]] = {}
    for part, data, seeds, maps in (("design", "cifar100", range(20, 24), 12),
                                    ("confirm", "cifar100", range(24, 28), 12), ("cifar10", "cifar10", (), 8)):
        where = [word for seed in seeds for word in ("--where", f"seed={seed}")]
        results, folder = f"results/frozen_surfaces_{data}", f"docs/figures/surfaces/{part}"
        assert " ".join(["mammoth-sbs figure regret", results, *where, "-o", folder]) in document
        main(["figure", "regret", str(REPO / results), *where, "-o", str(tmp_path / part)])
        for name in ("regret_task_il.csv", "regret_class_il.csv"):
            assert (tmp_path / part / name).read_text() == (REPO / folder / name).read_text()
        found[part], order[part] = judged(tmp_path / part, maps)
        assert found[part]["SBS share"][-1] == "0, 0"  # "never below uniform"
    for last, parts in (("confirm", ("design", "confirm")), ("cifar10", ("cifar10",))):
        rows = [f"| {way} | {' | '.join(cell for part in parts for cell in found[part][way])} |"
                for way in sorted(order[last], key=order[last].__getitem__)]
        assert len(rows) == 16 and "\n".join(rows) in document
    assert min(order["cifar10"], key=order["cifar10"].__getitem__) == "SBS share"


def test_what_the_documents_say_about_all_methods_together_comes_out_of_the_committed_runs() -> None:
    text = " ".join((REPO / "docs" / "evidence.md").read_text().split())
    runs = load([REPO / "results" / "small_bars_cifar10_5"])
    for measure in [m for metric in ("final", "average_incremental", "forgetting") for m in measures(metric)]:
        chart = collect(runs, measure)["CIFAR-10-5"]
        found = {other: compare(chart, "SBS", other) for other in ("uniform", "stock")}
        cells = [cell for changes in found.values() for cell in (
            changes[POOLED].text(sign=True), changes[POOLED].span(), probability(changes[POOLED].p))]
        assert f"| {measure.title} | {' | '.join(cells)} |" in text
        # "no difference can be told from chance": of no method after the correction, nor of all together
        ps = [change.p if method == POOLED else change.holm for method, change in found["uniform"].items()]
        assert len(ps) == 9 and min(ps) > 0.05
    assert "no difference can be told from chance: not of a method, not of all together, in no metric" in text


def test_what_the_documents_say_about_the_chosen_pairs_comes_out_of_the_committed_runs() -> None:
    """docs/evidence.md: what SBS gains over the uniform buffer, by the pair that the rotation task chose."""
    runs = load([REPO / "results" / "small_bars_cifar10_5"])
    uniform = {(run.method, run.seed): run for run in runs if run.arm == "uniform"}
    gains: dict[str, list[tuple[float, float]]] = {}
    for run in runs:
        if run.arm == "SBS":
            chosen = run.record["sbs"]["tasks"][0]["choice"]
            q, s = chosen["q"], chosen["s"]
            name = "q = s = 0" if q == s == 0 else "q = s" if q == s else "s > q" if s > q else "q > s"
            other = uniform[run.method, run.seed]
            gains.setdefault(name, []).append((run.final("task_il") - other.final("task_il"),
                                               run.final("class_il") - other.final("class_il")))
    text = (REPO / "docs" / "evidence.md").read_text()
    for name, pairs in gains.items():
        task, both = (Mean.of(column).text(sign=True) for column in zip(*pairs, strict=True))
        assert f"| {name} | {len(pairs)} | {task} | {both} |" in text


def test_the_documents_table_of_pairs_comes_out_of_the_committed_runs(tmp_path: Path) -> None:
    main(["figure", "heatmap", str(REPO / "results" / "small_pairs_cifar10_5"), "-o", str(tmp_path)])
    text = (REPO / "docs" / "evidence.md").read_text()
    rows: dict[str, list[str]] = {}
    for setting in ("task_il", "class_il"):
        file = f"heatmap_{setting}.csv"
        assert (tmp_path / file).read_text() == (REPO / "docs" / "figures" / file).read_text()
        for line in csv.DictReader((tmp_path / file).open()):
            mean, error, less, its_error = (float(line[key] or 0) for key in (
                "mean", "standard_error", "minus_uniform", "minus_uniform_standard_error"))
            assert line["seeds"] == "10"
            change = f"{less:+.2f} ± {its_error:.2f} ({line['minus_uniform_seeds_up']} of 10 up)" if less else ""
            pair = f"{float(line['q']):g} | {float(line['s']):g}"
            rows.setdefault(pair, []).extend([f"{mean:.2f} ± {error:.2f}", change])
    for pair, cells in rows.items():
        assert f"| {pair} | {' | '.join(cells)} |" in text

    drawn = {run.seed: run.final("task_il") for run in load([REPO / "results" / "small_pairs_cifar10_5"])
             if run.band == (0, 0)}
    uniform = {run.seed: run.final("task_il") for run in load([REPO / "results" / "small_bars_cifar10_5"])
               if (run.method, run.arm) == ("ER", "uniform")}
    assert f"{paired(drawn, uniform).text()} points" in text


def test_the_first_table_of_ways_says_what_the_maps_say() -> None:
    """docs/tune.md: mean and worst regret of each way, on the seeds that confirm and on CIFAR-10."""
    first, rest = (REPO / "docs" / "tune.md").read_text(encoding="utf-8").split("## On heat maps", 1)
    ways = {"nothing": "(0.2, 0.2)", "share": "SBS share", "rule": "SBS rule", "auto": "SBS", "uniform": "(0, 0)"}
    rows = [line.strip("| ").split(" | ") for line in first.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == len(ways)
    maps = rest[rest.index("### Maps of") : rest.index("## As a command")]
    for row, (word, way) in zip(rows, ways.items(), strict=True):
        hundred, ten = ([cell.strip() for cell in part[1:].split("|")] for part in
                        re.findall(rf"^\| {re.escape(way)} (\|.*)\|$", maps, re.MULTILINE))
        assert word in row[0] and row[-4:] == [*hundred[3:5], *ten[:2]], word
