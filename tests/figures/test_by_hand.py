"""What figures say, by hand and without drawing: names, tables, rows, and every limit from both sides."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mammoth_sbs.errors import UserError
from mammoth_sbs.figures import bars, following, heatmap, hosts, matrices, memory, output, recorded, robustness, table1
from mammoth_sbs.figures.agreement import Estimate, agreement, estimate
from mammoth_sbs.figures.correlation import Correlation, correlation, power
from mammoth_sbs.figures.forgotten import Forgotten, class_table, percent, worst_table
from mammoth_sbs.figures.recorded import Memory
from mammoth_sbs.figures.results import Measure, Run, check_seeds, same, short, text
from mammoth_sbs.figures.statistics import Difference, Mean, probability

MATRIX = [[90.0], [70.0, 80.0]]


def run(model: str = "er-sbs", matrix: Any = MATRIX, seed: int = 0, folder: str = "", **flags: Any) -> Run:
    args = {"model": model, "dataset": "seq-cifar100", "seed": seed, "buffer_size": 500, **flags}
    if model.endswith("-sbs"):
        args = {"sampler": "speed", "sbs_q": 0.2, "sbs_s": 0.2, **args}
    results = {name: {"matrix": matrix} for name in ("task_il", "class_il")}
    return Run("x", {"args": args, "threads": 1, "seed": seed, "results": results, "volatile": {}}, Path(folder))


# ---- names

@pytest.mark.parametrize(("count", "rows"), [
    (1, (1, 1)), (4, (1, 4)), (5, (2, 3)), (8, (2, 4)), (9, (3, 3)), (11, (3, 4))])
def test_rows_of_panels_are_as_equally_long_as_can_be(count: int, rows: tuple[int, int]) -> None:
    assert output.rows_of(count, 4) == rows


def test_names_of_runs() -> None:
    assert [run(buffer_size=size).buffer for size in (500, 1000, 1500, 10_000, None)] == [
        "500", "1k", "1500", "10k", "None"]
    assert run().dataset == "CIFAR-100-2" and run(dataset="seq-other").dataset == "seq-other-2"
    assert run(dataset="seq-folder", data="/x/birds.zip").dataset == "birds-2"
    assert (run("derpp_sbs", sampler="speed", sbs_q=0.2, sbs_s=0.2).method, run("lwf").method) == ("DER++", "lwf")
    assert run().host == "embedded" and run(host="mammoth").host == "mammoth"
    assert run(sampler="ccs", sbs_s=0.3).arm == "ccs s=0.3"
    assert run(sampler="stream-speed", sbs_q=0.1, sbs_s=0.3, sbs_near=5).arm == "stream-speed q=0.1 s=0.3, near 5"
    assert run().final("task_il") == 75 and run(seed=3).seed == 3
    assert run(seed=1).all_but_the_seed == run(seed=2).all_but_the_seed != run(seed=1, lr=1).all_but_the_seed
    assert (short(0.20), short(0), short("auto"), text([1, "a"]), text(0.5)) == ("0.2", "0", "auto", "1 a", "0.5")
    assert same(0.1, "0.10") and same("derpp-sbs", "derpp_sbs") and same([1, 2], "1 2")
    assert not same(0.1, "0.2") and not same("er", "der") and same(None, "None")


def test_units_and_names_of_measures() -> None:
    assert (Measure("task_il").unit, Measure("task_il", "forgetting").unit) == ("%", "points")
    assert (Measure("task_il").name, Measure("task_il", "forgetting").name) == ("task_il", "task_il_forgetting")
    assert Measure("task_il").higher and not Measure("task_il", "forgetting").higher


def test_all_have_the_same_seeds_or_those_that_all_have() -> None:
    found = {"a": {2: 1.0, 0: 5.0}, "b": {0: 2.0, 2: 3.0}}
    assert check_seeds("x", found, common=False) is found
    found["b"][1] = 9.0
    assert check_seeds("x", found, common=True) == {"a": {0: 5.0, 2: 1.0}, "b": {0: 2.0, 2: 3.0}}
    with pytest.raises(UserError, match=r"^x: a lacks seed 1, which others have; finish the sweep, or give --common"):
        check_seeds("x", found, common=False)
    with pytest.raises(UserError, match=r"^x: a lacks seed 1, which others have; finish the sweep$"):
        check_seeds("x", {"a": {0: 1.0}, "b": {1: 1.0}}, common=True)


# ---- statistics in words

def test_numbers_in_words() -> None:
    assert (Mean(1.234, 0.5, 3).text(), Mean(-1.0, None, 1).text(sign=True)) == ("1.23 ± 0.50", "-1.00")
    assert Mean(1.0, None, 1).text(sign=True) == "+1.00"
    change = Difference(1.0, 0.5, 3, -0.21, 1.4, 0.5, 2, 1)
    assert change.span() == "-0.21 to +1.40" and Difference(1.0, 0.5, 3, None, 1.4, 0.5, 2, 1).span() == "–"
    assert [probability(p) for p in (0.0004, 0.0006, 0.5)] == ["< 0.001", "0.001", "0.500"]
    assert Estimate(0.62, 0.31, 0.8).text() == "+0.62 (+0.31 to +0.80)" and Estimate(None).text() == "–"
    assert Estimate(0.62).text() == "+0.62" and Estimate(0.62).text(sign=False) == "0.62"
    assert Correlation(4, 0.5, None, None, 0.02).text("rho") == "rho = 0.500, p = 0.02, n = 4"
    assert [power(p) for p in (0.001, 0.00099, 1e-99, 9e-100)] == ["= 0.001", "= 1e-3", "= 1e-99", "< 1e-99"]


def test_an_interval_is_that_of_the_values_that_are_known() -> None:
    drawn = np.array([*np.linspace(0, 1, 201), np.nan])
    assert estimate(0.5, drawn) == Estimate(0.5, 0.025, 0.975)
    assert estimate(float("nan"), drawn) == Estimate(None) and estimate(0.5, np.array([np.nan])) == Estimate(0.5)


def test_maps_are_compared_over_the_pairs_and_seeds_that_both_have() -> None:
    pairs = [(0.0, 0.0), (0.0, 0.2), (0.2, 0.0), (0.2, 0.2)]
    one = {pair: {0: 1.0 * i, 1: 2.0 * i, 2: 0.0} for i, pair in enumerate(pairs)}
    other = {pair: {1: -1.0 * i, 0: -5.0 * i} for i, pair in enumerate(pairs[:3])}
    found = agreement(one, other)
    assert (found.pairs, found.seeds, found.rank_correlation.value) == (3, 2, pytest.approx(-1))
    assert found.row() == {"pairs": 3, "seeds": 2, "rank_correlation": found.rank_correlation.value,
                           "low": found.rank_correlation.low, "high": found.rank_correlation.high,
                           "over_other_seeds": pytest.approx(-1)}
    few = agreement(one, {pair: other[pair] for pair in pairs[:2]})
    assert (few.pairs, few.seeds, few.rank_correlation.value, few.other_seeds) == (2, 2, None, None)
    assert agreement({pairs[0]: {0: 1.0}}, {pairs[1]: {0: 1.0}}).seeds == 0
    assert correlation([1, 2, 3, 4], [4, 3, 2, 1]).n == 4 and correlation([1, 1, 2], [1, 1, 1]).r is None


# ---- forgotten

@pytest.fixture
def it() -> Forgotten:
    """Nine examples of three classes: eight were known, four of them are kept."""
    flags = {name: np.array([c == "1" for c in bits]) for name, bits in (
        ("known", "111111110"), ("kept", "110110000"), ("stored", "100000011"))}
    return Forgotten(2, np.array([0, 0, 0, 1, 1, 1, 1, 2, 2]), np.arange(9) * 10,
                     np.array([0.9, 0.8, 0.1, 0.8, 0.6, 0.5, 0.1, 0.2, 0.0]), **flags)


def test_at_risk_is_the_slowest_quarter_of_what_was_known(it: Forgotten) -> None:
    assert it.at_risk.nonzero()[0].tolist() == [2, 6]  # of equals the earlier; the slowest of all was never known
    assert it.lost.nonzero()[0].tolist() == [2, 5, 6, 7]
    assert it.share_lost(it.stored) == 50 and it.share_lost(~it.known) is None
    assert it.auc == 1.0 and percent(3, 8) == "3 (38%)" and percent(0, 0) == "0"


def test_classes_come_with_the_most_forgotten_first_and_examples_with_the_slowest(it: Forgotten) -> None:
    head, *lines = (line.split() for line in class_table(it, ["cat", "dog", "bird"]))
    assert head == ["class", "known", "forgotten", "speed", "at", "risk", "stored"]
    assert lines == [["bird", "1", "1", "(100%)", "0.10", "0", "2"], ["dog", "4", "2", "(50%)", "0.50", "1", "0"],
                     ["cat", "3", "1", "(33%)", "0.60", "1", "1"]]
    _, *worst = (line.split() for line in worst_table(it, ["cat", "dog", "bird"], 3))
    assert worst == [["20", "0.10", "yes", "no", "cat"], ["60", "0.10", "yes", "no", "dog"],
                     ["70", "0.20", "no", "yes", "bird"]]


# ---- following and robustness

@pytest.mark.parametrize(("flags", "says"), [
    ({}, ("0-49", "50-99")), ({"max_classes": 4}, ("0-1", "2-3")), ({"dataset": "seq-cifar10"}, ("0-4", "5-9")),
    ({"second_task": "rotations", "max_classes": 4}, ("0-1", "0-1 rotated")),
    ({"second_task": "random-labels", "max_classes": 4}, ("0-1", "2-3, random labels")),
    ({"custom_class_order": "5,3,cat,dog"}, ("5 3", "cat dog")), ({"custom_class_order": "7-5-1-2"}, ("7 5", "1-2"))])
def test_which_task_follows_which(flags: dict[str, Any], says: tuple[str, str]) -> None:
    assert following.tasks(run(**flags)) == says and following.title(run(**flags)) == " → ".join(says)


def test_lists_of_classes_are_short() -> None:
    assert following.listed("3-3,9") == ["3", "9"] and following.listed("1-3, 7 ,5-4") == ["1", "2", "3", "7", "5", "4"]
    assert following.named(["1", "2", "4", "5", "6", "a", "7"]) == "1-2 4-6 a 7"
    assert following.named(["aaaaa"] * 4) == "aaaaa aaaaa aaaaa aaaaa"  # 23 characters
    assert following.named(["aaaaa"] * 3 + ["aaaaaa"]) == "aaaaa aaaaa aaaaa aaaaaa"  # 24
    assert following.named(["aaaaa"] * 3 + ["aaaaaaa"]) == "4 classes (aaaaa ...)"
    with pytest.raises(UserError, match="following: run x is of CIFAR-100-1; this figure is of one task that follows"):
        following.tasks(run(matrix=[[90.0]]))


def test_settings_in_words() -> None:
    assert [robustness.word(*pair) for pair in (
        ("optimizer", "adamw"), ("n_epochs", 5), ("optim_wd", 0.0), ("optim_wd", 5e-4), ("lr", 0.03),
        ("lr_later", [0.1, 0.2]), ("custom_class_order", "1,2"), ("backbone", "vgg16"), ("batch_size", 8),
        ("head_hidden", 64), ("head_hidden", None), ("compile", None))] == [
        "AdamW", "5 epochs", "no weight decay", "weight decay 0.0005", "learning rate 0.03",
        "second task's rate 0.1 0.2", "another split", "VGG-16", "batch_size 8",
        "hidden layer of 64", "no hidden layer", "compile off"]  # a flag that is off is not in a result


def test_the_reference_is_the_setting_nearest_to_all_others() -> None:
    runs = [run(lr=0.1, n_epochs=5), run(lr=0.2, n_epochs=5), run(lr=0.1, n_epochs=9), run(lr=0.1, n_epochs=5, seed=1)]
    assert sorted(robustness.titles(runs).values()) == ["9 epochs", "learning rate 0.2", "reference"]
    two = [run(optimizer="adam", lr=0.001), run(optimizer="sgd", lr=0.1)]  # as far from each other: SGD it is
    assert sorted(robustness.titles(two).values()) == ["Adam", "reference"]
    assert robustness.titles([]) == {}


def test_what_is_said_of_a_setting() -> None:
    maps = {title: {(0.0, 0.0): {0: 50.0, 1: 50.0}, (0.2, 0.2): {0: 50.0 + up, 1: 52.0 + up},
                    (0.4, 0.0): {0: 49.0, 1: 51.0}, (0.0, 0.4): {0: 40.0, 1: 48.0}}
            for title, up in (("reference", 1.0), ("other", 3.0))}
    row = robustness.line("other", maps, Measure("task_il"))
    assert (row["seeds"], row["pairs"], row["above"], row["default_pair"]) == (2, 3, 1, 4.0)  # 50 is not above 50
    assert row["share"] == pytest.approx(1 / 3) and row["reference_rank_correlation"] == pytest.approx(1)
    less = robustness.line("reference", maps, Measure("task_il", "forgetting"))
    assert less["above"] == 1 and "reference_rank_correlation" not in less  # the one that is lower
    alone = robustness.line("x", {"x": {(0.0, 0.0): {0: 1.0}, (0.4, 0.0): {0: 2.0}}}, Measure("task_il"))
    assert "default_pair" not in alone and alone["share_low"] is None
    head, rows, bold = robustness.table([row, alone])
    assert len(head) == 7 and bold == frozenset() and rows[0][:3] == ["other", "2", "1 of 3"]
    assert rows[0][4] == "+4.00 (+3.00 to +5.00)" and rows[1][3:] == ["100%", "–", "–", "–"]


# ---- heat maps, hosts, bars

def test_cells_of_a_heat_map() -> None:
    assert [heatmap.signed(x) for x in (1.25, -0.04, 0.0, -1.26)] == ["+1.2", "0.0", "0.0", "−1.3"]
    assert heatmap.differences({(0.0, 0.0): 5.0, (0.2, 0.0): 7.0}) == {(0.0, 0.0): 0, (0.2, 0.0): 2}
    assert heatmap.differences({(0.2, 0.0): 7.0, (0.4, 0.0): 9.0}) == {(0.2, 0.0): -1, (0.4, 0.0): 1}
    change, value = Difference(1.5, 0.25, 4, 1, 2, 0.1, 4, 0), Mean(60.04, 0.44, 4)
    assert heatmap.cell((0.2, 0.0), change, value) == f"{heatmap.signed(1.5)}\n± {0.25:.1f}\nn = 4"
    assert heatmap.cell((0.0, 0.0), change, value) == "60.0\n± 0.4\nn = 4"
    assert heatmap.cell((0.2, 0.0), Difference(1.5, None, 1, None, None, None, 1, 0), value) == "+1.5\nn = 1"
    assert heatmap.at((0.2, 0.0), {(0.2, 0.0): "+1.5\nn = 1"}) == "+1.5 at q = 0.2, s = 0"
    fixed = [run(), run(sbs_q="auto"), run(sbs_s="rule"), run(sampler="uniform"), run("er"), run(sbs_q=0, sbs_s=1e-3)]
    assert heatmap.fixed(fixed) == [fixed[0], fixed[5]]


def test_rows_of_a_heat_map_are_corrected_over_the_cells_that_are_compared() -> None:
    means = {(0.0, 0.0): Mean(50.0, 1.0, 3), (0.0, 0.4): Mean(52.0, 1.0, 3), (0.4, 0.0): Mean(49.0, 1.0, 3)}
    changes = {pair: Difference(value.mean - 50, 1.0, 3, 0, 1, 0.02 if pair[1] else 0.3, 2, 1)
               for pair, value in means.items()}
    first, slow, quick = heatmap.rows("x", Measure("task_il"), means, changes)
    assert "minus_uniform" not in first and (slow["q"], slow["s"], quick["q"], quick["s"]) == (0, 0.4, 0.4, 0)
    assert (slow["minus_uniform"], slow["minus_uniform_p_holm"], quick["minus_uniform_p_holm"]) == (2, 0.04, 0.3)


def test_two_folders_of_one_host_are_called_by_their_folders() -> None:
    ours, theirs = run(folder="a"), run(folder="b", host="mammoth")
    theirs.record["volatile"]["versions"] = {"host": "Mammoth e75"}
    assert hosts.labels({Path("a"): [ours], Path("b"): [theirs]}) == {Path("a"): "embedded", Path("b"): "Mammoth e75"}
    assert hosts.labels({Path("a"): [ours], Path("c"): [ours]}) == {Path("a"): "a", Path("c"): "c"}
    assert hosts.label([run(host="mammoth")]) == "mammoth"
    with pytest.raises(UserError, match="hosts: two folders with runs are compared, not 3"):
        hosts.labels({Path(name): [ours] for name in "abc"})


def test_flags_that_both_hosts_know_have_the_same_values() -> None:
    hosts.check_same_flags("x", {"a": {"lr": 0.1, "only": 1, "off": 0, "seed": 1}, "b": {"lr": 0.1, "off": None,
                                                                                         "seed": 2}})
    for value in (False, 0, "", []):
        hosts.check_same_flags("x", {"a": {"off": value}, "b": {"off": None}})
    with pytest.raises(UserError, match=r"^x: --lr is 0.1 on a and 0.2 on b; compare sweeps of one configuration"):
        hosts.check_same_flags("x", {"a": {"lr": 0.1}, "b": {"lr": 0.2}})


def test_how_many_seeds_a_chart_has() -> None:
    chart = {"ER": {"SBS": {0: 1.0, 1: 2.0}, "stock": {0: 1.0, 1: 2.0}}, "GEM": {"stock": {0: 1.0}}}
    assert bars.count(chart) == "1 to 2 seeds" and bars.count(chart, "SBS", "stock") == "2 seeds"
    assert bars.count({"GEM": chart["GEM"]}) == "1 seed"
    assert list(bars.with_pooled(chart)) == ["ER", "GEM", "pooled"] and bars.with_pooled(chart)["pooled"] == {
        "stock": {0: 1.0}}
    assert bars.with_pooled({"ER": chart["ER"]}) == {"ER": chart["ER"]}
    two = {"ER": {"uniform": {0: 1.0, 1: 2.0}, "stock": {0: 0.0, 1: 1.0}, "SBS": {0: 3.0, 1: 3.0}}}
    assert list(bars.comparisons(two)) == [("SBS", "uniform"), ("uniform", "stock"), ("SBS", "stock")]
    said = bars.describe({"D": bars.comparisons(two)}, Measure("task_il"))
    assert "SBS minus uniform on D: ER +1.50" in said and said.startswith("Bar chart of final Task-IL accuracy and")
    (title, (head, lines, bold)), *_ = bars.tables("D", Measure("task_il"), two, bars.comparisons(two))
    assert head == ["method", "stock", "uniform", "SBS"] and bold == {(0, 3)} and title.endswith(", 2 seeds")
    assert lines == [["ER", "0.50 ± 0.50", "1.50 ± 0.50", "3.00 ± 0.00"]]
    assert not bars.tables("D", Measure("task_il"), {"ER": {"stock": {0: 1.0}}}, {})[0][1][2]


# ---- Table 1

def test_a_papers_column_belongs_to_a_split_and_a_share_of_its_data() -> None:
    of = Measure("task_il")
    assert [table1.papers_column(of, *which)[0] for which in (("CIFAR-10-2", 0.02), ("TinyImageNet-2", 0.01))] == [
        "1k", "1k"]
    assert table1.papers_column(of, "CIFAR-10-2", 0.2) == ("10k", {
        "Random": 95.03, "Max entropy": 94.63, "IPM": 94.76, "GSS": 95.55, "Herding": 94.53, "LARS": 95.43,
        "SBS-fix": 95.56, "SBS": 96.03, "SBS share": 96.03})
    for share, says in ((0.0191, "1k"), (0.0189, ""), (0.021, "1k"), (0.0212, "")):  # within a twentieth
        assert table1.papers_column(of, "CIFAR-10-2", share)[0] == says
    assert table1.papers_column(of, "CIFAR-10-3", 0.02) == table1.papers_column(
        Measure("task_il", "forgetting"), "CIFAR-10-2", 0.02) == ("", {})
    assert table1.papers_column(Measure("class_il"), "CIFAR-10-2", 0.02) == ("1k", {})  # nothing is known of these
    assert table1.papers_error("CIFAR-100-2", "10k", "SBS", "task_il") == "0.10"
    assert table1.papers_error("CIFAR-100-2", "10k", "SBS", "class_il") == "–"
    assert table1.papers_error("CIFAR-100-2", "10k", "other", "task_il") == "–"


def test_columns_come_by_data_set_tasks_and_size() -> None:
    names = ["TinyImageNet-2 1k", "other-2 5", "CIFAR-100-20 1k", "CIFAR-100-5 1k", "CIFAR-10-5 10k", "CIFAR-10-5 2k",
             "CIFAR-10-5 500"]
    assert sorted(names, key=table1.column_order) == [
        "CIFAR-10-5 500", "CIFAR-10-5 2k", "CIFAR-10-5 10k", "CIFAR-100-5 1k", "CIFAR-100-20 1k", "TinyImageNet-2 1k",
        "other-2 5"]


def test_how_much_of_the_data_the_buffer_holds() -> None:
    one = run()
    one.record["sbs"] = {"tasks": [{"examples": 1500}, {"examples": 1000}]}
    assert table1.shares([one, run("er")]) == {"CIFAR-100-2 500": 0.2}


# ---- records

def test_settings_are_told_apart_by_what_they_differ_in() -> None:
    usual = {"backbone": "tiny-resnet18", "num_filters": 20, "buffer_size": None}
    runs = [run("sgd", **usual), run("sgd", **usual | {"num_filters": 8}), run("er", **usual | {"buffer_size": 100}),
            run("sgd", **usual | {"backbone": "vgg16"}), run("sgd", **usual, lr=0.5),
            run("sgd", **usual | {"dataset": "seq-cifar10"})]
    assert recorded.titles(runs) == [
        "CIFAR-100-2, Tiny ResNet, 20 filters, no buffer", "CIFAR-100-2, Tiny ResNet, 8 filters",
        "CIFAR-100-2, Tiny ResNet, 20 filters, buffer 100", "CIFAR-100-2, VGG-16",
        "CIFAR-100-2, Tiny ResNet, 20 filters, no buffer, lr 0.5", "CIFAR-10-2"]
    assert recorded.word("model", "derpp_sbs") == "DER++" and recorded.word("lr", None) == ""
    assert recorded.word("backbone", "mine") == "mine" and recorded.word("buffer_size", 0) == "no buffer"


def test_epochs_of_all_tasks_on_one_axis() -> None:
    networks = object.__new__(recorded.Networks)
    networks.records = [SimpleNamespace(epochs=np.array([[1, 2], [1, 4], [2, 2], [2, 4], [3, 4]]), tasks=3)]
    assert networks.edges().tolist() == [0, 2, 4, 6, 8, 12] and networks.edges(2).tolist() == [4, 6, 8, 12]
    assert networks.switches() == [4, 8] and networks.tasks == 3 and len(networks) == 1
    lines = np.array([[0.0, 0.5], [1.0, 1.0]]), np.array([0, 3, 7])
    assert recorded.matrix_rows("x", {"data": "test"}, lines) == [
        {"panel": "x", "data": "test", "from": 1, "to": 3, "right_percent": "0 50"},
        {"panel": "x", "data": "test", "from": 4, "to": 7, "right_percent": "100 100"}]


def test_the_speed_of_what_each_network_remembers() -> None:
    first, last = (np.array(bits, bool) for bits in ([[1, 1], [1, 0]], [[1, 1], [0, 1]]))
    kept = Memory(np.array([[0.2, 0.8], [0.4, 0.6]]), first, last)
    networks: Any = SimpleNamespace(memory=lambda test, setting: kept)
    found = memory.remembered_speed(networks, "task_il")
    assert found[0] == pytest.approx(0.5) and np.isnan(found[1])
    assert memory.shown_sizes([5, 10]) == [5, 10, 10]


def test_a_prediction_by_few_networks() -> None:
    made = matrices.Prediction(Correlation(3, 0.5), [], [0.5])
    assert matrices.mean([]) == (None, None, None) and matrices.mean([0.5]) == (0.5, None, None)
    row = made.row()
    assert (row["n"], row["r"], row["networks"], row["in_a_network_mean"], row["auc_mean"]) == (3, 0.5, 0, None, 0.5)
    assert row["auc_low"] is None
    one = SimpleNamespace(speeds=lambda test, setting: np.zeros((1, 2)) if not test else None,
                          records=[{"task1_loss": np.array([1, 2]), "task1_speed": np.array([9, 9])}])
    found = matrices.scores_of(one, "task_il")  # type: ignore[arg-type]
    assert list(found) == ["speed", "loss"] and found["loss"].tolist() == [[1, 2]] and not found["speed"].any()
