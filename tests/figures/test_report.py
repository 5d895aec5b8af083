"""The report page as text: every run with its command, honest means and differences, harmless text, nothing from
elsewhere, and all of it there without JavaScript."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from mammoth_sbs.commands import main
from mammoth_sbs.errors import UserError
from mammoth_sbs.figures import report
from mammoth_sbs.figures.statistics import paired
from tests.figures.conftest import ARMS, GRID, VARIED, record, results_of

BAD = "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)> {{FIGURES}} \u2028 \\ & \"'"
Page = Callable[..., Path]


class Elements(HTMLParser):
    """Tags, what they would load or lead to, and the tables: of each row what its cells say, by their titles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.alternatives: list[str] = []
        self.tables: dict[str, list[dict[str, Any]]] = {}
        self.cell: list[str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs
                           if name in ("src", "href", "srcset", "data", "action", "poster")]
        self.alternatives += [value or "" for name, value in attrs if name in ("alt", "aria-label")]
        if tag == "table":
            self.rows = self.tables[given["id"] or ""] = []
        elif tag == "tr":
            self.rows.append({"filters": {name: given.get(f"data-{name}") for name in ("dataset", "method", "arm")},
                              "values": {}, "best": []})
        elif tag == "td":
            title = given["data-label"] or "command"
            self.cell = self.rows[-1][title] = []
            self.rows[-1]["values"][title] = given["data-value"]
        elif tag == "strong" and self.cell is not None:
            self.rows[-1]["best"].append(list(self.rows[-1])[-1])

    def handle_endtag(self, tag: str) -> None:
        if tag == "td":
            self.cell = None
        elif tag == "code" and self.cell is not None:  # what it says is one text
            self.cell[1:] = ["".join(self.cell[1:])]
        elif tag == "thead":
            self.rows.clear()

    def handle_data(self, data: str) -> None:
        if self.cell is not None:
            self.cell.append(data)


def tables(file: Path) -> dict[str, list[dict[str, Any]]]:
    return Elements(file.read_text(encoding="utf-8")).tables


def notes(file: Path) -> list[str]:
    return re.findall(r"<p class=note>(.*)</p>", file.read_text(encoding="utf-8"))


def test_every_run_is_on_the_page_with_its_command(page: Page) -> None:
    runs = {row["command"][-1]: row for row in tables(page(*VARIED))["runs"]}
    assert len(runs) == len(VARIED)
    for one in VARIED:
        shown = runs[one["volatile"]["command"]]
        assert shown["seed"] == [str(one["seed"])]
        assert float(shown["values"]["Task-IL %"]) == pytest.approx(one["results"]["task_il"]["final"])
        tasks_before = 4 if one["args"]["dataset"] == "seq-cifar100" else 1
        assert float(shown["values"]["Task-IL forgetting"]) == pytest.approx(4.5 / tasks_before)


def test_nothing_on_the_page_comes_from_elsewhere(page: Page) -> None:
    text = page(*GRID, figures=True).read_text()
    addresses = Elements(text).addresses
    assert sum(address.startswith("data:image/png;base64,") for address in addresses) == 2  # the heat maps
    assert all(re.match("data:|#", address) for address in addresses)
    assert not re.search(r"https?://|@import|url\(|fetch\(|XMLHttpRequest", text)


def test_pictures_say_what_they_show(page: Page) -> None:
    found = Elements(page(*GRID, figures=True).read_text())
    maps = [text for text in found.alternatives if text.startswith("Heat map")]
    assert maps == [f"Heat map over q and s of the difference to (0, 0), points of final {name} accuracy. CIFAR-10-2, "
                    f"ER, buffer 80: best {best} at q = 0, s = 0.4, worst {worst} at q = 0.4, s = 0."
                    for name, best, worst in (("Task-IL", "+2.0", "−2.4"), ("Class-IL", "+1.0", "−1.2"))]
    assert "Task-IL at the end, of the best it was, in percent: task 1 60.5 of 65.0, task 2 60.5 of 60.5" in \
        found.alternatives


def test_text_of_the_results_stays_text(page: Page) -> None:
    runs = [record("er", 0, command=BAD, dataset=BAD), record("er_sbs", 1, lr=BAD, dataset=BAD)]
    file = page(*({**run, "version": BAD} for run in runs), figures=True)
    tags = Elements(file.read_text()).tags
    assert tags.count("script") == 1 and "img" not in tags
    assert BAD in {row["command"][-1] for row in tables(file)["runs"]}
    assert {row["filters"]["dataset"] for row in tables(file)["runs"]} == {f"{BAD}-2"}


def test_a_mean_is_over_seeds_and_has_its_standard_error(page: Page) -> None:
    values = [61.25, 58.5, 66.0]
    [line] = tables(page(*(record("er", seed, value) for seed, value in enumerate(values))))["means"]
    assert line["seeds"] == ["3"]
    assert line["Task-IL %"] == [f"{fmean(values):.2f} ± {stdev(values) / 3**0.5:.2f}"]
    assert float(line["values"]["Class-IL %"]) == pytest.approx(fmean(values) / 2)


def test_differences_are_paired_and_the_best_arm_stands_out(page: Page) -> None:
    rows = tables(page(*ARMS))["means"]
    means = {(row["method"][0], row["filled by"][0]): row for row in rows}
    methods, arms = ("ER", "DER++", "pooled"), ("stock", "uniform", "SBS-fix")
    assert list(means) == [(method, arm) for method in methods for arm in arms]
    finals = {(one["args"]["model"], one["args"].get("sampler"), one["seed"]): one["results"]["task_il"]["final"]
              for one in ARMS}
    change = paired(*({seed: finals["er_sbs", sampler, seed] for seed in range(4)} for sampler in ("speed", "uniform")))
    shown = means["ER", "SBS-fix"]["Task-IL − uniform"]
    assert shown[0] == f"{change.mean:+.2f}" and shown[1] == change.span()
    assert shown[2].startswith(f"p {change.p:.3f}, Holm ")
    assert means["ER", "uniform"]["Task-IL − uniform"] == means["ER", "stock"]["Task-IL − stock"] == ["–"]
    assert "Holm" not in means["pooled", "SBS-fix"]["Task-IL − stock"][2]
    for method in methods:
        _, best = max((float(means[method, arm]["values"]["Task-IL %"]), arm) for arm in arms)
        assert [arm for arm in arms if "Task-IL %" in means[method, arm]["best"]] == [best]


def test_the_metric_is_the_one_that_was_asked_for_and_less_forgetting_is_best(page: Page) -> None:
    runs = [record("er", 0), record("er_sbs", 0, 60.0)]
    for one, lost in zip(runs, (8.0, 3.0), strict=True):
        one["results"]["task_il"] = results_of([[60.0 + lost], [60.0, 60.0]])
    rows = tables(page(*runs, flags=("--metric", "forgetting")))["means"]
    assert [row["Task-IL forgetting"] for row in rows] == [["8.00"], ["3.00"]]
    assert [row["best"] for row in rows] == [["Class-IL forgetting"], ["Task-IL forgetting", "Class-IL forgetting"]]
    assert rows[1]["Task-IL − stock"] == ["-5.00"]


def test_accuracy_by_task_is_that_at_the_end_and_at_its_best(page: Page) -> None:
    runs = [record("er", 0, 60.0, tasks=3), record("er", 1, 70.0, tasks=3)]
    [row] = tables(page(*runs))["tasks"]
    assert row["Task-IL forgetting"] == ["2.25 ± 0.00"]  # 4.5 of the first task, nothing of the second
    assert row["Task-IL average incremental"][0].startswith(f"{fmean([65 + 4.5, 65 + 2.25, 65]):.2f} ± ")
    said = Elements((page(*runs)).read_text()).alternatives
    assert said[0] == ("Task-IL at the end, of the best it was, in percent: task 1 65.0 of 69.5, task 2 65.0 of 65.0, "
                       "task 3 65.0 of 65.0")


def test_training_accuracy_stands_beside_it_where_runs_know_it(page: Page) -> None:
    known = record("er_sbs", 0)
    known["sbs"]["tasks"] = [{"examples": 320, "train_accuracy": value} for value in (90.0, 95.0)]
    rows = {row["filled by"][0]: row for row in tables(page(known, record("er", 0)))["tasks"]}
    assert (rows["SBS-fix"]["training accuracy"], rows["stock"]["training accuracy"]) == (["92.5"], ["–"])


@pytest.mark.parametrize("different", [{"lr": 0.2}, {"optim_wd": 0.1}, {"n_epochs": None}, {"lr": "0.1"}])
@pytest.mark.parametrize("first", [True, False])
def test_runs_with_other_hyper_parameters_are_not_averaged_together(
        page: Page, different: dict[str, Any], first: bool) -> None:
    runs = [record("er", seed, 60 + seed) for seed in range(2)]
    other = record("er", 2, 90, **different)
    found = tables(page(*([other, *runs] if first else [*runs, other])))
    assert sorted((row["seeds"][0], float(row["values"]["Task-IL %"])) for row in found["means"]) == \
        [("1", 90), ("2", 60.5)]
    [name] = different
    assert {f"--{name}" in row["other flags"][0] for row in found["runs"] if row["Task-IL %"] == ["90.00"]} == {True}


def test_runs_with_other_threads_are_not_averaged_together(page: Page) -> None:
    rows = tables(page(record("er", 0, 60), {**record("er", 1, 70), "threads": 2}))["means"]
    assert {row["other flags"][0]: row["Task-IL %"][0] for row in rows} == \
        {"--threads 1": "60.00", "--threads 2": "70.00"}


def test_rows_that_differ_in_nothing_but_the_columns_have_no_other_flags(page: Page) -> None:
    found = tables(page(*VARIED))
    assert not any("other flags" in row for row in found["runs"] + found["means"])


def test_a_single_seed_has_no_standard_error(page: Page) -> None:
    [line] = tables(page(record("er", 0)))["means"]
    assert (line["seeds"], line["Task-IL %"]) == (["1"], ["60.00"])


def test_the_commands_behind_a_mean_are_those_of_its_runs(page: Page) -> None:
    found = tables(page(*VARIED))
    behind = [row for row in found["means"] if row["filters"]["method"] != "pooled"]
    assert sorted(line for row in behind for line in row["command"][-1].split("\n")) == \
        sorted(one["volatile"]["command"] for one in VARIED)
    final = {row["command"][-1]: float(row["values"]["Task-IL %"]) for row in found["runs"]}
    for row in behind:
        members = [final[line] for line in row["command"][-1].split("\n")]
        assert fmean(members) == pytest.approx(float(row["values"]["Task-IL %"]))


def test_what_cannot_be_compared_is_a_note_and_the_runs_are_there(page: Page) -> None:
    file = page(*VARIED[1:], figures=True)
    [note] = notes(file)
    assert note == ("CIFAR-10-2, ER: stock lacks seed 0, which others have; finish the sweep, or give --common-seeds "
                    "to take those that all have")
    found = tables(file)
    assert len(found["runs"]) == len(VARIED) - 1
    here = [row for row in found["means"] if row["data set"] == ["CIFAR-10-2"]]
    assert {row["Task-IL − stock"][0] for row in here} == {"–"}
    assert tables(page(*VARIED[1:], flags=("--common-seeds",)))["means"][1]["Task-IL − stock"][-1] == "2 seeds"


def test_a_picture_that_cannot_be_drawn_is_a_note(page: Page) -> None:
    [note] = notes(page(*(one for one in GRID if one["args"]["sbs_q"] or one["args"]["sbs_s"]), figures=True))
    assert note.startswith("heatmap: CIFAR-10-2, ER, buffer 80: no run with --sbs-q 0 --sbs-s 0, which the others are")


@pytest.mark.parametrize(("kind", "runs"), [("bars", ARMS), ("heatmap", GRID)])
def test_the_command_of_a_figure_draws_it_from_the_same_runs(page: Page, tmp_path: Path, kind: str, runs: list) -> None:
    flags = ("--where", "dataset=seq-cifar10", "--common-seeds", "--metric", "forgetting")
    file = page(*runs, flags=flags, figures=True)
    command = f"mammoth-sbs figure {kind} {tmp_path / 'results'} {' '.join(flags)} -o figures"
    assert f"<code>{command}</code>" in file.read_text()


def test_a_picture_is_of_one_method_buffer_and_data_set(page: Page) -> None:
    """So that filters can show what is asked for alone."""
    other = [{**record("der_sbs", one["seed"], 50.0, **{key: one["args"][key] for key in ("sbs_q", "sbs_s")})}
             for one in GRID]
    text = page(*GRID, *other, figures=True).read_text()
    assert re.findall(r'<figure data-dataset="([^"]+)" data-method="([^"]+)"', text) == \
        [("CIFAR-10-2", "ER")] * 2 + [("CIFAR-10-2", "DER")] * 2


@pytest.mark.parametrize("what", ["empty", "missing", "file"])
def test_without_runs_there_is_one_line_and_no_page(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "results"
    if what == "empty":
        folder.mkdir()
    elif what == "file":
        folder.write_text("{}")
    with pytest.raises(UserError) as error:
        main(["report", str(folder), "-o", str(tmp_path / "out" / "page.html")])
    assert re.fullmatch(f"{re.escape(str(folder))}: [^\n]+", str(error.value))
    assert not (tmp_path / "out").exists()


def test_the_template_is_filled(page: Page) -> None:
    assert "{{" not in page(*VARIED).read_text() and "{{" in report.TEMPLATE.read_text(encoding="utf-8")
