"""SBS in the eight methods: the hook counts right, and nothing but the buffer changes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.conftest import STOCK, Start
from tests.models.conftest import EACH_STEP, SMALL, follow

from models.rpc import polytope
from utils.training import train

CONV = f"{SMALL} --backbone tiny-resnet18 --num_filters 4"


@pytest.mark.parametrize("scope", ["task", "seen"])
@pytest.mark.parametrize("name", STOCK)
def test_counts_equal_those_of_a_second_forward_pass(start: Start, name: str, scope: str) -> None:
    tasks = "--n_tasks 2" if name == "rpc" else "--stop_after 3"  # its head tells the last class apart
    it = start(f"{name}_sbs", f"{SMALL} {tasks} --sbs-scope {scope} --buffer_size 40")
    model, observe, counts = it.model, it.model.observe, {}

    def observe_twice(inputs, labels, not_aug_inputs, epoch=None, sbs_index=None) -> float:  # noqa: ANN001
        with torch.no_grad():
            outputs = model.net(inputs)  # at the same moment: the weights of this step
            if name == "rpc":  # predicts by its fixed head
                outputs = outputs[:, :-1] @ polytope(10)
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


def test_the_same_command_gives_the_same_run_and_another_seed_another(run: Callable[..., dict]) -> None:
    a, b, c = (run("derpp_sbs", f"{SMALL} --seed {seed}") for seed in (3, 3, 4))
    assert a["results"] == b["results"] and a["sbs"] == b["sbs"]
    assert torch.equal(a["model"].buffer.examples, b["model"].buffer.examples)
    assert not torch.equal(a["model"].buffer.examples, c["model"].buffer.examples)
