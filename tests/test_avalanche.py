"""Avalanche's own strategies and buffers with ours: the real library, small data."""

from __future__ import annotations

import runpy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mammoth_sbs import LearningSpeed, SpeedBand, Task, UserError, get_sampler

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from mammoth_sbs.avalanche import SampledBuffer, SpeedPlugin, SpeedSelection, ids_of
    from tests.conftest import REPO

    # isort: split
    from avalanche.benchmarks.scenarios.deprecated.generators import nc_benchmark
    from avalanche.checkpointing import maybe_load_checkpoint, save_checkpoint
    from avalanche.models import MTSimpleMLP, SimpleMLP
    from avalanche.training.plugins import GDumbPlugin, ReplayPlugin, SupervisedPlugin
    from avalanche.training.storage_policy import (
        ClassBalancedBuffer,
        ExperienceBalancedBuffer,
        ParametricBuffer,
        ReservoirSamplingBuffer,
    )
    from avalanche.training.supervised import DER, GDumb, Naive

pytestmark = pytest.mark.filterwarnings("ignore")  # Avalanche warns of its own future
CLASSES, EACH, SIZE, EPOCHS = 6, 20, 24, 3


class Points(torch.utils.data.Dataset):
    """Clouds of points, a class each; no two are equal."""

    def __init__(self, seed: int) -> None:
        g = torch.Generator().manual_seed(seed)
        self.targets = torch.arange(CLASSES).repeat(EACH).tolist()
        self.x = torch.randn(CLASSES, 8, generator=torch.Generator().manual_seed(0)).repeat(EACH, 1)
        self.x = self.x + 1.2 * torch.randn(self.x.shape, generator=g)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.x[i], self.targets[i]


def benchmark(task_il: bool = False) -> Any:
    """Three experiences of two classes each, in an order of Avalanche's own."""
    return nc_benchmark(Points(1), Points(2), 3, task_labels=task_il, seed=4, class_ids_from_zero_in_each_exp=task_il)


def strategy(plugins: list, kind: type = Naive, task_il: bool = False, **more: Any) -> Any:
    torch.manual_seed(0)
    model = MTSimpleMLP(input_size=8, hidden_size=16) if task_il else SimpleMLP(CLASSES, input_size=8, hidden_size=16)
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    return kind(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), train_mb_size=8, eval_mb_size=16,
                train_epochs=EPOCHS, plugins=plugins, evaluator=None, **more)


def learn(it: Any, stream: Any, **loader: Any) -> Any:
    """Train on experiences one by one."""
    torch.manual_seed(1)
    for experience in stream:
        it.train(experience, **loader)
    return it


class Witness(SupervisedPlugin):
    """Counts by itself: it knows an example by its picture alone, and sees what any other plugin sees."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: set[int] = set()

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        data = strategy.experience.dataset
        self.place = {tuple(data[i][0].tolist()): i for i in range(len(data))}
        self.classes = sorted(set(map(int, data.targets)))
        self.right = torch.zeros(len(data), dtype=torch.int32)

    def before_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        self.seen: set[int] = set()

    def after_forward(self, strategy: Any, **kwargs: Any) -> None:
        self.fields.add(len(strategy.mbatch))
        for x, y, output in zip(strategy.mb_x, strategy.mb_y, strategy.mb_output, strict=True):
            i = self.place.get(tuple(x.tolist()))
            if i is not None and i not in self.seen:
                self.seen.add(i)
                self.right[i] += self.classes[int(output[self.classes].argmax())] == int(y)


@pytest.mark.parametrize(("kind", "task_il", "loader"), [
    (Naive, False, {"num_workers": 0}), (Naive, False, {"num_workers": 2, "shuffle": False}), (Naive, True, {}),
    (DER, False, {})])
def test_the_streams_own_examples_are_counted_whatever_the_loader(kind: type, task_il: bool, loader: dict) -> None:
    speed, witness = SpeedPlugin(), Witness()
    replay = ReplayPlugin(SIZE, storage_policy=SampledBuffer(SIZE, speed))
    more = {"mem_size": SIZE} if kind is DER else {}
    it = strategy([witness, speed] + [replay] * (kind is Naive), kind, task_il, **more)
    for experience in benchmark(task_il).train_stream:  # replay from the second on
        it.train(experience, **loader)
        assert torch.equal(speed.speed.count, witness.right) and speed.speed.epochs == EPOCHS
        assert torch.equal(speed.of(experience.dataset), witness.right / EPOCHS)
        assert 0 < witness.right.sum() < EPOCHS * len(witness.right), "a test that counts nothing"
    assert witness.fields == {3}, "others see batches as Avalanche makes them"


def test_nothing_else_of_a_run_changes() -> None:
    """Weights, buffer and random state of a strategy with a stock buffer are those without the plugin."""
    def ends(plugins: list) -> list[Tensor]:
        policy = ExperienceBalancedBuffer(SIZE)
        it = learn(strategy([ReplayPlugin(SIZE, storage_policy=policy), *plugins]), benchmark().train_stream)
        stored = torch.stack([policy.buffer[i][0] for i in range(len(policy.buffer))])
        return [*it.model.state_dict().values(), stored, torch.get_rng_state()]

    assert all(torch.equal(a, b) for a, b in zip(ends([]), ends([SpeedPlugin()]), strict=True))


def first_choice(sampler: str, it: Any, speed: LearningSpeed, data: Any, quotas: list[int] | None) -> Tensor:
    """What the core gives for the same counts."""
    generator = torch.Generator().manual_seed(7)
    torch.randint(2**31, (), generator=generator)  # that Avalanche's own draws come from
    classes, labels = torch.tensor(list(data.targets)).unique(return_inverse=True)
    task = Task(labels, speed=speed.value)
    with torch.no_grad():
        x = torch.stack([data[i][0] for i in range(len(data))])
        task.features = it.model.features(x)
        task.logits = it.model(x)[:, classes]
    if quotas is None:
        return get_sampler(sampler).choose(task, SIZE, generator)
    return get_sampler(sampler).choose_per_class(task, dict(enumerate(quotas)), generator)


@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("sampler", ["speed", "uniform", "max-entropy", "herding"])
def test_stored_are_those_that_the_core_gives_for_the_same_counts(sampler: str, by_class: bool) -> None:
    speed = SpeedPlugin()
    policy = ClassBalancedBuffer(SIZE) if by_class else ExperienceBalancedBuffer(SIZE)
    buffer = SampledBuffer(SIZE, speed, sampler, policy, seed=7)
    it = strategy([ReplayPlugin(SIZE, storage_policy=buffer), speed])
    stream = benchmark().train_stream
    learn(it, stream[:1])
    expected = first_choice(sampler, it, speed.speed, stream[0].dataset, [SIZE // 2, SIZE // 2] if by_class else None)
    assert torch.equal(buffer.chosen, expected) and len(expected) == SIZE
    assert sorted(ids_of(buffer.buffer).tolist()) == sorted(expected.tolist())  # the first experience's ids are places
    learn(it, stream[1:])
    groups = ids_of(buffer.buffer) // (2 * EACH) if not by_class else torch.tensor(list(buffer.buffer.targets))
    shares = groups.unique(return_counts=True)[1].tolist()
    assert shares == ([SIZE // CLASSES] * CLASSES if by_class else [SIZE // 3] * 3)
    assert set(ids_of(buffer.buffer)[groups == 0].tolist()) <= set(expected.tolist()) or by_class


def test_der_stores_logits_of_the_chosen() -> None:
    speed = SpeedPlugin()
    it = strategy([speed], DER, mem_size=SIZE)
    it.storage_policy = buffer = SampledBuffer(SIZE, speed, policy=it.storage_policy)
    stream = benchmark().train_stream
    learn(it, stream[:1])
    assert sorted(ids_of(buffer.buffer).tolist()) == sorted(buffer.chosen.tolist())
    for x, _, _, logits in (buffer.buffer[i] for i in range(SIZE)):
        assert torch.allclose(it.model(x[None])[0], logits, atol=1e-5)
    learn(it, stream[1:])
    assert len(buffer.buffer) == SIZE


def band(speed: SpeedPlugin) -> set[int]:
    """Ids that are in the band whichever way ties are broken, or on its edge."""
    low, high = SpeedBand(0.3, 0.3).limits(speed.speed.value)
    return {int(i) for i, value in zip(speed.ids, speed.speed.value, strict=True) if low <= value <= high}


@pytest.mark.parametrize("groupby", [None, "class", "experience"])
def test_selection_for_parametric_buffers(groupby: str | None) -> None:
    """Out of the band first, then at random; who stays when a group shrinks was there before."""
    speed = SpeedPlugin()
    policy = ParametricBuffer(15, groupby, SpeedSelection(speed, 0.3, 0.3))
    it, before, kept = strategy([ReplayPlugin(15, storage_policy=policy), speed]), set(), set()
    for experience in benchmark().train_stream:
        learn(it, [experience])
        kept |= band(speed)
        stored = set(ids_of(policy.buffer).tolist())
        assert len(stored) == 15 and (stored <= kept or groupby == "class")  # a class may have fewer in the band
        assert stored - set(speed.ids.tolist()) <= before
        before = stored


def test_gdumb_keeps_the_band_of_what_it_was_trained_on() -> None:
    speed, plugin = SpeedPlugin(), GDumbPlugin(SIZE)
    plugin.storage_policy = ParametricBuffer(SIZE, "class", SpeedSelection(speed, 0.3, 0.3))
    it = strategy([plugin, speed])
    stream = benchmark().train_stream
    learn(it, stream[:1])
    assert torch.equal(speed.ids.sort().values, ids_of(plugin.storage_policy.buffer).sort().values)
    inside, first = band(speed), set(speed.ids.tolist())
    learn(it, stream[1:2])
    stay = set(ids_of(plugin.storage_policy.buffer).tolist()) & first
    assert len(stay) == SIZE // 2 and len(stay & inside) >= len(stay & first) - 2  # a class may lack one or two
    assert not speed.of(plugin.storage_policy.buffer).isnan().any()


def test_avalanches_own_gdumb_takes_the_plugin_later() -> None:
    """Its plugin comes behind those that it is given."""
    speed = SpeedPlugin()
    it = strategy([], GDumb, mem_size=SIZE, criterion=nn.CrossEntropyLoss())
    it.plugins.append(speed)
    learn(it, benchmark().train_stream[:2])
    assert len(speed.ids) == SIZE and not speed.known[speed.ids].isnan().any()
    with pytest.raises(UserError, match="as GDumb does"):
        it = strategy([SpeedPlugin()], GDumb, mem_size=SIZE, criterion=nn.CrossEntropyLoss())
        learn(it, benchmark().train_stream[:1])


def test_a_run_goes_on_from_avalanches_checkpoint(tmp_path: Path) -> None:
    def fresh() -> tuple[Any, SampledBuffer]:
        speed = SpeedPlugin()
        buffer = SampledBuffer(SIZE, speed)
        return strategy([ReplayPlugin(SIZE, storage_policy=buffer), speed]), buffer

    (whole, buffer), (part, _) = fresh(), fresh()
    learn(whole, benchmark().train_stream[:2])
    torch.manual_seed(5)
    whole.train(benchmark().train_stream[2])
    learn(part, benchmark().train_stream[:2])
    save_checkpoint(part, str(tmp_path / "run.pt"), exclude=["optimizer", "optimized_param_id"])  # SGD has no state
    again, n = maybe_load_checkpoint(fresh()[0], str(tmp_path / "run.pt"))
    assert n == 2
    torch.manual_seed(5)
    again.train(benchmark().train_stream[n])
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), again.model.parameters(), strict=True))
    policy = again.plugins[0].storage_policy
    assert policy.speed is again.plugins[1], "the plugin and the buffer's are one"
    assert ids_of(policy.buffer).tolist() == ids_of(buffer.buffer).tolist()


def test_mistakes_end_in_one_line() -> None:
    stream, speed = benchmark().train_stream, SpeedPlugin()
    with pytest.raises(UserError, match=r"not numbered by a SpeedPlugin; name it in the strategy's plugins"):
        learn(strategy([ReplayPlugin(SIZE, storage_policy=SampledBuffer(SIZE, speed))]), stream[:1])
    with pytest.raises(UserError, match="name SpeedPlugin after it.* strategy.plugins.append"):
        learn(strategy([speed, GDumbPlugin(SIZE)]), stream[:1])
    plugin = GDumbPlugin(SIZE)
    plugin.storage_policy = SampledBuffer(SIZE, speed, policy=ClassBalancedBuffer(SIZE))
    with pytest.raises(UserError, match="before the experience was trained on.*ParametricBuffer with SpeedSelection"):
        learn(strategy([plugin, speed]), stream[:1])
    for policy in (ReservoirSamplingBuffer(SIZE), ClassBalancedBuffer(SIZE + 1), ParametricBuffer(SIZE)):
        with pytest.raises(UserError, match=f"balanced by class or experience, of max_size {SIZE}"):
            SampledBuffer(SIZE, speed, policy=policy)
    with pytest.raises(UserError, match="no layer nowhere; give layer="):
        buffer = SampledBuffer(SIZE, speed, "herding", layer="nowhere")
        learn(strategy([ReplayPlugin(SIZE, storage_policy=buffer), speed]), stream[:1])
    with pytest.raises(UserError, match="sampler rainbow needs uncertainty, .*; take one of speed, uniform, .*gss"):
        SampledBuffer(SIZE, speed, "rainbow")
    experience = stream[0]
    learn(strategy([speed]), [experience])
    assert not speed.of(experience.dataset).isnan().any()
    with pytest.raises(UserError, match="the very experience that was trained on"):
        speed.of(stream[0].dataset)
    with pytest.raises(UserError, match="scope 'all'"):
        SpeedPlugin("all")


def test_the_example_prints_what_the_documentation_shows(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings(record=True) as warned:
        runpy.run_path(str(REPO / "examples" / "avalanche_replay.py"), run_name="__main__")
    assert not warned, "nothing else is on the screen"
    printed = capsys.readouterr().out
    shown = (REPO / "docs" / "avalanche.md").read_text(encoding="utf-8")
    for line in printed.splitlines():  # numbers may differ in their last digit between machines
        words = line.split()
        assert any(shown_line.split()[:4] == words[:4] for shown_line in shown.splitlines()), line
    assert len(printed.splitlines()) >= 6
