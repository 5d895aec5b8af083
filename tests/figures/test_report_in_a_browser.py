"""The report page in a real browser: filters, sorting, commands, wide and narrow, light and dark, with and without
JavaScript, and no network at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from tests.figures.conftest import ARMS, GRID, VARIED, Record, record
from tests.figures.test_report import BAD

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
BROWSER_FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                 "--disable-background-networking", "--disable-component-update", "--disable-sync"]
ROWS = """rows => rows.filter(row => row.offsetParent !== null || row.getClientRects().length).map(row =>
  Object.fromEntries([...row.cells].map(cell => [cell.dataset.label, cell.firstChild.textContent])))"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser without a window."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium on the PATH")
    with sync_api.sync_playwright() as tool:
        browser = tool.chromium.launch(executable_path=CHROMIUM, args=BROWSER_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def view(chromium: Any, page: Callable[..., Path]) -> Iterator[Callable[..., Any]]:
    """Open the page about these runs from the disk; whatever else it asks for or complains about fails the test."""
    requests: list[str] = []
    complaints: list[str] = []
    contexts: list[Any] = []

    def dismiss(dialog: Any) -> None:
        complaints.append(dialog.message)
        dialog.dismiss()

    def view(*records: Record, figures: bool = False, width: int = 1400, dark: bool = False,
             script: bool = True) -> Any:
        context = chromium.new_context(viewport={"width": width, "height": 900}, offline=True,
                                       color_scheme="dark" if dark else "light", java_script_enabled=script)
        contexts.append(context)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        tab = context.new_page()
        tab.on("request", lambda request: requests.append(request.url))
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("dialog", dismiss)
        tab.goto(page(*records, figures=figures).as_uri())
        return tab

    yield view
    for context in contexts:
        context.close()
    assert requests
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert complaints == []


def shown(tab: Any, table: str = "runs") -> list[dict[str, str]]:
    """The rows in sight: what their cells begin with, by the titles of the columns."""
    return tab.eval_on_selector_all(f"#{table} tbody tr", ROWS)


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
    for table in ("means", "tasks"):
        assert {row[title] for row in shown(tab, table)} == {choice}
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


def test_what_is_drawn_follows_the_filters(view: Callable[..., Any]) -> None:
    tab = view(*GRID, record("derpp", 0), record("derpp_sbs", 0), figures=True)
    visible = "all => all.filter(one => one.getClientRects().length).length"
    before = tab.eval_on_selector_all("#means svg", visible)
    assert tab.eval_on_selector_all("img", visible) == 2
    tab.select_option("#method", "DER++")
    assert tab.eval_on_selector_all("img", visible) == 0  # they are of ER
    assert tab.eval_on_selector_all("section", visible) == 0
    assert 0 < tab.eval_on_selector_all("#means svg", visible) < before
    tab.select_option("#method", "ER")
    assert tab.eval_on_selector_all("img", visible) == 2


def test_a_click_on_a_title_sorts_and_another_turns_it_round(view: Callable[..., Any]) -> None:
    finals = [9.5, 70.25, 95.0, 30.0]
    runs = [record("er", seed, final) for seed, final in enumerate(finals)]
    tab = view(*runs, record("sgd", 9, 50, buffer_size=None))

    def by(title: str) -> list[str]:
        tab.click(f"#runs th button:text-is('{title}')")
        return [row[title] for row in shown(tab)]

    assert by("Task-IL %") == ["9.50", "30.00", "50.00", "70.25", "95.00"]
    assert by("Task-IL %") == ["95.00", "70.25", "50.00", "30.00", "9.50"]
    assert by("method") == ["ER", "ER", "ER", "ER", "SGD"]
    assert by("buffer") == ["–", "80", "80", "80", "80"]
    assert tab.get_attribute("#runs th:has-text('buffer')", "aria-sort") == "ascending"
    tab.select_option("#method", "ER")
    assert len(shown(tab)) == 4


@pytest.mark.parametrize("script", [True, False])
def test_the_means_in_sight_are_those_of_statistics(view: Callable[..., Any], script: bool) -> None:
    tab = view(*VARIED, record("fdr", 0, 33.337), script=script)
    means = [line for line in (shown(tab, "means") if script else read(tab)) if line["method"] != "pooled"]
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


def read(tab: Any) -> list[dict[str, str]]:
    """The means as a reader without JavaScript sees them: what is in sight, line by line."""
    rows = tab.locator("#means tbody tr")
    assert rows.count() and not tab.locator(".filters").is_visible()
    found = []
    for i in range(rows.count()):
        cells = rows.nth(i).locator("td")
        assert rows.nth(i).is_visible()
        found.append({cells.nth(j).get_attribute("data-label"): cells.nth(j).inner_text().split("\n")[0].strip()
                      for j in range(cells.count())})
    return found


def test_the_command_of_a_row_can_be_seen_copied_and_closed(view: Callable[..., Any]) -> None:
    line = "python main.py  --model er --note '<b>&amp;</b>' --seed 0"
    tab = view(record("er", 0, command=line), record("er", 1, command="python main.py --seed 1"))
    code = tab.locator("#runs code").first
    assert not code.is_visible()
    summary = tab.locator("#runs tbody tr:first-child summary")
    summary.click()
    assert code.is_visible() and code.text_content() == line
    tab.click("#runs button:text-is('copy')")
    tab.wait_for_selector("#runs button:text-is('copied')")
    assert tab.evaluate("navigator.clipboard.readText()") == line
    summary.click()
    assert not code.is_visible()
    tab.click("#means tbody summary")
    assert tab.locator("#means code").first.text_content() == f"{line}\npython main.py --seed 1"


def test_without_a_script_the_commands_can_be_seen(view: Callable[..., Any]) -> None:
    tab = view(record("er", 0), script=False)
    tab.click("#runs summary")
    assert tab.locator("#runs code").is_visible()


def test_text_of_the_results_is_shown_as_it_is(view: Callable[..., Any]) -> None:
    tab = view(record("er", 0, command=BAD, dataset=BAD), record("er_sbs", 1, lr=BAD, dataset=BAD), figures=True)
    assert tab.locator("#runs tbody td").first.text_content() == f"{BAD}-2"
    assert tab.locator("#runs code").first.text_content() == BAD
    tab.select_option("#dataset", f"{BAD}-2")
    assert len(shown(tab)) == 2


def test_the_figures_are_pictures_in_the_page(view: Callable[..., Any]) -> None:
    tab = view(*GRID, figures=True)
    widths = tab.eval_on_selector_all("img", "all => all.map(one => one.naturalWidth)")
    assert len(widths) == 2
    assert min(widths) > 300


@pytest.mark.parametrize("width", [1400, 1300, 700, 390])
def test_nothing_is_cut_off_or_scrolls_sideways(view: Callable[..., Any], width: int) -> None:
    long = [record("er", seed, buffer_size=500, lr=lr) for lr in (0.1, 0.03) for seed in range(3)]
    for records in ((*ARMS, *GRID), (*VARIED, *long)):
        tab = view(*records, figures=True, width=width)
        tab.click("#runs tbody summary")
        tab.click("#means tbody summary")
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        beyond = tab.eval_on_selector_all("td, th, code, img, summary", "all => all.filter(one => "
                                          "one.getClientRects().length && one.getBoundingClientRect().right > "
                                          "innerWidth).length")
        assert beyond == 0


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1400, 390])
def test_text_stands_out_from_its_background(view: Callable[..., Any], width: int, dark: bool) -> None:
    """By the contrast that web pages must have for text, 4.5 to 1."""
    tab = view(*ARMS, *VARIED[10:11], width=width, dark=dark)
    worst = tab.evaluate("""() => {
      const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
      const light = colour => numbers(colour).slice(0, 3).map(c => c / 255).map(c => c <= .04045 ? c / 12.92 :
        ((c + .055) / 1.055) ** 2.4).reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
      const behind = one => { const colour = getComputedStyle(one).backgroundColor;
        return numbers(colour)[3] === 0 ? behind(one.parentElement) : colour; };
      const contrast = one => { const both = [light(getComputedStyle(one).color), light(behind(one))];
        return (Math.max(...both) + .05) / (Math.min(...both) + .05); };
      return Math.min(...[...document.querySelectorAll("h1, p, a, code, th, td, small, summary, label, .note")]
        .filter(one => one.getClientRects().length).map(contrast));
    }""")
    assert worst >= 4.5
    paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (not dark)


def test_very_many_runs_are_shown_in_part_until_all_are_asked_for(view: Callable[..., Any]) -> None:
    tab = view(*(record("er", seed, 20 + seed / 100) for seed in range(1200)))
    assert tab.inner_text("#count") == "1200 of 1200 runs"
    assert len(shown(tab)) == 500
    tab.click("button:text-is('show all 1200 rows')")
    assert [row["seed"] for row in shown(tab)] == [str(seed) for seed in range(1200)]
    tab.click("#runs th button:text-is('seed')")
    tab.click("#runs th button:text-is('seed')")
    assert shown(tab)[0]["seed"] == "1199"


def test_sorting_comes_before_cutting(view: Callable[..., Any]) -> None:
    tab = view(*(record("er", seed, 20 + seed / 100) for seed in range(600)))
    tab.click("#runs th button:text-is('seed')")
    tab.click("#runs th button:text-is('seed')")
    assert shown(tab)[0]["seed"] == "599" and len(shown(tab)) == 500


def test_a_browser_without_a_clipboard_will_do(chromium: Any, page: Callable[..., Path]) -> None:
    context = chromium.new_context(offline=True)
    context.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    tab = context.new_page()
    tab.goto(page(*VARIED).as_uri())
    tab.click("#runs tbody summary")
    tab.click("#runs button:text-is('copy')")
    tab.wait_for_selector("#runs button:text-is('selected')")
    assert tab.evaluate("String(getSelection())") == tab.locator("#runs code").first.text_content()
    context.close()
