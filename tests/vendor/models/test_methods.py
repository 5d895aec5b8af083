"""One step of each method against a slow reference written from its paper and Mammoth's behaviour.

The references use plain autograd, explicit loops and a hand-written SGD update on a copy of the network.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

LR, CPT, BUFFER, BATCH, MINI = 0.05, 2, 14, 8, 6
STEP = (f"--backbone tiny-resnet18 --num_filters 4 --lr {LR} --buffer_size {BUFFER} --batch_size {BATCH} "
        f"--minibatch_size {MINI} --train_per_class 12 --n_epochs 1")


def at_task(it: SimpleNamespace, task: int) -> None:
    """Bring model and data set to the beginning of a task without training on those before."""
    for _ in range(task + 1):
        it.dataset.get_data_loaders()
    it.model._current_task = task
    it.model.net.train()
    it.model.meta_begin_task(it.dataset)


def fill(it: SimpleNamespace, *extra: str, tasks: int = 1) -> None:
    """A full buffer of random images of earlier tasks, in the fields that the method stores."""
    g = torch.Generator().manual_seed(3)
    labels = torch.randint(CPT * tasks, (BUFFER,), generator=g)
    labels[: CPT * tasks] = torch.arange(CPT * tasks)
    fields = {"labels": labels, "logits": 2 * torch.randn(BUFFER, 10, generator=g), "task_labels": labels // CPT}
    images = torch.rand(BUFFER, 1, 8, 8, generator=g)
    it.model.buffer.add_data(examples=images, **{name: fields[name] for name in extra})


def batch(it: SimpleNamespace) -> tuple[Tensor, Tensor, Tensor]:
    return next(iter(it.dataset.train_loader))[:3]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The slots that successive draws from the buffer give: the second shares two with the first."""
    draws = [[3, 11, 0, 7, 5, 13], [1, 7, 9, 3, 2, 12], [4, 10, 8, 6]]
    left = iter(draws)

    def choice(n: int, size: int, replace: bool) -> np.ndarray:
        assert n == BUFFER and not replace
        if size == BUFFER:  # GEM takes all
            return np.arange(BUFFER)
        row = next(left)
        assert size == len(row)
        return np.array(row)

    monkeypatch.setattr(np.random, "choice", choice)
    return [torch.tensor(row) for row in draws]


class Reference:
    """A copy of the model's network and buffer, and an SGD step written out."""

    def __init__(self, it: SimpleNamespace) -> None:
        self.net = copy.deepcopy(it.model.net)
        self.buffer = {name: getattr(it.model.buffer, name).clone() for name in it.model.buffer.used_attributes}
        mean, std = it.dataset.MEAN[0], it.dataset.STD[0]
        self.normalize = lambda x: (x - mean) / std
        self.args, self.t = it.args, it.model.current_task

    def images(self, slots: Tensor) -> Tensor:
        return self.normalize(self.buffer["examples"][slots])

    def unnoticed(self, x: Tensor) -> Tensor:
        """A forward pass with batch statistics after which the running ones are as before."""
        kept = [b.clone() for b in self.net.buffers()]
        out = self.net(x)
        for b, old in zip(self.net.buffers(), kept, strict=True):
            b.data = old
        return out

    def grads(self, loss: Tensor) -> list[Tensor]:
        for p in self.net.parameters():
            p.grad = None
        loss.backward(retain_graph=True)
        return [p.grad.clone() for p in self.net.parameters()]

    def update(self, grads: list[Tensor]) -> None:
        with torch.no_grad():
            for p, g in zip(self.net.parameters(), grads, strict=True):
                p -= LR * g

    def descend(self, loss: Tensor) -> float:
        self.update(self.grads(loss))
        return float(loss.detach())


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Minus the mean log-probability of the true class, one example at a time."""
    total = logits.new_zeros(())
    for row, label in zip(logits, labels, strict=True):
        total = total - (row[label] - torch.logsumexp(row, 0))
    return total / len(labels)


def mean_square(a: Tensor, b: Tensor) -> Tensor:
    return sum(((x - y) ** 2).sum() for x, y in zip(a, b, strict=True)) / a.numel()  # type: ignore[return-value]


def check(it: SimpleNamespace, reference: Reference, loss: float, expected: float) -> None:
    """Same loss and, after the step, the same weights and batch statistics, to 1e-4 relative."""
    assert loss == pytest.approx(expected, rel=1e-4)
    moved = 0.0
    expected_state = reference.net.state_dict()
    for name, ours in it.model.net.state_dict().items():
        theirs = expected_state[name]
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")
        moved += float((ours - it.before[name]).abs().sum())
    assert moved > 0.01  # the step did something, so that equality says something


@pytest.fixture
def ready(start: Callable[..., SimpleNamespace]) -> Callable[..., SimpleNamespace]:
    """A model at the beginning of a later task, its buffer full."""

    def ready(model: str, *fields: str, flags: str = "", task: int = 1, tasks: int = 1) -> SimpleNamespace:
        it = start(model, f"{STEP} {flags}")
        at_task(it, task)
        fill(it, *fields, tasks=tasks)
        it.before = copy.deepcopy(it.model.net.state_dict())
        return it

    return ready


# ---- ER, DER, DER++, RPC, FDR


def test_er_step(ready: Callable, drawn: list[Tensor]) -> None:
    it = ready("er", "labels")
    ref, (x, y, raw) = Reference(it), batch(it)
    logits = ref.net(torch.cat([x, ref.images(drawn[0])]))  # one pass: batch norm sees both together
    expected = ref.descend(cross_entropy(logits, torch.cat([y, ref.buffer["labels"][drawn[0]]])))
    check(it, ref, it.model.observe(x, y, raw), expected)


def test_der_step(ready: Callable, drawn: list[Tensor]) -> None:
    it = ready("der", "logits")
    ref, (x, y, raw) = Reference(it), batch(it)
    loss = cross_entropy(ref.net(x), y)
    loss = loss + 0.3 * mean_square(ref.net(ref.images(drawn[0])), ref.buffer["logits"][drawn[0]])
    check(it, ref, it.model.observe(x, y, raw), ref.descend(loss))


def test_derpp_step(ready: Callable, drawn: list[Tensor]) -> None:
    it = ready("derpp", "labels", "logits")
    ref, (x, y, raw) = Reference(it), batch(it)
    loss = cross_entropy(ref.net(x), y)
    loss = loss + 0.2 * mean_square(ref.net(ref.images(drawn[0])), ref.buffer["logits"][drawn[0]])
    loss = loss + 0.5 * cross_entropy(ref.net(ref.images(drawn[1])), ref.buffer["labels"][drawn[1]])
    check(it, ref, it.model.observe(x, y, raw), ref.descend(loss))


@pytest.mark.parametrize("model, fields", [("er", ["labels"]), ("der", ["logits"]), ("derpp", ["labels", "logits"])])
def test_what_a_step_puts_into_the_buffer(
        model: str, fields: list[str], ready: Callable, drawn: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Images neither augmented nor normalised, labels, and the outputs that the step itself had before its update."""
    it = ready(model, *fields)
    ref, (x, y, raw) = Reference(it), batch(it)
    expected = {"examples": raw, "labels": y, "logits": ref.net(x).detach()}
    monkeypatch.setattr(np.random, "randint", lambda low, high: np.arange(BATCH))  # the reservoir's slots
    it.model.observe(x, y, raw)
    assert it.model.buffer.used_attributes == ["examples", *fields]
    for name in it.model.buffer.used_attributes:
        torch.testing.assert_close(getattr(it.model.buffer, name)[:BATCH], expected[name])
    assert it.model.buffer.num_seen_examples == BUFFER + BATCH


@pytest.mark.parametrize("as_paper", [0, 1])
def test_rpc_step(ready: Callable, drawn: list[Tensor], as_paper: int) -> None:
    """Stock Mammoth trains the plain logits; the paper trains through the fixed polytope."""
    it = ready("rpc", "labels", flags=f"--as_paper {as_paper}")
    ref, (x, y, raw) = Reference(it), batch(it)
    logits = ref.net(torch.cat([x, ref.images(drawn[0])]))
    if as_paper:
        logits = torch.stack([row[:9] @ it.model.rpchead for row in logits])
    expected = ref.descend(cross_entropy(logits, torch.cat([y, ref.buffer["labels"][drawn[0]]])))
    check(it, ref, it.model.observe(x, y, raw), expected)


@pytest.mark.parametrize("as_paper", [0, 1])
def test_fdr_step(ready: Callable, drawn: list[Tensor], as_paper: int) -> None:
    """Two updates; in stock Mammoth alpha has no effect, with `--as_paper 1` it weighs the second."""
    it = ready("fdr", "logits", "task_labels", flags=f"--alpha 0.4 --as_paper {as_paper}")
    ref, (x, y, raw) = Reference(it), batch(it)
    ref.descend(cross_entropy(ref.net(x), y))
    now, then = ref.net(ref.images(drawn[0])), ref.buffer["logits"][drawn[0]]
    distances = [((a.exp() / a.exp().sum() - b.exp() / b.exp().sum()) ** 2).sum().sqrt()
                 for a, b in zip(now, then, strict=True)]
    expected = ref.descend((0.4 if as_paper else 1) * sum(distances) / MINI)
    check(it, ref, it.model.observe(x, y, raw), expected)


# ---- GEM and A-GEM


def flat(grads: list[Tensor]) -> np.ndarray:
    return torch.cat([g.flatten() for g in grads]).double().numpy()


def nearest_in_cone(g: np.ndarray, memories: np.ndarray, margin: float, eps: float) -> np.ndarray:
    """GEM's dual program by trying every set of active bounds: min v'(MM' + eps)v/2 + (Mg)'v with v >= margin."""
    n = len(memories)
    gram, linear = memories @ memories.T + eps * np.eye(n), memories @ g
    best, best_value = None, math.inf
    for bound in itertools.product([True, False], repeat=n):
        free = ~np.array(bound)
        v = np.full(n, margin)
        if free.any():
            v[free] = np.linalg.solve(gram[np.ix_(free, free)], -linear[free] - gram[np.ix_(free, ~free)] @ v[~free])
        value = v @ gram @ v / 2 + linear @ v
        if (v >= margin - 1e-12).all() and value < best_value:
            best, best_value = v, value
    assert best is not None
    return g + best @ memories


@pytest.mark.parametrize("gamma", [0.5, 0.0])
def test_gem_step(ready: Callable, drawn: list[Tensor], gamma: float) -> None:
    """Third task: one constraint per old task, from all that the buffer holds of it."""
    it = ready("gem", "labels", "task_labels", task=2, tasks=2, flags=f"--gamma {gamma}")
    ref, (x, y, raw) = Reference(it), batch(it)
    memories = []
    for t in (0, 1):
        rows = torch.tensor([i for i in range(BUFFER) if ref.buffer["task_labels"][i] == t])
        memories.append(flat(ref.grads(cross_entropy(ref.net(ref.images(rows)), ref.buffer["labels"][rows]))))
    loss = cross_entropy(ref.net(x), y)
    g = flat(ref.grads(loss))
    assert min(m @ g for m in memories) < 0  # the constraint is at work
    projected = torch.from_numpy(nearest_in_cone(g, np.stack(memories), gamma, 1e-3)).float()
    parts = projected.split([p.numel() for p in ref.net.parameters()])
    ref.update([part.view_as(p) for part, p in zip(parts, ref.net.parameters(), strict=True)])
    check(it, ref, it.model.observe(x, y, raw), float(loss.detach()))


def test_gem_leaves_a_gradient_that_hurts_no_task(start: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    memories, g = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([2.0, 0.0, 5.0])
    assert observed_gradient(start("gem", STEP), monkeypatch, "gem", [*memories, g]).tolist() == g.tolist()


def observed_gradient(it: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, module: str, given: list[Tensor]) -> Tensor:
    """What the optimiser gets if the method's backward passes gave these gradients, padded to the network's size."""
    at_task(it, len(given) - 1)
    tasks = torch.arange(BUFFER) % (len(given) - 1)
    it.model.buffer.add_data(examples=torch.rand(BUFFER, 1, 8, 8), labels=tasks * CPT,
                             **({"task_labels": tasks} if module == "gem" else {}))
    size = sum(p.numel() for p in it.model.net.parameters())
    left = iter(given if module == "gem" else given[::-1])  # GEM asks for the memories first, A-GEM for the stream
    monkeypatch.setattr(f"models.{module}.gradient", lambda net, loss: F.pad(next(left), (0, size - len(given[0]))))
    monkeypatch.setattr(it.model.opt, "step", lambda: None)
    it.model.observe(*batch(it))
    return it.model.net.get_grads()[: len(given[0])]


AWKWARD = {
    "opposite": ([[1, 0, 0], [0, 1, 0]], [-1, 0, 0]),
    "parallel": ([[1, 2, 3], [2, 4, 6]], [-1, 1, -1]),
    "equal": ([[1, 2, 3], [1, 2, 3]], [-1, -2, -3]),
    "zero memory": ([[0, 0, 0], [1, 1, 0]], [-1, 0, 1]),
    "zero stream": ([[1, 0, 0], [0, 1, 0]], [0, 0, 0]),
    "all zero": ([[0, 0, 0], [0, 0, 0]], [0, 0, 0]),
    "huge": ([[1e22, 0, 0], [0, 3e22, 1e22]], [-1e22, -2e22, 1e22]),
    "huge and parallel": ([[1e22, 2e22, 3e22], [2e22, 4e22, 6e22]], [-1e22, 1e22, -1e22]),
    "huge beside tiny": ([[1e22, 0, 0], [0, 1e-22, 0]], [-1e22, -1e-22, 1.0]),
    "tiny": ([[1e-22, 0, 0], [0, 3e-22, 1e-22]], [-1e-22, -2e-22, 1e-22]),
    "contradicting": ([[1, 0, 0], [-1, 0, 0]], [1, 1, 0]),
}


@pytest.mark.parametrize("case", AWKWARD)
def test_gem_survives_awkward_gradients_and_keeps_its_constraints(
        case: str, start: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    memories, g = (torch.tensor(v, dtype=torch.float32) for v in AWKWARD[case])
    out = observed_gradient(start("gem", f"{STEP} --gamma 0.5"), monkeypatch, "gem", [*memories, g])
    assert torch.isfinite(out).all()
    out, memories = out.double(), memories.double()
    lengths = memories.norm(dim=1) * out.norm()
    assert (memories @ out >= -5e-3 - 1e-5 * lengths).all()  # 5e-3: GEM's own regularisation, 1e-3 times v


@pytest.mark.parametrize("seed", range(5))
def test_gem_projection_is_the_nearest_gradient_that_hurts_no_task(seed: int) -> None:
    from models.gem import project_to_cone

    rng = np.random.default_rng(seed)
    memories, g = rng.normal(size=(4, 7)), rng.normal(size=7)
    for margin in (0.0, 0.5):
        out = project_to_cone(torch.from_numpy(g), torch.from_numpy(memories), margin).numpy()
        np.testing.assert_allclose(out, nearest_in_cone(g, memories, margin, 1e-3), rtol=1e-6, atol=1e-9)
    assert (memories @ project_to_cone(torch.from_numpy(g), torch.from_numpy(memories), 0.0).numpy() > -5e-3).all()


def test_gem_hands_gradients_that_are_not_numbers_on() -> None:
    from models.gem import project_to_cone

    for bad in (float("nan"), float("inf")):
        memories = torch.tensor([[1.0, bad], [0.0, 1.0]])
        assert project_to_cone(torch.tensor([-1.0, 1.0]), memories, 0.5).isnan().all()


def test_agem_step(ready: Callable, drawn: list[Tensor]) -> None:
    it = ready("agem", "labels")
    ref, (x, y, raw) = Reference(it), batch(it)
    loss = cross_entropy(ref.net(x), y)
    g = flat(ref.grads(loss))
    old = flat(ref.grads(cross_entropy(ref.net(ref.images(drawn[0])), ref.buffer["labels"][drawn[0]])))
    assert g @ old < 0  # the constraint is at work
    projected = torch.from_numpy(g - (g @ old) / (old @ old) * old).float()
    parts = projected.split([p.numel() for p in ref.net.parameters()])
    ref.update([part.view_as(p) for part, p in zip(parts, ref.net.parameters(), strict=True)])
    check(it, ref, it.model.observe(x, y, raw), float(loss.detach()))


@pytest.mark.parametrize("case", AWKWARD)
def test_agem_survives_awkward_gradients_and_keeps_its_constraint(
        case: str, start: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    memories, g = (torch.tensor(v, dtype=torch.float32) for v in AWKWARD[case])
    for memory in memories:
        out = observed_gradient(start("agem", STEP), monkeypatch, "agem", [memory, g])
        assert torch.isfinite(out).all()
        overlap = memory.double() @ g.double()
        expected = g.double() - min(float(overlap), 0) / float(memory.double() @ memory.double() or 1) * memory.double()
        torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5 * float(g.abs().max()))


# ---- X-DER


def gradient_of_views(x: Tensor) -> Tensor:
    """In place of X-DER's random augmentation: every view of an image is a different, fixed change of it."""
    return x.flip(-1) * torch.linspace(0.5, 1.5, len(x))[:, None, None, None] - 0.3


def contrast(views: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Supervised contrastive loss of one head, anchor by anchor; `views` is (images, views, dim)."""
    images, n_views, _ = views.shape
    z = [(i, v, views[i, v] / views[i, v].norm()) for i in range(images) for v in range(n_views)]
    total = views.new_zeros(())
    for i, v, anchor in z:
        others = [(j, other) for j, w, other in z if (j, w) != (i, v)]
        normaliser = torch.stack([(anchor @ other / temperature).exp() for _, other in others]).sum()
        positive = [other for j, other in others if labels[j] == labels[i]]
        total = total - sum((anchor @ p / temperature).exp().div(normaliser).log() for p in positive) / len(positive)
    return total / len(z)


def gram_distance(a: Tensor, b: Tensor) -> Tensor:
    """Similarity-preserving loss: rows of the Gram matrices, scaled to unit sum of absolute values."""
    total = a.new_zeros(())
    for i in range(len(a)):
        rows = [torch.stack([z[i] @ z[j] for j in range(len(z))]) for z in (a, b)]
        total = total + ((rows[0] / rows[0].abs().sum() - rows[1] / rows[1].abs().sum()) ** 2).sum()
    return total / len(a) ** 2


def capped(fresh: Tensor, truth: Tensor, gamma: float) -> Tensor:
    """New logits of one example, scaled down if their largest would pass the true class's."""
    return fresh * (gamma * truth / fresh.max()) if fresh.max() > truth else fresh


def hinge(pairs: list[tuple[Tensor, Tensor]], margin: float) -> Tensor:
    violations = [bad + margin - good for bad, good in pairs if bad + margin - good > 0]
    assert violations  # else the constraint would not be tested
    return torch.stack(violations).mean()


def xder_reference(it: SimpleNamespace, x: Tensor, y: Tensor, raw: Tensor, drawn: list[Tensor],
                   luck: list[float]) -> tuple[Reference, float]:
    """X-DER's step: all its losses, and the update of stored logits that happens on the way."""
    ref = Reference(it)
    args, t, stored = ref.args, ref.t, ref.buffer
    first, end = t * CPT, (t + 1) * CPT
    quiet = ref.unnoticed if args.align_bn else ref.net
    outputs = quiet(x)
    loss = cross_entropy(outputs[:, first:end], y - first)

    one, two = drawn[:2]
    mixed = torch.cat([ref.images(one), x[: MINI // t]]) if args.align_bn else ref.images(one)
    out_one = ref.net(mixed)[:MINI]  # the one pass that running statistics learn from
    loss = loss + args.alpha * mean_square(out_one, stored["logits"][one])
    out_two = quiet(ref.images(two))
    loss = loss + args.beta * cross_entropy(out_two[:, :first], stored["labels"][two])

    replayed = {}
    for slot, out in [*zip(one.tolist(), out_one, strict=True), *zip(two.tolist(), out_two, strict=True)]:
        replayed.setdefault(slot, out)
    logits_after = stored["logits"].clone()
    for (slot, out), u in zip(replayed.items(), luck, strict=True):
        if u * (it.model.update_counter[slot] + 1) < 1:
            row, label = stored["logits"][slot], stored["labels"][slot]
            logits_after[slot, first:] = capped(out[first:].detach(), row[label], args.gamma)
            stored["task_labels"][slot] = t

    if t < 4:
        three = drawn[2]
        labels = torch.cat([stored["labels"][three], y])
        images = torch.cat([stored["examples"][three], raw])
        repeated = torch.stack([image for image in images for _ in range(args.simclr_num_aug)])
        seen = quiet(gradient_of_views(repeated)).view(len(images), args.simclr_num_aug, 10)
        heads = [seen[:, :, c : c + CPT] for c in range(end, 10, CPT)]
        loss = loss + args.lambd * sum(contrast(h, labels, args.simclr_temp) for h in heads) / len(heads)
        if args.dp_weight:
            terms = [gram_distance(h[: len(three), v], stored["logits"][three, c : c + CPT])
                     for h, c in zip(heads, range(end, 10, CPT), strict=True) for v in range(args.simclr_num_aug)]
            loss = loss + args.dp_weight * sum(terms) / len(terms)
        if args.future_constraint:
            pairs = [(row[end:].max(), row[first:end].max()) for row in outputs]
            for slot, row in replayed.items():
                own = int(stored["labels"][slot]) // CPT * CPT
                pairs.append((row[end:].max(), row[own : own + CPT].max()))
            loss = loss + args.constr_eta * hinge(pairs, args.constr_margin)
    if args.past_constraint:
        pairs = []
        for row in outputs:
            p = row[:end].exp() / row[:end].exp().sum()
            pairs.append((p[:first].max().detach(), p[first:].max()))
        loss = loss + args.constr_eta * hinge(pairs, args.constr_margin)
    stored["logits"] = logits_after
    return ref, ref.descend(loss)


XDER = {
    "stock": ("", 1),
    "no alignment": ("--align_bn 0", 1),
    "no future constraint": ("--future_constraint 0 --gamma 0.5", 1),
    "all terms": ("--past_constraint 1 --dp_weight 0.7 --constr_eta 0.9", 1),
    "third task": ("--past_constraint 1 --dp_weight 0.7", 2),
    "last task": ("--past_constraint 1", 4),
}


@pytest.mark.parametrize("case", XDER)
def test_xder_step(case: str, ready: Callable, drawn: list[Tensor]) -> None:
    flags, task = XDER[case]
    it = ready("xder", "labels", "logits", "task_labels", task=task, tasks=task,
               flags=f"--simclr_batch_size 4 --simclr_num_aug 2 {flags}")
    it.model.gpu_augmentation = gradient_of_views
    it.model.update_counter[torch.cat(drawn[:2])] = 1  # the second time a slot is drawn: updated with probability 1/2
    x, y, raw = batch(it)
    torch.manual_seed(5)
    luck = torch.rand(10).tolist()  # two batches of 6, two slots in both
    ref, expected = xder_reference(it, x, y, raw, drawn, luck)
    before = it.model.buffer.logits.clone()
    torch.manual_seed(5)
    check(it, ref, it.model.observe(x, y, raw), expected)
    torch.testing.assert_close(it.model.buffer.logits, ref.buffer["logits"], rtol=1e-4, atol=1e-6)
    assert torch.equal(it.model.buffer.task_labels, ref.buffer["task_labels"])
    assert 0 < (before != it.model.buffer.logits).any(1).sum() < 10  # some were updated, some not
    assert it.model.update_counter.tolist() == [2.0 if i in torch.cat(drawn[:2]) else 0.0 for i in range(BUFFER)]


def test_xder_end_of_task_stores_logits_with_capped_past_and_renews_the_future_of_old_ones(
        ready: Callable) -> None:
    it = ready("xder", "labels", "logits", "task_labels")
    ref, loader = Reference(it), it.dataset.train_loader
    order = loader.generator.get_state()
    torch.manual_seed(1)
    it.model.end_task(it.dataset)
    after = dict(zip(it.model.buffer.used_attributes, it.model.buffer.get_all_data(), strict=True))

    quota = BUFFER // (2 * CPT)
    rows = [i for c in range(CPT) for i in [j for j in range(BUFFER) if ref.buffer["labels"][j] == c][:quota]]
    expected = {name: list(value[rows]) for name, value in ref.buffer.items()}
    room = BUFFER - len(rows)
    torch.manual_seed(1)
    left = [room // CPT] * CPT
    for c in torch.randperm(CPT)[: room % CPT].tolist():
        left[c] += 1
    loader.generator.set_state(order)
    with torch.no_grad():
        for x, y, raw in loader:
            if not any(left):
                break
            for image, label, logits in zip(raw, y, ref.unnoticed(x), strict=True):
                if left[int(label) - CPT]:
                    left[int(label) - CPT] -= 1
                    row = logits.clone()
                    row[:CPT] = capped(logits[:CPT], logits[label], it.args.gamma)
                    for name, value in (("examples", image), ("labels", label), ("logits", row),
                                        ("task_labels", torch.tensor(1))):
                        expected[name].append(value)
    assert torch.equal(after["labels"], torch.stack(expected["labels"]))
    assert torch.equal(after["examples"], torch.stack(expected["examples"]))
    assert (after["task_labels"] == 1).all()  # old ones too: their logits know this task now
    new = after["labels"] >= CPT
    torch.testing.assert_close(after["logits"][new], torch.stack(expected["logits"])[new], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(after["logits"][~new, :CPT], torch.stack(expected["logits"])[~new, :CPT])
    truth = after["logits"][~new].gather(1, after["labels"][~new, None])
    assert (after["logits"][~new, CPT:] <= truth.clamp(min=0) + 1e-6).all() or (truth < 0).any()
    assert not torch.equal(after["logits"][~new, CPT:], torch.stack(expected["logits"])[~new, CPT:])


# ---- the buffers, number by number


def per_class(it: SimpleNamespace) -> list[int]:
    labels = it.model.buffer.get_all_data()[it.model.buffer.used_attributes.index("labels")]
    return torch.bincount(labels, minlength=10).tolist()


def counts_after(it: SimpleNamespace, tasks: int, count: Callable[[SimpleNamespace], Any]) -> list[Any]:
    """What `count` says after each task, without training."""
    out = []
    it.model.net.train()
    for _ in range(tasks):
        it.dataset.get_data_loaders()
        it.model.meta_begin_task(it.dataset)
        it.model.meta_end_task(it.dataset)
        out.append(count(it))
    return out


def test_rpc_buffer_as_mammoth_and_as_the_paper(start: Callable) -> None:
    """Mammoth divides by the tasks before this one, so the second task finds no room at all."""
    flags = "--train_per_class 30 --n_epochs 1 --buffer_size 20"
    assert [c[:6] for c in counts_after(start("rpc", flags), 3, per_class)] == [
        [10, 10, 0, 0, 0, 0], [10, 10, 0, 0, 0, 0], [5, 5, 0, 0, 5, 5]]
    assert [c[:6] for c in counts_after(start("rpc", flags + " --as_paper 1"), 3, per_class)] == [
        [10, 10, 0, 0, 0, 0], [5, 5, 5, 5, 0, 0], [3, 3, 3, 3, 4, 4]]


def per_task(it: SimpleNamespace) -> list[int]:
    tasks = it.model.buffer.get_all_data()[it.model.buffer.used_attributes.index("task_labels")]
    return torch.bincount(tasks, minlength=3).tolist()


def test_fdr_buffer_as_mammoth_and_as_the_paper(start: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mammoth gives every task buffer_size / t with t from 0, and lets the reservoir sort out what is too much."""
    size, n = 20, 60

    def slot(seen: int) -> int:
        return (7 * seen + 3) % (seen + 1)

    monkeypatch.setattr(np.random, "randint", lambda low, high: np.array([slot(int(h) - 1) for h in high]))
    flags = f"--train_per_class {n // 2} --n_epochs 1 --buffer_size {size} --batch_size 8"
    tasks: list[int] = []
    expected = []
    for t in range(3):
        share = size // t if t else size
        offered = [k for task in sorted(set(tasks)) for k in [x for x in tasks if x == task][:share]]
        offered += [t] * min(share, n)
        tasks = []
        for seen, task in enumerate(offered):
            place = seen if seen < size else slot(seen)
            if place < size:
                tasks[place : place + 1] = [task]
        expected.append([tasks.count(k) for k in range(3)])
    assert expected[0] == [20, 0, 0] and expected[1][1] > 0 and expected[2][2] > 0
    assert counts_after(start("fdr", flags), 3, per_task) == expected
    assert counts_after(start("fdr", flags + " --as_paper 1"), 3, per_task) == [[20, 0, 0], [10, 10, 0], [6, 6, 6]]


@pytest.mark.parametrize("size, passes", [(12, 3), (16, 4)])
def test_fdr_stores_the_training_outputs_of_the_images(start: Callable, size: int, passes: int) -> None:
    """Logits of augmented images in training mode. Running statistics learn from it, and as in Mammoth from one batch
    more than could be stored: the third of 8 if 12 are, the fourth if 16 are."""
    flags = STEP.replace(f"--buffer_size {BUFFER}", f"--buffer_size {size}").replace("class 12", "class 20")
    it = start("fdr", flags)
    at_task(it, 0)
    net, loader = copy.deepcopy(it.model.net), it.dataset.train_loader
    order = loader.generator.get_state()
    it.model.end_task(it.dataset)
    loader.generator.set_state(order)
    batches = list(loader)
    assert len(batches) == 5
    with torch.no_grad():
        logits = torch.cat([net(x) for x, *_ in batches[:passes]])
    examples, stored, tasks = it.model.buffer.get_all_data()
    assert torch.equal(examples, torch.cat([raw for _, _, raw in batches])[:size])
    torch.testing.assert_close(stored, logits[:size])
    assert tasks.tolist() == [0] * size
    for ours, theirs in zip(it.model.net.buffers(), net.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_agem_buffer_as_mammoth_and_as_the_paper(start: Callable) -> None:
    """Mammoth stores one batch of a task, whatever the buffer's size; the paper its share."""
    flags = "--train_per_class 30 --n_epochs 1 --buffer_size 50 --batch_size 8"
    sums = [[sum(c[i : i + 2]) for i in (0, 2, 4)] for c in counts_after(start("agem", flags), 3, per_class)]
    assert sums == [[8, 0, 0], [8, 8, 0], [8, 8, 8]]
    paper = counts_after(start("agem", flags + " --as_paper 1"), 3, per_class)
    assert [[sum(c[i : i + 2]) for i in (0, 2, 4)] for c in paper] == [[10, 0, 0], [10, 10, 0], [10, 10, 10]]
    it = start("agem", flags + " --as_paper 1")
    counts_after(it, 1, per_class)
    assert len(it.model.buffer.get_all_data()[0].flatten(1).unique(dim=0)) == 10  # ten different images


@pytest.mark.parametrize("size", [20, 25, 47])
def test_xder_class_quotas_are_exact(start: Callable, size: int) -> None:
    """Old classes have buffer_size / classes seen each; the new ones share the rest as evenly as it goes."""
    it = start("xder", f"--train_per_class 30 --n_epochs 1 --buffer_size {size}")
    for t, counts in enumerate(counts_after(it, 5, per_class)):
        old, new = counts[: CPT * t], counts[CPT * t : CPT * (t + 1)]
        assert old == [size // (CPT * (t + 1))] * len(old)
        assert sum(counts) == size and max(new) - min(new) <= 1


@pytest.mark.parametrize("size", [20, 25, 47])
def test_gem_class_quotas_are_exact(start: Callable, size: int) -> None:
    """Every class seen has buffer_size / classes seen, rounded down."""
    it = start("gem", f"--train_per_class 30 --n_epochs 1 --buffer_size {size}")
    for t, counts in enumerate(counts_after(it, 5, per_class)):
        seen = CPT * (t + 1)
        assert counts == [size // seen] * seen + [0] * (10 - seen)
    _, labels, tasks = it.model.buffer.get_all_data()
    assert torch.equal(tasks, labels // CPT)


def test_a_class_with_fewer_images_than_its_quota_leaves_room(start: Callable) -> None:
    for model in ("gem", "xder", "rpc"):
        counts = counts_after(start(model, "--train_per_class 4 --n_epochs 1 --buffer_size 40"), 1, per_class)
        assert counts == [[4, 4] + [0] * 8]


# ---- RPC's head


@pytest.mark.parametrize("n", [2, 3, 10, 100])
def test_polytope_has_unit_columns_with_equal_angles(n: int) -> None:
    from models.rpc import polytope

    head = polytope(n).double()
    assert head.shape == (n - 1, n)
    gram = head.T @ head
    expected = torch.full((n, n), -1 / (n - 1), dtype=torch.float64).fill_diagonal_(1)
    torch.testing.assert_close(gram, expected, rtol=0, atol=1e-6)


def test_rpc_predicts_by_the_nearest_vertex(start: Callable) -> None:
    it = start("rpc", "--n_epochs 1")
    vertices = it.model.rpchead.T
    it.model.net.forward = lambda x: F.pad(vertices, (0, 1), value=100.0)  # the last output plays no role
    assert it.model(torch.zeros(10, 1, 8, 8)).argmax(1).tolist() == list(range(10))
