"""SBS in the eight methods: the layer between the core and the host."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mammoth_sbs.core.samplers import sampler_names
from mammoth_sbs.models.record import load_matrix
from tests.conftest import STOCK, mammoth_main

from utils.training import train

Start = Callable[..., SimpleNamespace]
EACH_STEP = ("er", "der", "derpp")  # insert into the buffer at every step in stock
NO_QUOTA = ("er", "der", "derpp", "agem", "fdr")
SMALL = "--train_per_class 20 --n_epochs 2"
CONV = f"{SMALL} --backbone tiny-resnet18 --num_filters 4"


def follow(it: SimpleNamespace) -> list[SimpleNamespace]:
    """Note, at the end of every task: counts of the hook, the task as the sampler saw it, and what was stored."""
    notes: list[SimpleNamespace] = []
    report = it.model.report

    def note(task, stored) -> None:  # noqa: ANN001
        data = it.dataset.train_loader.dataset
        notes.append(SimpleNamespace(task=task, stored=stored, data=data, counts=it.model.speed.count.clone(),
                                     buffer=it.model.buffer.serialize(), n=len(it.model.buffer)))
        report(task, stored)

    it.model.report = note
    train(it.model, it.dataset, it.args)
    return notes


# ---- the hook

@pytest.mark.parametrize("scope", ["task", "seen"])
@pytest.mark.parametrize("name", STOCK)
def test_counts_equal_those_of_a_second_forward_pass(start: Start, name: str, scope: str) -> None:
    it = start(f"{name}_sbs", f"{SMALL} --stop_after 3 --sbs-scope {scope} --buffer_size 40")
    model, observe, counts = it.model, it.model.observe, {}

    def observe_twice(inputs, labels, not_aug_inputs, epoch=None, sbs_index=None) -> float:  # noqa: ANN001
        with torch.no_grad():
            outputs = model(inputs)  # at the same moment: the weights of this step
        first, end = model.get_offsets(model.current_task)
        outputs = outputs[:, (first if scope == "task" else 0) : end]
        for i, predicted, label in zip(sbs_index.tolist(), outputs.argmax(1).tolist(), labels.tolist(), strict=True):
            key = model.current_task, i
            counts[key] = counts.get(key, 0) + (predicted + (first if scope == "task" else 0) == label)
        return observe(inputs, labels, not_aug_inputs, epoch=epoch, sbs_index=sbs_index)

    model.observe = observe_twice
    notes = follow(it)
    for t, note in enumerate(notes):
        assert note.counts.tolist() == [counts[t, i] for i in range(len(note.counts))]
    assert any(0 < c < 2 for c in counts.values())  # the test has something to tell apart
    assert len(model.net._forward_hooks) == 0  # the hook leaves no trace
    assert it.dataset.train_loader.dataset.extra_return_fields == ()


# ---- nothing but the buffer changes

@pytest.mark.parametrize("name", STOCK)
def test_over_one_task_the_network_is_that_of_stock_bit_for_bit(start: Start, name: str) -> None:
    weights = {}
    for model_name, flags in ((name, ""), (f"{name}_sbs", "--sbs-during stock" if name in EACH_STEP else "")):
        same = "--simclr_num_aug 2" if name == "xder" else ""  # the one published value that is not the default
        it = start(model_name, f"{CONV} --stop_after 1 {flags} {same}")
        end_task, model = it.model.end_task, it.model

        def before_the_end(dataset, model=model, end_task=end_task, model_name=model_name) -> None:  # noqa: ANN001
            weights[model_name] = {key: value.clone() for key, value in model.net.state_dict().items()}
            end_task(dataset)

        model.end_task = before_the_end
        train(model, it.dataset, it.args)
        weights[f"{model_name} after"] = {key: value.clone() for key, value in model.net.named_parameters()}
    for when in ("", " after"):  # batch statistics included, up to the end of the task; parameters after it too
        stock, sbs = weights[name + when], weights[f"{name}_sbs{when}"]
        assert stock.keys() == sbs.keys()
        assert all(torch.equal(stock[key], sbs[key]) for key in stock)


def test_filling_leaves_everybody_elses_random_numbers_alone(start: Start) -> None:
    states = []
    for flags in ("--sbs-q 0 --sbs-s 0", "--sbs-q .4 --sbs-s .1", "--sampler uniform"):
        it = start("derpp_sbs", f"{SMALL} --stop_after 1 {flags}")
        train(it.model, it.dataset, it.args)
        states.append((torch.get_rng_state(), np.random.get_state()[1]))
    for torch_state, numpy_state in states[1:]:
        assert torch.equal(torch_state, states[0][0])
        assert (numpy_state == states[0][1]).all()


# ---- what is stored

@pytest.mark.parametrize("name", STOCK)
def test_only_the_band_is_stored_and_stored_right(start: Start, name: str) -> None:
    it = start(f"{name}_sbs", "--n_epochs 3 --train_per_class 40 --buffer_size 40 --stop_after 3")
    for t, note in enumerate(follow(it)):
        speed, n = note.task.speed, len(note.task)
        assert torch.equal(speed, note.counts / 3)
        low, high = it.model.sampler.band.limits(speed)
        if name in NO_QUOTA:
            inside = (speed[note.stored] >= low) & (speed[note.stored] <= high)
            assert inside.all()
            # strictly outside the limits is never stored; of the ties on them, only as many as the band kept
            edge = int((speed[note.stored] == high).sum())
            assert edge <= int((speed == high).sum()) - max(0, n // 5 - int((speed > high).sum()))
        # the buffer's last rows are the stored examples: same pixels, same labels, this task's number
        k = len(note.stored)
        images = note.data.data[note.stored].float() / 255
        rows = slice(note.n - k, note.n)
        mine = {tuple(x.flatten().tolist()) for x in images}
        theirs = note.buffer["examples"][: note.n]
        found = torch.tensor([tuple(x.flatten().tolist()) in mine for x in theirs])
        assert int(found.sum()) == k
        if name in NO_QUOTA:
            assert torch.equal(theirs[rows], images)
            if "labels" in note.buffer:
                assert torch.equal(note.buffer["labels"][rows], note.data.targets[note.stored])
            if "task_labels" in note.buffer:
                assert (note.buffer["task_labels"][rows] == t).all()
        assert {key for key, value in note.buffer.items() if isinstance(value, torch.Tensor)} == {
            "er": {"examples", "labels"}, "der": {"examples", "logits"}, "derpp": {"examples", "labels", "logits"},
            "xder": {"examples", "labels", "logits", "task_labels"}, "gem": {"examples", "labels", "task_labels"},
            "agem": {"examples", "labels"}, "rpc": {"examples", "labels"},
            "fdr": {"examples", "logits", "task_labels"}}[name]


@pytest.mark.parametrize("name", ["der", "derpp", "fdr"])
def test_logits_are_those_of_the_network_at_the_end_of_the_task(start: Start, name: str) -> None:
    it = start(f"{name}_sbs", f"{SMALL} --stop_after 1 --buffer_size 20")
    (note,) = follow(it)
    inputs = note.data.batch(note.stored)[0]  # the digits are not augmented, the network has no batch statistics
    with torch.no_grad():
        assert torch.allclose(note.buffer["logits"][: note.n], it.model.net(inputs), atol=1e-6)


def tasks_in_buffer(note: SimpleNamespace, cpt: int = 2) -> list[int]:
    tasks = note.buffer["labels"][: note.n] // cpt if "labels" in note.buffer else note.buffer["task_labels"][: note.n]
    return torch.bincount(tasks).tolist()


@pytest.mark.parametrize("name", ["er", "derpp", "agem", "fdr"])
def test_shares_are_exact_over_five_unequal_tasks(start: Start, name: str) -> None:
    it = start(f"{name}_sbs", "--n_epochs 1 --buffer_size 100")
    notes = follow(it)
    assert len({len(note.task) for note in notes}) > 1  # the tasks differ in size
    assert [len(note.stored) for note in notes] == [100, 50, 33, 25, 20]
    assert [note.n for note in notes] == [100] * 5
    assert [tasks_in_buffer(note)[-1] for note in notes] == [100, 50, 33, 25, 20]
    assert sum(tasks_in_buffer(notes[-1])[:-1]) == 80


def test_a_buffer_larger_than_a_task_takes_the_whole_band(start: Start) -> None:
    it = start("er_sbs", "--n_epochs 2 --buffer_size 400")
    notes = follow(it)
    bands = [len(note.task) - 2 * (len(note.task) // 5) for note in notes]
    assert len(notes[0].stored) == bands[0] < 400
    assert len(notes[1].stored) == bands[1]  # 174 each: both fit
    assert tasks_in_buffer(notes[1]) == bands[:2]
    assert len(notes[2].stored) == 133 and notes[2].n == 400  # 400 // 3; from here on old ones make room
    assert [note.n for note in notes[2:]] == [400] * 3
    assert tasks_in_buffer(notes[4])[-1] == 80


def test_old_examples_leave_at_random(start: Start) -> None:
    """Over many seeds, each slot of the old task stays equally often."""
    from scipy.stats import chisquare

    it = start("er_sbs", "--train_per_class 20 --n_epochs 1 --buffer_size 20 --stop_after 1")
    (first,) = follow(it)
    model, stays = it.model, np.zeros(20)
    it.dataset.get_data_loaders()
    for seed in range(300):
        model.buffer.load(first.buffer)
        model.generator.manual_seed(seed)
        model.meta_begin_task(it.dataset)
        task = SimpleNamespace(speed=torch.rand(40), labels=it.dataset.train_loader.dataset.targets)
        from mammoth_sbs.core.samplers import Task

        model.fill(it.dataset, Task(task.labels, speed=task.speed))
        model.hook.remove()
        it.dataset.train_loader.dataset.extra_return_fields = ()
        left = {tuple(x.flatten().tolist()) for x in model.buffer.examples}
        stays += [tuple(x.flatten().tolist()) in left for x in first.buffer["examples"]]
    assert stays.sum() == 300 * 10
    assert chisquare(stays).pvalue > 1e-4


@pytest.mark.parametrize("name", ["gem", "xder", "rpc"])
def test_quotas_per_class_are_those_of_the_stock_method(start: Start, name: str) -> None:
    counts = {}
    for model_name in (name, f"{name}_sbs"):
        it = start(model_name, "--n_epochs 1 --buffer_size 50")
        counts[model_name], end_task = [], it.model.end_task

        def note(dataset, it=it, end_task=end_task, model_name=model_name) -> None:  # noqa: ANN001
            end_task(dataset)
            labels = it.model.buffer.labels[: len(it.model.buffer)]
            counts[model_name].append(sorted(torch.bincount(labels).tolist()))

        it.model.end_task = note
        train(it.model, it.dataset, it.args)
    assert counts[name] == counts[f"{name}_sbs"]


def test_stock_during_replaces_just_the_tasks_own_examples(start: Start) -> None:
    for name in EACH_STEP:
        it = start(f"{name}_sbs", "--n_epochs 2 --buffer_size 60 --sbs-during stock --stop_after 2")
        before: dict[str, torch.Tensor] = {}
        fill = it.model.fill

        def note(dataset, task, it=it, fill=fill, before=before) -> torch.Tensor:  # noqa: ANN001
            before["seen"] = it.model.buffer.num_seen_examples
            before["old"] = it.model.old_content()["examples"].clone()
            before["all"] = it.model.buffer.examples[: len(it.model.buffer)].clone()
            return fill(dataset, task)

        it.model.fill = note
        notes = follow(it)
        first = {tuple(x.flatten().tolist()) for x in notes[0].data.data.float() / 255}
        is_old = [tuple(x.flatten().tolist()) in first for x in before["all"]]
        assert 0 < sum(is_old) < 60  # the reservoir had mixed both tasks
        assert torch.equal(before["all"][torch.tensor(is_old)], before["old"])  # told apart without labels, too
        assert it.model.buffer.num_seen_examples == before["seen"] == 2 * (len(notes[0].task) + len(notes[1].task))
        assert notes[1].n == 60 and len(notes[1].stored) == max(30, 60 - sum(is_old))


def test_closed_inserts_nothing_before_the_task_ends(start: Start) -> None:
    for name in EACH_STEP:
        it = start(f"{name}_sbs", f"{SMALL} --stop_after 2")
        fill, lengths = it.model.fill, []

        def note(dataset, task, it=it, fill=fill, lengths=lengths) -> torch.Tensor:  # noqa: ANN001
            lengths.append(len(it.model.buffer))
            return fill(dataset, task)

        it.model.fill = note
        notes = follow(it)
        assert lengths == [0, notes[0].n]


# ---- the same seed

def test_the_same_command_gives_the_same_run_and_another_seed_another(run: Callable[..., dict]) -> None:
    a, b, c = (run("derpp_sbs", f"{SMALL} --seed {seed}") for seed in (3, 3, 4))
    assert a["results"] == b["results"] and a["sbs"] == b["sbs"]
    assert torch.equal(a["model"].buffer.examples, b["model"].buffer.examples)
    assert not torch.equal(a["model"].buffer.examples, c["model"].buffer.examples)


# ---- the user's command

def test_an_sbs_model_needs_no_flag_but_its_data_set(capsys: pytest.CaptureFixture) -> None:
    args = mammoth_main.parse_args(["--model", "derpp_sbs", "--dataset", "seq-cifar100"])
    assert (args.buffer_size, args.lr, args.alpha, args.beta) == (500, 0.03, 0.1, 0.5)
    assert (args.sbs_q, args.sbs_s, args.sbs_scope, args.sbs_during) == (0.2, 0.2, "task", "closed")
    given = ["--alpha", ".7", "--buffer_size", "200"]
    args = mammoth_main.parse_args(["--model", "derpp_sbs", "--dataset", "seq-cifar100", *given])
    assert (args.buffer_size, args.lr, args.alpha, args.beta) == (200, 0.03, 0.7, 0.5)
    best = ["--model", "derpp_sbs", "--dataset", "seq-cifar10", "--model_config", "best"]
    assert mammoth_main.parse_args(best).alpha == 0.2
    for name in STOCK:
        for dataset in ("seq-cifar10", "seq-cifar100", "seq-tinyimg", "seq-mnist", "seq-digits"):
            assert mammoth_main.parse_args(["--model", f"{name}-sbs", "--dataset", dataset]).lr > 0


def test_what_is_printed(start: Start, capsys: pytest.CaptureFixture) -> None:
    it = start("derpp_sbs", "--n_epochs 1 --train_per_class 20 --stop_after 1 --buffer_size 10")
    train(it.model, it.dataset, it.args)
    out = capsys.readouterr().out
    assert "derpp_sbs on seq-digits: buffer_size 10, lr 0.05, alpha 0.2, beta 0.5" in out
    assert out.count("cannot rank examples") == 1  # one epoch: one warning
    assert "SBS task 1: 40 examples" in out
    assert "left out 8 quickest and 8 slowest" in out and "10 stored" in out
    it = start("derpp_sbs", f"{SMALL} --stop_after 1")
    assert "cannot rank" not in capsys.readouterr().out


def test_run_file_and_record(run: Callable[..., dict], tmp_path) -> None:  # noqa: ANN001
    file = tmp_path / "record.npz"
    out = run("er_sbs", f"{SMALL} --buffer_size 30 --stop_after 2 --sbs-q .1 --sbs-s .3 --sbs-record {file}")
    assert {key: out["sbs"][key] for key in ("sampler", "q", "s", "scope")} == {
        "sampler": "speed", "q": 0.1, "s": 0.3, "scope": "task"}
    record = np.load(file)
    for t in (1, 2):
        m = load_matrix(record, t)
        speed, note = record[f"task{t}_speed"], out["sbs"]["tasks"][t - 1]
        assert m.shape == (2 * (3 - t), 40)  # its own epochs, and those of later tasks
        assert np.allclose(m[:2].mean(0), speed)
        assert np.isclose(speed.mean(), note["speed_mean"])
        assert len(record[f"task{t}_stored"]) == note["stored"]
        assert len(record[f"task{t}_indices"]) == len(record[f"task{t}_labels"]) == 40
        # at the end of a task, M on test data is what evaluation measures
        test = load_matrix(record, t, test=True)
        for after in range(t, 3):
            accuracy = out["results"]["task_il"]["matrix"][after - 1][t - 1]
            assert np.isclose(100 * test[2 * (after - t + 1) - 1].mean(), accuracy)
    # recording changes nothing
    assert run("er_sbs", f"{SMALL} --buffer_size 30 --stop_after 2 --sbs-q .1 --sbs-s .3")["results"] == out["results"]


# ---- bad input: one line, before any training

@pytest.mark.parametrize(("flags", "says"), [
    ("--sbs-q 20", "not 20; did you mean 0.2?"),
    ("--sbs-s -0.1", "--sbs-s takes a fraction"),
    ("--sbs-q 1", "--sbs-q takes a fraction"),
    ("--sbs-q x", "--sbs-q takes a fraction"),
    ("--sbs-q .6 --sbs-s .4", "q + s must be below 1"),
    ("--buffer_size 4", "give at least 5"),
    ("--sampler sped", "did you mean `speed`?"),
    ("--sbs-record nowhere/x.npz", "there is no folder nowhere"),
    ("--sbs-record x.txt", "ends in .npz"),
])
def test_bad_flags(start: Start, flags: str, says: str) -> None:
    with pytest.raises(SystemExit) as error:
        start("er_sbs", flags)
    message = str(error.value)
    assert says in message and "\n" not in message and message.startswith("error: ")


def test_too_small_for_quotas(start: Start) -> None:
    with pytest.raises(SystemExit, match="give at least 10"):
        start("gem_sbs", "--buffer_size 9")


def test_data_without_index_or_with_foreign_labels(start: Start) -> None:
    it = start("er_sbs", SMALL)
    it.dataset.get_data_loaders()
    data = it.dataset.train_loader.dataset
    with pytest.raises(SystemExit, match="carry no index"):
        it.model.meta_begin_task(it.dataset)
        it.model.meta_observe(*data.batch(torch.arange(4))[:3], epoch=0)
    it.model.hook.remove()
    data.targets[0] = 7
    with pytest.raises(SystemExit, match="labels 0 to 7, outside its classes 0 to 1"):
        it.model.meta_begin_task(it.dataset)
    it.dataset.train_loader = SimpleNamespace(dataset=[])
    with pytest.raises(SystemExit, match="cannot carry an index"):
        it.model.meta_begin_task(it.dataset)


# ---- every sampler in every method

@pytest.mark.parametrize("sampler", sampler_names())
def test_samplers_fill_every_methods_buffer(start: Start, sampler: str) -> None:
    for name in STOCK:
        flags = f"--train_per_class 20 --n_epochs 1 --buffer_size 20 --stop_after 2 --sampler {sampler}"
        notes = follow(start(f"{name}_sbs", flags))
        assert [note.n for note in notes] == [20, 20], name
        assert len(set(notes[1].stored.tolist())) == len(notes[1].stored) == (0 if name == "rpc" else 10), name


# ---- other scores for the band

def test_the_band_can_rank_by_final_loss(start: Start) -> None:
    it = start("er_sbs", f"{SMALL} --stop_after 1 --sbs-score loss --buffer_size 10")
    (note,) = follow(it)
    data = note.data
    with torch.no_grad():
        logits = it.model.net(data.batch(torch.arange(40))[0])[:, :2]  # digits are not augmented
    loss = torch.nn.functional.cross_entropy(logits, data.targets, reduction="none")
    assert torch.allclose(note.task.speed, -loss, atol=1e-5)
    ranked = loss.argsort()
    assert set(note.stored.tolist()) <= set(ranked[8:32].tolist())  # without the 8 lowest and the 8 highest losses


def test_consistency_counts_augmented_views(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    from mammoth_sbs.models import scores

    it = start("er_sbs", f"{SMALL} --stop_after 1 --sbs-score uncertainty --buffer_size 10")
    with pytest.raises(SystemExit, match="not augmented"):
        train(it.model, it.dataset, it.args)
    it = start("er_sbs", "--train_per_class 60 --n_epochs 8 --stop_after 1 --sbs-score uncertainty --n_tasks 2")
    monkeypatch.setattr(type(it.dataset), "PADDING", 3)
    (note,) = follow(it)
    assert ((note.task.speed * scores.VIEWS) % 1 == 0).all() and note.task.speed.min() >= 0.2  # of five
    assert note.task.speed.std() > 0
    # far from the decision boundary, views agree: certain examples are those of low loss
    loss = -scores.final_loss(it.model, note.data)
    assert np.corrcoef(note.task.speed, loss)[0, 1] < 0


def test_the_c_score_asks_networks_that_did_not_see_the_example(start: Start) -> None:
    it = start("er_sbs", "--train_per_class 60 --n_epochs 15 --sbs-score c-score --n_tasks 2")
    it.dataset.get_data_loaders()
    data = it.dataset.train_loader.dataset
    wrong = torch.arange(0, len(data), 10)
    data.targets[wrong] = (data.targets[wrong] + 1) % 5  # labels that cannot be guessed without having seen them
    it.dataset.c_task, it.dataset.test_loaders = -1, []
    it.model.meta_begin_task(it.dataset)
    from mammoth_sbs.models.scores import held_out_accuracy

    score = held_out_accuracy(it.model, data)
    it.model.hook.remove()
    clean = torch.ones(len(data), dtype=torch.bool)
    clean[wrong] = False
    assert score[clean].mean() > 0.7 and score[wrong].mean() < 0.3
