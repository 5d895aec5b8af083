"""Each sampler against a slow version that is obviously right."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import chisquare
from torch import Tensor

from mammoth_sbs.core.samplers import Task, get_sampler
from mammoth_sbs.core.samplers.ccs import CCS
from mammoth_sbs.core.samplers.herding import herd
from mammoth_sbs.core.samplers.ipm import project_and_match
from mammoth_sbs.core.samplers.speed_balanced import SpeedBalanced
from tests.core.conftest import choose, make_task, seeded


def test_uniform_draws_every_pair_equally_often() -> None:
    g, task, sampler = seeded(), make_task(6), get_sampler("uniform")
    counts = np.zeros((6, 6))
    for _ in range(6000):
        a, b = sorted(sampler.choose(task, 2, g).tolist())
        counts[a, b] += 1
    assert chisquare(counts[np.triu_indices(6, 1)]).pvalue > 1e-3


def test_max_entropy_takes_the_highest_in_order() -> None:
    task = make_task(40, classes=5)
    assert task.logits is not None

    def entropy(z: list[float]) -> float:
        p = [math.exp(x) / sum(math.exp(y) for y in z) for x in z]
        return -sum(q * math.log(q) for q in p)

    slow = sorted(range(40), key=lambda i: -entropy(task.logits[i].tolist()))  # type: ignore[index]
    assert choose("max-entropy", task, 12) == slow[:12]


def test_max_entropy_breaks_ties_at_random() -> None:
    task = Task(torch.zeros(50, dtype=torch.int64), logits=torch.tensor([[200.0, 0.0]]).expand(50, 2))
    assert choose("max-entropy", task, 5, seed=0) != choose("max-entropy", task, 5, seed=1)


def stay_probabilities(losses: list[float], k: int) -> list[float]:
    """LARS by the book: follow every order in which examples can leave, with its probability."""
    low, high = min(losses), max(losses)
    rate = [(high - x) / (high - low) for x in losses]
    stays = [0.0] * len(losses)

    def leave(left: list[int], p: float) -> None:
        if len(left) == k:
            for i in left:
                stays[i] += p
            return
        total = sum(rate[i] for i in left)
        for i in left:
            if rate[i] > 0:
                leave([j for j in left if j != i], p * rate[i] / total)

    leave(list(range(len(losses))), 1.0)
    return stays


@pytest.mark.parametrize("k", [1, 2, 4])
def test_lars_keeps_examples_with_the_right_probabilities(k: int) -> None:
    losses = [0.1, 0.4, 0.5, 1.3, 2.0, 0.15]
    task, g, sampler, draws = Task(torch.arange(6), losses=torch.tensor(losses)), seeded(), get_sampler("lars"), 8000
    counts = torch.zeros(6, dtype=torch.float64)
    for _ in range(draws):
        counts[sampler.choose(task, k, g)] += 1
    expected = torch.tensor(stay_probabilities(losses, k), dtype=torch.float64)
    sigma = (expected * (1 - expected) / draws).sqrt()
    assert ((counts / draws - expected).abs() <= 4 * sigma + 1e-9).all(), (counts / draws, expected)
    assert counts[4] == draws  # the highest loss is never replaced


def test_lars_with_equal_losses_is_uniform() -> None:
    g, task, sampler = seeded(), Task(torch.arange(5), losses=torch.full((5,), 0.7)), get_sampler("lars")
    counts = torch.zeros(5)
    for _ in range(4000):
        counts[sampler.choose(task, 2, g)] += 1
    assert chisquare(counts.numpy()).pvalue > 1e-3


def test_lars_tells_losses_apart_however_little_they_differ() -> None:
    losses = 1e6 + 1e-8 * torch.arange(4.0, dtype=torch.float64)
    task = Task(torch.zeros(4), losses=losses)
    assert {choose("lars", task, 1, seed)[0] for seed in range(30)} == {3}


def slow_herding(features: Tensor, k: int) -> list[int]:
    """iCaRL's Algorithm 4, word by word."""
    phi = [f / np.linalg.norm(f) if np.linalg.norm(f) > 0 else f for f in features.numpy()]
    mu = sum(phi) / len(phi)
    chosen: list[int] = []
    for j in range(1, k + 1):
        rest = [i for i in range(len(phi)) if i not in chosen]
        total = sum((phi[i] for i in chosen), np.zeros_like(mu))
        chosen.append(min(rest, key=lambda i: np.linalg.norm(mu - (phi[i] + total) / j)))
    return chosen


@pytest.mark.parametrize("seed", range(3))
def test_herding_is_icarls_greedy_choice_per_class(seed: int) -> None:
    task = make_task(45, d=7, classes=3, first_class=4, seed=seed)
    task.features[4].zero_()  # type: ignore[index]  # a dead example must not be taken for a good one
    chosen = choose("herding", task, 24)
    for c in (4, 5, 6):
        members = (task.labels == c).nonzero().flatten()
        slow = members[slow_herding(task.need("features")[members], 8)].tolist()
        assert [i for i in chosen if task.labels[i] == c] == slow


def test_herding_keeps_the_mean_of_rows_of_any_length() -> None:
    rows = torch.randn(9, 3, generator=seeded(), dtype=torch.float64) * torch.arange(1, 10).unsqueeze(1)
    rows[0] = 9 / 8 * rows[1:].mean(0)  # the mean of all, or almost
    chosen = herd(rows, 7).tolist()
    assert chosen[0] == 0
    for j, m in enumerate(chosen):
        away = {i: float((rows[[*chosen[:j], i]].mean(0) - rows.mean(0)).norm())
                for i in range(9) if i not in chosen[:j]}
        assert away[m] == pytest.approx(min(away.values()), abs=1e-9)


def follow_ipm(rows: np.ndarray, chosen: list[int]) -> None:
    """Algorithm 1 with a full SVD and explicit residuals: each choice must match v best, or tie with the best."""
    residual = rows.copy()
    for step, m in enumerate(chosen):
        for _ in range(2):
            norms = np.linalg.norm(residual, axis=1)
            explained = norms <= 1e-3 * np.linalg.norm(rows, axis=1)
            candidates = [i for i in range(len(rows)) if i not in chosen[:step] and not explained[i]]
            if candidates:
                break
            residual = rows.copy()  # more choices than the rank: start again from the rows not chosen yet
            residual[chosen[:step]] = 0
        v = np.linalg.svd(residual)[2][0]
        match = {i: abs(residual[i] @ v) / norms[i] for i in candidates}
        assert match[m] >= max(match.values()) - 1e-9, step
        a = residual[m] / norms[m]
        residual = residual @ (np.eye(len(a)) - np.outer(a, a))


def test_ipm_matches_rows_of_any_length_and_starts_again_when_all_are_explained() -> None:
    for n, d, k, scale in ((12, 7, 7, 1.0), (12, 7, 11, 1e-3), (20, 5, 14, 1e3), (30, 18, 17, 0.1)):
        rows = scale * torch.randn(n, d, generator=seeded(n), dtype=torch.float64).add(0.5).relu()
        chosen = project_and_match(rows, k, seeded())
        assert len(set(chosen)) == k
        follow_ipm(rows.numpy(), chosen)
    rows[:] = 0
    rows[[4, 9, 7]] = torch.eye(18, dtype=torch.float64)[:3]
    chosen = project_and_match(rows, 6, seeded())
    assert set(chosen[:3]) == {4, 7, 9} and chosen[3:] == [0, 1, 2]  # rows of 0 come last


@pytest.mark.parametrize(("d", "k"), [(40, 30), (24, 75), (5, 48), (1, 9)])
def test_ipm_is_projection_and_matching_by_svd(d: int, k: int) -> None:
    task = make_task(75, d=d, classes=3, first_class=2, seed=d)
    chosen = torch.tensor(choose("ipm", task, k))
    for c in (2, 3, 4):
        members = (task.labels == c).nonzero().flatten()
        positions = [members.tolist().index(i) for i in chosen[task.labels[chosen] == c].tolist()]
        assert len(positions) == k // 3
        follow_ipm(task.need("features")[members].numpy(), positions)


def materialised_gradients(task: Task) -> Tensor:
    """Every example's gradient for the weights of a last layer that gives these logits, by autograd."""
    f, z = task.need("features"), task.need("logits")
    gradients = []
    for i, label in enumerate((task.labels - task.first_class).tolist()):
        # Any weights do that give example i its logits: this one puts them all on the features' direction.
        weight = torch.outer(z[i], f[i] / f[i].square().sum()).requires_grad_()
        loss = F.cross_entropy((weight @ f[i]).unsqueeze(0), torch.tensor([label]))
        gradients.append(torch.autograd.grad(loss, weight)[0].flatten())
    return torch.stack(gradients)


def slow_gss(gradients: Tensor, first: int, k: int) -> list[int]:
    """Adds the example whose highest cosine similarity to the chosen ones is lowest."""
    cosine = F.cosine_similarity(gradients.unsqueeze(0), gradients.unsqueeze(1), dim=2, eps=0).numpy()
    chosen = [first]
    while len(chosen) < k:
        rest = [i for i in range(len(cosine)) if i not in chosen]
        chosen.append(min(rest, key=lambda i: max(cosine[i, j] for j in chosen)))
    return chosen


@pytest.mark.parametrize("scale", [0.2, 1.0, 6.0])
def test_gss_is_greedy_diversity_of_materialised_gradients(scale: float) -> None:
    task = make_task(40, d=9, classes=4, first_class=8, scale=scale)
    chosen = choose("gss", task, 20)
    assert chosen == slow_gss(materialised_gradients(task), chosen[0], 20)
    part = task.subset((task.labels == 10).nonzero().flatten())  # one class only, as a quota per class asks
    chosen = choose("gss", part, 7)
    assert chosen == slow_gss(materialised_gradients(part), chosen[0], 7)


def test_gss_sees_gradients_that_float32_would_round_to_zero() -> None:
    task = make_task(30, d=9, classes=4)
    assert task.logits is not None and task.features is not None
    task.logits[torch.arange(30), task.labels] += 30
    single = Task(task.labels, features=task.features.float(), logits=task.logits.float())
    assert (single.need("logits").softmax(1).gather(1, task.labels.unsqueeze(1)) == 1).any()
    chosen = choose("gss", single, 12)
    assert chosen == slow_gss(materialised_gradients(task), chosen[0], 12)


def test_gss_starts_at_random_and_leaves_examples_without_gradient_for_last() -> None:
    task = make_task(30)
    assert len({choose("gss", task, 1, seed)[0] for seed in range(20)}) > 5
    task.features[:10] = 0  # type: ignore[index]
    assert all(i >= 10 for i in choose("gss", task, 20))
    assert sorted(choose("gss", task, 30)) == list(range(30))


def test_gss_names_labels_that_have_no_column() -> None:
    task = make_task(9, first_class=3)
    task.first_class = 0
    with pytest.raises(ValueError, match=r"labels outside 0\.\.2"):
        choose("gss", task, 3)


def test_speed_balanced_has_a_band_and_an_equal_part_for_each_class() -> None:
    """Ten of a quick class and ten of a slow one: the band of the whole task would be of one class on each side."""
    labels = torch.tensor([0] * 10 + [1] * 10)
    task = Task(labels=labels, speed=torch.cat([torch.arange(10) / 10 + 10, torch.arange(10) / 10]))
    for seed in range(20):
        chosen = SpeedBalanced(q=0.2, s=0.4).choose(task, 6, torch.Generator().manual_seed(seed))
        assert set(chosen.tolist()) <= {4, 5, 6, 7, 14, 15, 16, 17} and labels[chosen].bincount().tolist() == [3, 3]
    everything = SpeedBalanced(q=0.2, s=0.4).choose(task, 20, torch.Generator())
    assert sorted(everything.tolist()) == [4, 5, 6, 7, 14, 15, 16, 17]  # it never leaves the bands


def test_a_class_too_small_for_its_part_leaves_it_to_the_others() -> None:
    labels = torch.tensor([0] * 3 + [1] * 20)
    task = Task(labels=labels, speed=torch.rand(23, generator=torch.Generator().manual_seed(0)))
    chosen = SpeedBalanced(q=0, s=0.34).choose(task, 12, torch.Generator())
    assert labels[chosen].bincount().tolist() == [2, 10] and len(set(chosen.tolist())) == 12


def test_without_a_band_speed_balanced_draws_every_example_of_a_class_equally_often() -> None:
    labels, drawn = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1]), torch.zeros(8)
    task, generator = Task(labels=labels, speed=torch.arange(8) / 8), torch.Generator().manual_seed(1)
    for _ in range(3000):
        drawn[SpeedBalanced(q=0, s=0).choose(task, 2, generator)] += 1
    assert (drawn[:3] / 1000 - 1).abs().max() < 0.1 and (drawn[3:] / 600 - 1).abs().max() < 0.15


def test_ccs_leaves_out_the_hardest_and_covers_the_rest_evenly() -> None:
    """Zheng et al., Algorithm 1: 300 examples in the lowest of three strata, 30 and 6 in the others."""
    speed = torch.cat([torch.full((84,), 0.0), torch.full((300,), 0.3), torch.full((30,), 0.6), torch.full((6,), 0.9)])
    chosen = CCS(s=0.2).choose(Task(torch.zeros(420), speed), 26, seeded())
    assert [(speed[chosen] == value).sum().item() for value in (0.0, 0.3, 0.6, 0.9)] == [0, 10, 10, 6]
    others = {tuple(CCS(s=0.2).choose(Task(torch.zeros(420), speed), 26, seeded(i)).tolist()) for i in range(3)}
    assert len(others) == 3  # at random within a stratum
    everything = CCS(s=0.2).choose(Task(torch.zeros(420), speed), 400, seeded())
    assert (speed[everything] == 0).sum() == 64  # cut only as far as k allows


def test_the_strata_of_ccs_reach_from_the_lowest_to_the_highest_that_is_left() -> None:
    """Fifty of them: 0.97 of the way is in the last but one, 0.9802 and 1 share the last."""
    way = torch.tensor([0.0] * 12 + [0.97] * 12 + [0.9802] * 6 + [1.0] * 6)
    for seed in range(5):
        chosen = way[CCS(s=0).choose(Task(torch.zeros(36), 0.4 + 0.5 * way), 12, seeded(seed))]
        assert [int((chosen == 0).sum()), int((chosen == way[12]).sum())] == [4, 4]


def test_rainbow_goes_through_each_class_from_certain_to_uncertain_at_equal_steps() -> None:
    """Bang et al., Algorithm 1: of a class of 12 sorted by uncertainty, every fourth."""
    uncertainty = torch.rand(24, generator=seeded())
    labels = torch.arange(24) % 2
    chosen = get_sampler("rainbow").choose(Task(labels, uncertainty=uncertainty), 6, seeded())
    for c, part in ((0, chosen[:3]), (1, chosen[3:])):
        members = (labels == c).nonzero().flatten()
        assert part.tolist() == members[uncertainty[members].argsort()][[0, 4, 8]].tolist()
