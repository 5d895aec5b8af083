"""Stream samplers in ER, DER and DER++: they see every example and every replay, and change nothing but the buffer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from mammoth_sbs.core.streams import STREAM_SAMPLERS
from mammoth_sbs.errors import UserError
from tests.conftest import Start
from tests.models.conftest import EACH_STEP

from utils.training import train

ONCE = "--train_per_class 20 --n_epochs 1 --batch_size 8 --buffer_size 20"
CONV = f"{ONCE} --backbone tiny-resnet18 --num_filters 4"


def state(model: torch.nn.Module) -> list[torch.Tensor]:
    return [*model.net.state_dict().values(), *model.buffer.get_all_data()]


@pytest.mark.parametrize("flags", ["--sampler stream-reservoir", "--sampler stream-speed --sbs-q 0 --sbs-s 0"])
@pytest.mark.parametrize("name", EACH_STEP)
def test_a_reservoir_gives_the_stock_methods_numbers_bit_for_bit(start: Start, name: str, flags: str) -> None:
    found = []
    for model, more in ((name, ""), (f"{name}_sbs", flags)):
        it = start(model, f"{CONV} --stop_after 2 {more}")
        train(it.model, it.dataset, it.args)
        found.append((state(it.model), torch.get_rng_state(), np.random.get_state()[1]))
    (stock, torch_stock, numpy_stock), (ours, torch_ours, numpy_ours) = found
    assert all(torch.equal(a, b) for a, b in zip(stock, ours, strict=True))
    assert torch.equal(torch_stock, torch_ours) and (numpy_stock == numpy_ours).all()


@pytest.mark.parametrize("name", EACH_STEP)
def test_the_sampler_is_shown_the_stream_and_every_replay_as_the_step_saw_them(start: Start, name: str) -> None:
    """Against a second forward pass at the same moment; what is in a slot is what the sampler thinks is there."""
    it = start(f"{name}_sbs", f"{ONCE} --sampler stream-speed --stop_after 2")
    model, sampler, shown = it.model, it.model.feed.sampler, []
    offer, replayed, net, get_data = sampler.offer, sampler.replayed, model.net, type(model.buffer).get_data
    drawn: list[torch.Tensor] = []

    def outputs(inputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return type(net).forward(net, inputs)

    def note(*args, **kwargs):  # noqa: ANN002, ANN003, ANN202
        found = get_data(*args, **kwargs)
        drawn.append(outputs(found[1]))
        return found

    def replayed_checked(slots, look) -> None:  # noqa: ANN001
        assert torch.allclose(look.logits, drawn.pop(0), atol=1e-5)
        assert look.labels.tolist() == sampler.labels[slots].tolist()
        shown.append(len(slots))
        replayed(slots, look)

    def offer_checked(look, generator):  # noqa: ANN001, ANN202
        assert torch.allclose(look.logits, stream, atol=1e-5) and not drawn
        return offer(look, generator)

    observe = model.observe

    def observe_checked(inputs, labels, *rest, **fields) -> float:  # noqa: ANN001, ANN002, ANN003
        nonlocal stream
        stream = outputs(inputs)
        return observe(inputs, labels, *rest, **fields)

    stream = torch.empty(0)
    sampler.offer, sampler.replayed, model.observe = offer_checked, replayed_checked, observe_checked
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(model.buffer), "get_data", note)
        train(model, it.dataset, it.args)
    steps = 2 * 5  # of 40 images in batches of 8
    assert len(shown) == (steps - 1) * (2 if name == "derpp" else 1) and not net._forward_hooks
    if hasattr(model.buffer, "labels"):
        assert model.buffer.labels.tolist() == sampler.labels.tolist()


@pytest.mark.parametrize("sampler", STREAM_SAMPLERS)
def test_the_images_in_the_buffer_are_those_of_the_samplers_labels(start: Start, sampler: str) -> None:
    """DER stores no labels: found again by the picture, whoever moved from slot to slot."""
    it = start("der_sbs", f"{ONCE} --sampler {sampler}")
    train(it.model, it.dataset, it.args)
    source = it.dataset.source.train
    label = {image.tobytes(): int(c) for image, c in zip(np.asarray(source.images), source.labels, strict=True)}
    pictures = (it.model.buffer.examples * 255).round().to(torch.uint8).numpy()
    assert [label[picture.tobytes()] for picture in pictures] == it.model.feed.sampler.labels.tolist()
    assert len({picture.tobytes() for picture in pictures}) == 20


@pytest.mark.parametrize("flags", ["--sampler stream-speed --sbs-band both", "--sampler stream-cbrs --eval_steps 3"])
def test_a_stream_that_is_stopped_and_resumed_ends_as_one_that_was_not(run: Callable, flags: str) -> None:
    whole = run("derpp_sbs", f"{ONCE} {flags}")
    run("derpp_sbs", f"{ONCE} {flags} --stop_after 2 --savecheck last --ckpt_name half")
    half = run("derpp_sbs", f"{ONCE} {flags} --loadcheck {whole['path'].parents[4] / 'half_last.pt'}")
    assert whole["results"] == half["results"]
    assert all(torch.equal(a, b) for a, b in zip(state(whole["model"]), state(half["model"]), strict=True))


@pytest.mark.parametrize("model, flags, said", [
    ("er_sbs", "--sampler stream-speed --sbs-q auto", "a stream has no task's end"),
    ("er_sbs", "--sampler stream-speed --sbs-q .5 --sbs-s .5", "at most 0.95"),
    ("er_sbs", "--sampler stream-speed --shared_first_task x.pt", "--shared_first_task: .* leave it out"),
    ("er_sbs", "--blurry .1", "--blurry: .* take one of stream-reservoir"),
    ("gem_sbs", "--sampler stream-speed", "methods that insert at every step"),
])
def test_what_a_stream_cannot_have_is_said_in_one_line(start: Start, model: str, flags: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        start(model, f"{ONCE} {flags}")


def test_flags_that_change_nothing_are_named(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    start("er_sbs", f"{ONCE} --sampler stream-lars --sbs-s .4 --sbs-near 3")
    assert "--sbs-near, --sbs-s changes nothing with --sampler stream-lars" in "".join(capfd.readouterr())
