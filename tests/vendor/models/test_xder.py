"""X-DER: one step with all its losses against a slow reference, and the end of a task."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from tests.vendor.models.conftest import BUFFER, CPT, MINI, Reference, batch, check, cross_entropy, mean_square

from models import xder


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


def test_who_just_meets_the_margin_does_not_violate_it() -> None:
    bad, good = torch.tensor([0.25, 0.5, 0.0]), torch.tensor([0.75, 0.5, 1.0])
    assert xder.hinge(bad, good, 0.5) == 0.5  # of the second alone; the first is at the margin
    assert xder.hinge(bad[::2], good[::2], 0.5) == 0.0
