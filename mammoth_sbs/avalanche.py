"""Speed-Based Sampling for Avalanche: learning speed from a strategy's own training, and buffers filled by it.

    speed = SpeedPlugin()
    replay = ReplayPlugin(mem_size=500, storage_policy=SampledBuffer(500, speed))
    strategy = Naive(model=model, optimizer=optimizer, plugins=[replay, speed], train_epochs=10)

An example is known by a running number, a data attribute of the experience's data set: Avalanche carries it along when
data sets are cut and joined. A second one, its place in what is trained on, travels in the batches and is taken out
before anybody sees them, so loader, order and workers are the user's own, and so is every other part of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from mammoth_sbs.core.band import SpeedBand, nearest_first
from mammoth_sbs.core.samplers import Sampler, Task, get_sampler, sampler_names
from mammoth_sbs.core.speed import LearningSpeed
from mammoth_sbs.errors import UserError
from mammoth_sbs.packages import import_torchvision

try:
    import_torchvision()  # which Avalanche imports
    from avalanche.benchmarks.utils import AvalancheDataset
    from avalanche.benchmarks.utils.data_attribute import DataAttribute
    from avalanche.models import avalanche_forward
    from avalanche.training.plugins import SupervisedPlugin
    from avalanche.training.storage_policy import (
        BalancedExemplarsBuffer,
        ExemplarsBuffer,
        ExemplarsSelectionStrategy,
        ExperienceBalancedBuffer,
    )
except ModuleNotFoundError as e:
    raise UserError(f"mammoth_sbs.avalanche needs the package {e.name}, which is not installed; "
                    "pip install mammoth-sbs[avalanche]") from None

__all__ = ["SampledBuffer", "SpeedPlugin", "SpeedSelection"]

KNOWN = {"speed", "features", "logits", "losses"}  # of an experience's examples, for samplers
ID, PLACE = "sbs_id", "sbs_place"  # data attributes: known for good, and in what is trained on now


class SpeedPlugin(SupervisedPlugin):
    """Counts how often each example of the experience under way is classified correctly, once per epoch.

    Predictions are those of the training step's own forward pass; replayed examples do not count. `scope` is which
    classes are predicted among: those of the examples that are trained on ("task"), or all that came so far ("seen").
    It comes behind plugins that replace the data to be trained on, such as GDumb's.
    """

    def __init__(self, scope: str = "task") -> None:
        super().__init__()
        if scope not in ("task", "seen"):
            raise UserError(f"scope {scope!r}: it is task or seen")
        self.scope = scope
        self.speed = LearningSpeed(0)  # of what is trained on now or was last, in its order
        self.ids = torch.zeros(0, dtype=torch.int64)  # of the same
        self.trainings = 0  # that have been measured, also up to now
        self.known = torch.zeros(0)  # learning speed of every example so far, by id; nan before it was trained on
        self._classes = torch.zeros(0, dtype=torch.int64)  # predicted among
        self._places: Tensor | None = None  # of the batch under way
        self._stream: tuple[Tensor, Tensor] | None = None

    def of(self, data: AvalancheDataset) -> Tensor:
        """Learning speed of a data set's examples, in [0, 1]; nan where it is not known."""
        return self.known[ids_of(data)]

    # ---- the data of an experience, and its batches

    def before_train_dataset_adaptation(self, strategy: Any, **kwargs: Any) -> None:
        data = strategy.experience.dataset
        ids = range(len(self.known), len(self.known) + len(data))
        self.known = torch.cat([self.known, torch.full((len(data),), torch.nan)])
        strategy.experience._dataset = with_attribute(data, ID, list(ids))

    def after_train_dataset_adaptation(self, strategy: Any, **kwargs: Any) -> None:
        data = strategy.adapted_dataset
        self.ids = ids_of(data)
        self.speed = LearningSpeed(len(data))
        classes = labels_of(data).unique()
        self._classes = torch.cat([self._classes, classes]).unique() if self.scope == "seen" else classes
        data = with_attribute(data, PLACE, [Place(i) for i in range(len(data))], in_items=True)
        data.collate_fn = Collate(data.collate_fn)
        strategy.adapted_dataset = data

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        if PLACE not in strategy.adapted_dataset._data_attributes:
            raise UserError("SpeedPlugin: another plugin has replaced the data to be trained on; name SpeedPlugin "
                            "after it in plugins=[...], or, if the strategy puts its own last, as GDumb does, leave it "
                            "out there and say strategy.plugins.append(speed)")

    def before_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        if not isinstance(strategy.dataloader, WithoutPlaces):
            strategy.dataloader = WithoutPlaces(strategy.dataloader, self)

    def before_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
        self._stream = strategy.mb_x, strategy.mb_y  # the loader's part: others may put replay before or behind it

    # ---- counting

    def after_forward(self, strategy: Any, **kwargs: Any) -> None:
        assert self._places is not None and self._stream is not None
        (x, y), n = self._stream, len(self._places)
        if len(y) != n:
            raise UserError("SpeedPlugin: another plugin has added to the mini-batch before it; name SpeedPlugin "
                            "before it in plugins=[...]")
        first = strategy.mb_x is x or torch.equal(strategy.mb_x[:n], x)
        if not first and not torch.equal(strategy.mb_x[-n:], x):
            raise UserError("SpeedPlugin: the examples of the experience are neither the first nor the last of the "
                            "mini-batch that was forwarded, so they cannot be counted")
        output = strategy.mb_output[0] if isinstance(strategy.mb_output, tuple) else strategy.mb_output
        logits = (output[:n] if first else output[-n:]).detach()
        classes = self._classes.to(logits.device)
        correct = classes[logits[:, classes].argmax(1)] == y
        stream = (self._places >= 0).to(logits.device)
        self.speed.update(self._places.to(logits.device)[stream], correct[stream], strategy.clock.train_exp_epochs)

    def after_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        """What is known so far: buffers are filled before or after this plugin hears of the experience's end."""
        self.trainings += self.speed.epochs == 1
        self.known[self.ids] = self.speed.value

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        self._places = self._stream = None  # checkpoints are smaller without


class WithoutPlaces:
    """A loader whose batches are the user's own: the places that came with them are told to the plugin."""

    def __init__(self, loader: Any, plugin: SpeedPlugin) -> None:
        self.loader, self.plugin = loader, plugin

    def __iter__(self) -> Iterator[list]:
        for *batch, places in self.loader:
            self.plugin._places = places
            yield batch

    def __len__(self) -> int:
        return len(self.loader)


class Place(int):
    """Where an example is in what is trained on: an own type, as replayed examples of the same batch have none."""


class Collate:
    """A data set's own way to make a batch of examples, and their places behind it; -1 for replayed ones."""

    def __init__(self, inner: Callable[[list], Sequence]) -> None:
        self.inner = inner

    def __call__(self, items: list) -> list:
        places = [int(item[-1]) if isinstance(item[-1], Place) else -1 for item in items]
        batch = self.inner([item[:-1] if isinstance(item[-1], Place) else item for item in items])
        return [*batch, torch.tensor(places)]


def with_attribute(data: AvalancheDataset, name: str, values: list, in_items: bool = False) -> AvalancheDataset:
    """The same data set with a data attribute more, or another one; its items have it only if they are to."""
    attribute = DataAttribute(values, name, use_in_getitem=in_items)
    data = data.update_data_attribute(name, attribute)
    setattr(data, name, attribute)
    return data


def ids_of(data: AvalancheDataset) -> Tensor:
    """The examples' ids."""
    if not hasattr(data, ID):
        raise UserError("these examples were not numbered by a SpeedPlugin; name it in the strategy's plugins=[...], "
                        "ask about the very experience that was trained on (train_stream[i] is a new one each time), "
                        "and use no plugin that trains on examples which are of no experience")
    return torch.tensor(list(getattr(data, ID)), dtype=torch.int64)


def labels_of(data: AvalancheDataset) -> Tensor:
    return torch.tensor([int(label) for label in data.targets], dtype=torch.int64)


# ---- buffers


class SampledBuffer(ExemplarsBuffer):
    """Any of our samplers with a balanced buffer of Avalanche: which examples go in is the sampler's choice, how many
    of each experience or class, what is stored with them and which old ones leave is the buffer's.

    `policy` is Avalanche's `ExperienceBalancedBuffer` (the default, as in its `ReplayPlugin`), `ClassBalancedBuffer`,
    or DER's, which keeps logits too: `der.storage_policy = SampledBuffer(size, speed, policy=der.storage_policy)`.
    `layer` names the module whose input are the features, for samplers that need them; by default the last `nn.Linear`.
    """

    def __init__(self, max_size: int, speed: SpeedPlugin, sampler: str | Sampler = "speed",
                 policy: BalancedExemplarsBuffer | None = None, seed: int = 0, layer: str | None = None) -> None:
        self.policy = ExperienceBalancedBuffer(max_size) if policy is None else policy
        super().__init__(max_size)
        balanced = isinstance(self.policy, ExperienceBalancedBuffer) or hasattr(self.policy, "seen_classes")
        if not balanced or self.policy.max_size != max_size:
            raise UserError(f"SampledBuffer: policy is to be a buffer of Avalanche that is balanced by class or "
                            f"experience, of max_size {max_size}; for a ParametricBuffer there is SpeedSelection")
        self.speed, self.layer = speed, layer
        self.sampler = get_sampler(sampler) if isinstance(sampler, str) else sampler
        unknown = sorted(self.sampler.needs - KNOWN)
        if unknown:
            fit = [name for name in sampler_names() if get_sampler(name).needs <= KNOWN]
            raise UserError(f"SampledBuffer: the sampler {self.sampler.name} needs {', '.join(unknown)}, which is not "
                            f"known in Avalanche; take one of {', '.join(fit)}")
        self.generator = torch.Generator().manual_seed(seed)
        self.chosen = torch.zeros(0, dtype=torch.int64)  # of the last experience, places in its data set

    @property
    def buffer(self) -> AvalancheDataset:
        return self.policy.buffer

    @buffer.setter
    def buffer(self, new_buffer: AvalancheDataset) -> None:
        raise UserError("SampledBuffer: what it holds is its policy's; set it there")

    def update(self, strategy: Any, **kwargs: Any) -> None:
        """The end of an experience: the policy is handed the chosen examples in place of the experience."""
        whole = strategy.experience
        with own_randomness(self.generator):
            self.chosen = self.choose(strategy, whole.dataset)
            view = copy(whole)
            view._dataset = whole.dataset.subset(self.chosen.tolist())
            strategy.experience = view
            try:
                if type(self.policy).post_adapt is ExemplarsBuffer.post_adapt:  # DER's has the older way alone
                    self.policy.update(strategy, **kwargs)
                else:
                    self.policy.post_adapt(strategy, view)
            finally:
                strategy.experience = whole

    def post_adapt(self, agent_state: Any, exp: Any) -> None:
        if agent_state.experience is not exp:
            raise UserError("SampledBuffer: can be filled from the experience that the strategy is at, and no other")
        self.update(agent_state)

    def resize(self, strategy: Any, new_size: int) -> None:
        self.max_size = new_size
        self.policy.resize(strategy, new_size)

    def choose(self, strategy: Any, data: AvalancheDataset) -> Tensor:
        """As many as the policy has room for; places in `data`."""
        classes, labels = labels_of(data).unique(return_inverse=True)
        task = Task(labels, speed=self.speed.of(data))
        if self.sampler.needs - {"speed"}:
            task.features, task.logits = features_and_logits(strategy, data, classes, self.layer)
            task.losses = nn.functional.cross_entropy(task.logits, labels, reduction="none")
        if "speed" in self.sampler.needs and task.speed is not None and task.speed.isnan().any():
            raise UserError("SampledBuffer: it is to be filled before the experience was trained on, when learning "
                            "speed is not known; take Avalanche's ParametricBuffer with SpeedSelection")
        if isinstance(self.policy, ExperienceBalancedBuffer):
            k = self.policy.get_group_lengths(len(self.policy.buffer_groups) + 1)[-1]
            return self.sampler.choose(task, k, self.generator)
        seen = self.policy.seen_classes
        seen.update(classes.tolist())  # in place, as the policy will: it divides its room in a set's order
        room = dict(zip(seen, self.policy.get_group_lengths(len(seen)), strict=True))
        quotas = {i: room[label] for i, label in enumerate(classes.tolist())}
        return self.sampler.choose_per_class(task, quotas, self.generator)


class SpeedSelection(ExemplarsSelectionStrategy):
    """For Avalanche's `ParametricBuffer`, with any `groupby`: examples outside the band D'_t leave first, all others
    at random.

    The band is of all that was trained on together, and decided once, when learning speed is known; an example keeps
    its place in the queue afterwards. A buffer that is filled before the training (GDumb) takes new examples at random.
    """

    def __init__(self, speed: SpeedPlugin, q: float = 0.2, s: float = 0.2, seed: int = 0) -> None:
        self.speed, self.band = speed, SpeedBand(q, s)
        self.generator = torch.Generator().manual_seed(seed)
        self.queue = torch.zeros(0)  # by id: below 1 at random, above those outside the band, nearest to it first
        self.decided = 0  # trainings

    def make_sorted_indices(self, strategy: Any, data: AvalancheDataset) -> list[int]:
        new = len(self.speed.known) - len(self.queue)
        self.queue = torch.cat([self.queue, torch.rand(new, generator=self.generator)])
        if self.decided != self.speed.trainings:
            self.decided, ids = self.speed.trainings, self.speed.ids
            speed = self.speed.known[ids]
            split = self.band.split(speed, self.generator)
            again = torch.rand(len(ids), generator=self.generator)
            self.queue[ids] = torch.where(self.queue[ids] < 1, self.queue[ids], again)
            out = nearest_first(split, speed)
            self.queue[ids[out]] = 1 + torch.arange(len(out), dtype=torch.float)
        return self.queue[ids_of(data)].argsort(stable=True).tolist()


@contextmanager
def own_randomness(generator: torch.Generator) -> Iterator[None]:
    """Draws inside, Avalanche's too, come from `generator`; everybody else's go on as if nothing had happened."""
    state = torch.get_rng_state()
    torch.random.default_generator.manual_seed(int(torch.randint(2**31, (), generator=generator)))
    try:
        yield
    finally:
        torch.set_rng_state(state)


@torch.no_grad()
def features_and_logits(strategy: Any, data: AvalancheDataset, classes: Tensor, layer: str | None,
                        ) -> tuple[Tensor, Tensor]:
    """One pass without augmentation: the input of a layer, and the logits of these classes."""
    model: nn.Module = strategy.model
    modules = dict(model.named_modules())
    linear = [name for name, module in modules.items() if isinstance(module, nn.Linear)]
    layer = layer or (linear[-1] if linear else "")
    if layer not in modules or not layer:
        raise UserError(f"SampledBuffer: the model has no layer {layer or 'that is linear'}; give layer=..., the name "
                        "of the one whose input are the features")
    features: list[Tensor] = []
    logits: list[Tensor] = []
    handle = modules[layer].register_forward_pre_hook(lambda _, given: features.append(given[0].flatten(1).cpu()))
    modes = [(module, module.training) for module in modules.values()]
    model.eval()
    try:
        for x, _, *task in batches(data.eval(), strategy.eval_mb_size):
            x = x.to(strategy.device)
            out = avalanche_forward(model, x, task[-1].to(strategy.device)) if task else model(x)
            logits.append(out[:, classes.to(out.device)].float().cpu())
    finally:
        handle.remove()
        for module, training in modes:
            module.training = training
    return torch.cat(features).float(), torch.cat(logits)


def batches(data: AvalancheDataset, size: int) -> Iterable:
    """A data set's examples in their order."""
    return torch.utils.data.DataLoader(data, batch_size=size, collate_fn=data.collate_fn)
