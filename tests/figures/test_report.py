"""The report page: every run with its command, honest means, harmless text, and in a real browser no network at all."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from mammoth_sbs.commands import report as report_command
from mammoth_sbs.errors import UserError
from mammoth_sbs.experiments.schema import id_of
from mammoth_sbs.figures import report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
BROWSER_FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                 "--disable-background-networking", "--disable-component-update", "--disable-sync"]
BAD = "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)> {{FIGURES}} \u2028 \\ & \"'"
Record = dict[str, Any]


def record(model: str, seed: int, task: float = 60.0, tasks: int = 2, command: str | None = None,
           **flags: Any) -> Record:
    """A finished run as the store keeps it, with these final Task-IL accuracy and flags."""
    args = {"model": model, "dataset": "seq-cifar10", "buffer_size": 80, "lr": 0.1, "n_epochs": 8, "seed": seed}
    if model.endswith("_sbs"):
        args |= {"sampler": "speed", "sbs_q": 0.2, "sbs_s": 0.2}
    args |= flags
    results = {name: {"matrix": [[final] * (i + 1) for i in range(tasks)], "final": final, "forgetting": 0.0,
                      "backward_transfer": 0.0} for name, final in (("class_il", task / 2), ("task_il", task))}
    line = command or "python main.py " + " ".join(f"--{key} {value}" for key, value in args.items())
    return {"id": id_of(args, 1), "version": "0123456789ab-torch2.13.0", "args": args, "threads": 1, "seed": seed,
            "results": results, "volatile": {"wall_time": 90.0, "command": line}}


def write(folder: Path, *records: Record) -> Path:
    """A packed result folder with these runs, in this order."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({**one, "id": id_of(one["args"], one["threads"])}) for one in records]
    Path(f"{folder}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """The page about these runs; drawing figures takes a second, so only on demand."""

    def page(*records: Record, flags: tuple[str, ...] = (), figures: bool = False) -> Path:
        if not figures:
            monkeypatch.setattr(report, "KINDS", {})
        report_command.main([str(write(tmp_path / "results", *records)), "-o", str(tmp_path / "page.html"), *flags])
        return tmp_path / "page.html"

    return page


def tables(file: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows that the page's script draws."""
    found = re.search(r"^const data = (.*);$", file.read_text(), re.MULTILINE)
    assert found
    return json.loads(found[1])


def notes(file: Path) -> list[str]:
    return re.findall(r"<p class=note>(.*)</p>", file.read_text())


VARIED = [record(model, seed, 50 + 7.13 * seed + 3.1 * i, 2 + 3 * (dataset == "seq-cifar100"), dataset=dataset)
          for dataset in ("seq-cifar10", "seq-cifar100") for i, model in enumerate(("er", "derpp", "er_sbs"))
          for seed in range(3)]


# ---- without a browser


def test_every_run_is_on_the_page_with_its_command(page: Callable[..., Path]) -> None:
    runs = {run["id"]: run for run in tables(page(*VARIED))["runs"]}
    assert len(runs) == len(VARIED)
    for one in VARIED:
        shown = runs[one["id"]]
        assert shown["command"] == one["volatile"]["command"]
        assert (shown["seed"], shown["task"]) == (one["seed"], one["results"]["task_il"]["final"])


class Elements(HTMLParser):
    """Tags, and what they would load or lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs
                           if name in ("src", "href", "srcset", "data", "action", "poster")]


def test_nothing_on_the_page_comes_from_elsewhere(page: Callable[..., Path]) -> None:
    text = page(*VARIED, figures=True).read_text()
    addresses = Elements(text).addresses
    assert sum(address.startswith("data:image/png;base64,") for address in addresses) == 2  # the bar charts
    assert all(re.match("data:|#", address) for address in addresses)
    assert not re.search(r"https?://|@import|url\(|fetch\(|XMLHttpRequest", text)


def test_text_of_the_results_stays_text(page: Callable[..., Path]) -> None:
    runs = [record("er", 0, command=BAD, dataset=BAD), record("er_sbs", 1, lr=BAD, dataset=BAD)]
    file = page(*({**run, "version": BAD} for run in runs), figures=True)
    assert len(notes(file)) == 1  # about a data set of that name
    tags = Elements(report.TEMPLATE.read_text()).tags
    assert Elements(file.read_text()).tags == tags[:tags.index("main")] + ["p"] + tags[tags.index("main"):]
    assert BAD in {run["command"] for run in tables(file)["runs"]}


def test_a_mean_is_over_seeds_and_has_its_standard_error(page: Callable[..., Path]) -> None:
    values = [61.25, 58.5, 66.0]
    [line] = tables(page(*(record("er", seed, value) for seed, value in enumerate(values))))["means"]
    assert line["seeds"] == 3
    assert line["task"] == pytest.approx(fmean(values))
    assert line["task_error"] == pytest.approx(stdev(values) / 3**0.5)
    assert line["class"] == pytest.approx(fmean(values) / 2)


@pytest.mark.parametrize("different", [{"lr": 0.2}, {"optim_wd": 0.1}, {"n_epochs": None}, {"lr": "0.1"}])
@pytest.mark.parametrize("first", [True, False])
def test_runs_with_other_hyper_parameters_are_not_averaged_together(
        page: Callable[..., Path], different: dict[str, Any], first: bool) -> None:
    runs = [record("er", seed, 60 + seed) for seed in range(2)]
    other = record("er", 2, 90, **different)
    found = tables(page(*([other, *runs] if first else [*runs, other])))
    assert sorted((line["seeds"], line["task"]) for line in found["means"]) == [(1, 90), (2, 60.5)]
    [name] = different
    assert {f"--{name}" in run["other"] for run in found["runs"] if run["task"] == 90} == {True}


def test_runs_with_other_threads_are_not_averaged_together(page: Callable[..., Path]) -> None:
    means = tables(page(record("er", 0, 60), {**record("er", 1, 70), "threads": 2}))["means"]
    assert {line["other"]: line["task"] for line in means} == {"--threads 1": 60, "--threads 2": 70}


def test_rows_that_differ_in_nothing_but_the_columns_have_no_other_flags(page: Callable[..., Path]) -> None:
    found = tables(page(*VARIED))
    assert {run["other"] for run in found["runs"] + found["means"]} == {""}


def test_a_single_seed_has_no_standard_error(page: Callable[..., Path]) -> None:
    [line] = tables(page(record("er", 0)))["means"]
    assert (line["seeds"], line["task"], line["task_error"]) == (1, 60.0, None)


def test_the_commands_behind_a_mean_are_those_of_its_runs(page: Callable[..., Path]) -> None:
    found = tables(page(*VARIED))
    assert sorted(i for line in found["means"] for i in line["runs"]) == list(range(len(VARIED)))
    for line in found["means"]:
        assert fmean(found["runs"][i]["task"] for i in line["runs"]) == pytest.approx(line["task"])


def test_a_figure_that_cannot_be_drawn_is_a_note_and_the_runs_are_there(page: Callable[..., Path]) -> None:
    file = page(*VARIED[1:], figures=True)
    [note] = notes(file)
    assert note == ("bars: CIFAR-10-2, ER: stock lacks seed 0, which others have; finish the sweep, or give "
                    "--common-seeds to take those that all have")
    assert "<img" not in file.read_text()
    assert len(tables(file)["runs"]) == len(VARIED) - 1


def test_the_command_of_a_figure_draws_it_from_the_same_runs(page: Callable[..., Path], tmp_path: Path) -> None:
    where = ("--where", "dataset=seq-cifar10", "--common-seeds")
    file = page(*VARIED[1:], flags=where, figures=True)
    assert notes(file) == []
    command = f"mammoth-sbs figure bars {tmp_path / 'results'} {' '.join(where)} -o figures"
    assert f"<code>{command}</code>" in file.read_text()


@pytest.mark.parametrize("what", ["empty", "missing", "file"])
def test_without_runs_there_is_one_line_and_no_page(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "results"
    if what == "empty":
        folder.mkdir()
    elif what == "file":
        folder.write_text("{}")
    with pytest.raises(UserError) as error:
        report_command.main([str(folder), "-o", str(tmp_path / "out" / "page.html")])
    assert re.fullmatch(f"{re.escape(str(folder))}: [^\n]+", str(error.value))
    assert not (tmp_path / "out").exists()


# ---- in a real browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser without a window."""
    reason = "needs playwright: pip install 'mammoth-sbs[test]'"
    sync_api = pytest.importorskip("playwright.sync_api", reason=reason)
    if CHROMIUM is None:
        pytest.skip("needs chromium on the PATH: apt-get install chromium")
    with sync_api.sync_playwright() as tool:
        browser = tool.chromium.launch(executable_path=CHROMIUM, args=BROWSER_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def view(chromium: Any, page: Callable[..., Path]) -> Iterator[Callable[..., Any]]:
    """Open the page about these runs from the disk; whatever else it asks for or complains about fails the test."""
    context = chromium.new_context(viewport={"width": 1400, "height": 900}, offline=True)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab = context.new_page()
    requests: list[str] = []
    complaints: list[str] = []

    def dismiss(dialog: Any) -> None:
        complaints.append(dialog.message)
        dialog.dismiss()

    tab.on("request", lambda request: requests.append(request.url))
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))

    tab.on("dialog", dismiss)

    def view(*records: Record, figures: bool = False) -> Any:
        tab.goto(page(*records, figures=figures).as_uri())
        return tab

    yield view
    context.close()
    assert requests
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert complaints == []


def shown(tab: Any, table: str = "runs") -> list[dict[str, str]]:
    """The rows in sight, by the titles of the columns."""
    titles, *rows = tab.eval_on_selector_all(f"#{table} tr", "rows => rows.map(row => [...row.cells].map("
                                             "cell => cell.innerText))")
    return [dict(zip(titles, row, strict=True)) for row in rows]


@pytest.mark.parametrize(("name", "choice", "title"), [
    ("dataset", "CIFAR-100-5", "data set"), ("method", "DER++", "method"), ("arm", "SBS-fix", "filled by")])
def test_a_filter_leaves_its_rows_and_counts_them(view: Callable[..., Any], name: str, choice: str, title: str) -> None:
    tab = view(*VARIED)
    everything = shown(tab)
    wanted = [row for row in everything if row[title] == choice]
    assert 0 < len(wanted) < len(everything) == len(VARIED)
    assert tab.inner_text("#count") == f"{len(VARIED)} of {len(VARIED)} runs"
    tab.select_option(f"#{name}", choice)
    assert shown(tab) == wanted
    assert tab.inner_text("#count") == f"{len(wanted)} of {len(VARIED)} runs"
    assert {row[title] for row in shown(tab, "means")} == {choice}
    tab.select_option(f"#{name}", "all")
    assert shown(tab) == everything


def test_filters_work_together(view: Callable[..., Any]) -> None:
    tab = view(*VARIED)
    tab.select_option("#dataset", "CIFAR-10-2")
    tab.select_option("#method", "ER")
    tab.select_option("#arm", "stock")
    assert [(row["data set"], row["method"], row["filled by"], row["seed"]) for row in shown(tab)] == \
        [("CIFAR-10-2", "ER", "stock", str(seed)) for seed in range(3)]
    tab.select_option("#method", "DER++")
    tab.select_option("#arm", "SBS-fix")
    assert shown(tab) == shown(tab, "means") == []
    assert tab.inner_text("#count") == f"0 of {len(VARIED)} runs"


def test_a_click_on_a_title_sorts_and_another_turns_it_round(view: Callable[..., Any]) -> None:
    finals = [9.5, 70.25, 100.0, 30.0]
    runs = [record("er", seed, final) for seed, final in enumerate(finals)]
    tab = view(*runs, record("sgd", 9, 50, buffer_size=None))

    def by(title: str) -> list[str]:
        tab.click(f"#runs th button:text-is('{title}')")
        return [row[title] for row in shown(tab)]

    assert by("Task-IL %") == ["9.50", "30.00", "50.00", "70.25", "100.00"]
    assert by("Task-IL %") == ["100.00", "70.25", "50.00", "30.00", "9.50"]
    assert by("method") == ["ER", "ER", "ER", "ER", "SGD"]
    assert by("buffer") == ["–", "80", "80", "80", "80"]
    assert tab.get_attribute("#runs th:has-text('buffer')", "aria-sort") == "ascending"
    tab.select_option("#method", "ER")
    assert len(shown(tab)) == 4


def test_the_means_in_sight_are_those_of_statistics(view: Callable[..., Any]) -> None:
    tab = view(*VARIED, record("fdr", 0, 33.337))
    means = shown(tab, "means")
    assert len(means) == 7
    for line in means:
        members = [one["results"] for one in VARIED + [record("fdr", 0, 33.337)]
                   if (one["args"]["dataset"] == "seq-cifar100") == line["data set"].startswith("CIFAR-100")
                   and one["args"]["model"].removesuffix("_sbs") == {"DER++": "derpp"}.get(
                       line["method"], line["method"].lower())
                   and one["args"]["model"].endswith("_sbs") == (line["filled by"] == "SBS-fix")]
        assert line["seeds"] == str(len(members))
        for title, setting in (("Task-IL %", "task_il"), ("Class-IL %", "class_il")):
            values = [results[setting]["final"] for results in members]
            error = [stdev(values) / len(values) ** 0.5] if len(values) > 1 else []  # of one seed: unknown
            assert [float(number) for number in line[title].split(" ± ")] == \
                pytest.approx([fmean(values), *error], abs=0.00501)


def test_the_command_of_a_row_can_be_seen_copied_and_closed(view: Callable[..., Any]) -> None:
    line = "python main.py  --model er --note '<b>&amp;</b>' --seed 0"
    tab = view(record("er", 0, command=line), record("er", 1, command="python main.py --seed 1"))
    assert tab.locator("#runs code").count() == 0
    button = tab.locator("#runs tbody tr:first-child button")
    button.click()
    assert tab.locator("#runs code").text_content() == line
    tab.click("#runs button:text-is('copy')")
    tab.wait_for_selector("#runs button:text-is('copied')")
    assert tab.evaluate("navigator.clipboard.readText()") == line
    button.click()
    assert tab.locator("#runs code").count() == 0
    tab.click("#means tbody button")
    assert tab.locator("#means code").text_content() == f"{line}\npython main.py --seed 1"


def test_text_of_the_results_is_shown_as_it_is(view: Callable[..., Any]) -> None:
    tab = view(record("er", 0, command=BAD, dataset=BAD), record("er_sbs", 1, lr=BAD, dataset=BAD), figures=True)
    assert tab.locator("#runs tbody td").first.text_content() == f"{BAD}-2"
    tab.click("#runs tbody button")
    assert tab.locator("#runs code").text_content() == BAD
    tab.select_option("#dataset", f"{BAD}-2")
    assert len(shown(tab)) == 2


def test_the_figures_are_pictures_in_the_page(view: Callable[..., Any]) -> None:
    tab = view(*VARIED, figures=True)
    widths = tab.eval_on_selector_all("img", "all => all.map(one => one.naturalWidth)")
    assert len(widths) == 2
    assert min(widths) > 300


@pytest.mark.parametrize("width", [1400, 700])
def test_nothing_is_cut_off_in_a_wide_or_narrow_window(view: Callable[..., Any], width: int) -> None:
    tab = view(*VARIED, *(record("er", seed, buffer_size=500, lr=lr) for lr in (0.1, 0.03) for seed in range(3)))
    tab.set_viewport_size({"width": width, "height": 900})
    tab.click("#runs tbody button")
    tab.click("#means tbody button")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.eval_on_selector_all(".wide", "all => all.map(one => one.scrollWidth - one.clientWidth)") == [0, 0]


def test_very_many_runs_are_drawn_in_part_until_all_are_asked_for(view: Callable[..., Any]) -> None:
    tab = view(*(record("er", seed, 20 + seed / 100) for seed in range(1200)))
    assert tab.inner_text("#count") == "1200 of 1200 runs"
    assert tab.locator("#runs tbody tr").count() == 501
    tab.click("#runs button:text-is('show all 1200 rows')")
    assert [row["seed"] for row in shown(tab)] == [str(seed) for seed in range(1200)]
    tab.click("#runs th button:text-is('seed')")
    tab.click("#runs th button:text-is('seed')")
    assert tab.inner_text("#runs tbody td:nth-child(5)") == "1199"  # sorted before it is cut


def test_a_browser_without_groupby_or_a_clipboard_will_do(chromium: Any, page: Callable[..., Path]) -> None:
    context = chromium.new_context(offline=True)
    context.add_init_script("delete Object.groupBy; delete Map.groupBy;"
                            "Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    tab = context.new_page()
    tab.goto(page(*VARIED).as_uri())
    assert len(shown(tab, "means")) == 6
    tab.click("#runs tbody button")
    tab.click("#runs button:text-is('copy')")
    tab.wait_for_selector("#runs button:text-is('selected')")
    assert tab.evaluate("String(getSelection())") == tab.locator("#runs code").text_content()
    context.close()
