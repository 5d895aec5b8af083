"""Each sampler against a slow version that is obviously right, and all of them on awkward input."""

from __future__ import annotations

import math
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from mammoth_sbs.core.samplers import SAMPLERS, Sampler, Task, get_sampler, sampler_names
from mammoth_sbs.core.samplers.base import spread
from mammoth_sbs.errors import UserError

NAMES = ["uniform", "max-entropy", "ipm", "gss", "herding", "lars"]  # `speed` has its own tests
FIELDS = ("speed", "features", "logits", "losses")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """For tensors this small threads only wait for each other, on a busy machine for long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_task(n: int, d: int = 6, classes: int = 3, first_class: int = 0, seed: int = 0, scale: float = 1.0) -> Task:
    """Random, but like a network's: features not negative, logits a linear function of them."""
    g = seeded(seed)
    columns = torch.arange(n) % classes
    features = torch.randn(n, d, generator=g, dtype=torch.float64).add(0.5).relu()
    logits = scale * features @ torch.randn(d, classes, generator=g, dtype=torch.float64)
    losses = F.cross_entropy(logits, columns, reduction="none")
    return Task(columns + first_class, torch.rand(n, generator=g), features, logits, losses, first_class)


def choose(name: str, task: Task, k: int, seed: int = 0) -> list[int]:
    return get_sampler(name).choose(task, k, seeded(seed)).tolist()


# --- each algorithm against a slow one ---


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


# --- what holds for all of them ---


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    """Tasks of any size, with repeated rows, rows of zeros, single classes and constant fields."""
    n, d, classes = draw(st.integers(0, 24)), draw(st.integers(1, 20)), draw(st.integers(1, 4))
    first_class = draw(st.integers(0, 9))
    g = seeded(draw(st.integers(0, 2**31)))
    distinct = draw(st.integers(1, 24))
    rows = torch.randint(distinct, (n,), generator=g)
    scale = draw(st.sampled_from([0.0, 1e-6, 1.0, 1e4]))
    features = scale * torch.randn(24, d, generator=g)[rows]
    features[torch.rand(n, generator=g) < draw(st.sampled_from([0.0, 0.3]))] = 0
    logits = scale * torch.randn(24, classes, generator=g)[rows]
    columns = torch.randint(classes, (n,), generator=g)
    losses = F.cross_entropy(logits, columns, reduction="none")
    return Task(columns + first_class, torch.rand(n, generator=g), features, logits, losses, first_class)


@pytest.mark.parametrize("name", NAMES)
@given(task=tasks(), k=st.integers(0, 30), seed=st.integers(0, 100))
@settings(max_examples=60, deadline=None)
def test_any_k_gives_distinct_indices_and_the_same_for_the_same_generator(
    name: str, task: Task, k: int, seed: int
) -> None:
    outside = torch.random.get_rng_state()
    chosen = get_sampler(name).choose(task, k, seeded(seed))
    assert torch.equal(torch.random.get_rng_state(), outside)
    assert chosen.dtype == torch.int64 and chosen.device.type == "cpu"
    assert len(chosen) == min(k, len(task)) == len(set(chosen.tolist()))
    assert all(0 <= i < len(task) for i in chosen.tolist())
    assert torch.equal(chosen, get_sampler(name).choose(task, k, seeded(seed)))


@given(counts=st.lists(st.integers(1, 20), min_size=1, max_size=8), data=st.data())
def test_quotas_are_as_even_as_the_classes_allow(counts: list[int], data: st.DataObject) -> None:
    k = data.draw(st.integers(0, sum(counts)))
    quotas = spread(torch.tensor(counts), k, seeded(data.draw(st.integers(0, 50)))).tolist()
    assert sum(quotas) == k
    for quota, count in zip(quotas, counts, strict=True):
        assert 0 <= quota <= count
        assert quota == count or quota >= max(quotas) - 1


@pytest.mark.parametrize("name", ["herding", "ipm"])
def test_the_rest_of_k_goes_to_random_classes(name: str) -> None:
    task = make_task(40, classes=4)
    extra = set()
    for seed in range(20):
        sizes = task.labels[choose(name, task, 9, seed)].bincount(minlength=4)
        assert sorted(sizes.tolist()) == [2, 2, 2, 3]
        extra.add(int(sizes.argmax()))
    assert extra == {0, 1, 2, 3}


@pytest.mark.parametrize("name", NAMES)
def test_quotas_per_class_are_met(name: str) -> None:
    task = make_task(30, classes=3, first_class=6)
    chosen = get_sampler(name).choose_per_class(task, {8: 2, 6: 5, 7: 99}, seeded())
    assert len(chosen.unique()) == len(chosen)
    assert task.labels[chosen].tolist() == [8] * 2 + [6] * 5 + [7] * 10
    assert get_sampler(name).choose_per_class(task, {}, seeded()).tolist() == []


def test_a_part_of_a_task_keeps_its_fields() -> None:
    task = make_task(9, first_class=5)
    part = task.subset(torch.tensor([4, 2]))
    assert (part.first_class, part.labels.tolist()) == (5, [6, 7])
    assert torch.equal(part.need("logits"), task.need("logits")[[4, 2]])
    assert len(task) == 9 and Task(task.labels).subset(torch.tensor([0])).features is None


@pytest.mark.parametrize("name", NAMES)
def test_bad_input_is_named(name: str) -> None:
    sampler = get_sampler(name)
    with pytest.raises(ValueError, match="k must not be negative"):
        sampler.choose(make_task(9), -1, seeded())
    for field in sampler.needs:
        for bad in (math.nan, math.inf):
            task = make_task(9)
            getattr(task, field).view(-1)[3] = bad
            with pytest.raises(ValueError, match=f"`{field}` has values that are not finite"):
                sampler.choose(task, 3, seeded())
        setattr(task, field, None)
        with pytest.raises(ValueError, match=f"needs `{field}`"):
            sampler.choose(task, 3, seeded())


@pytest.mark.parametrize("name", NAMES)
def test_a_sampler_reads_only_what_it_needs(name: str) -> None:
    task = make_task(12)
    for field in set(FIELDS) - get_sampler(name).needs:
        setattr(task, field, None)
    assert len(choose(name, task, 5)) == 5


# --- the registry ---


def test_names() -> None:
    assert set(SAMPLERS) == {*NAMES, "speed"} <= set(sampler_names())
    for name, cls in SAMPLERS.items():
        assert type(get_sampler(name)) is cls and cls.name == name and cls.needs <= set(FIELDS)
    assert type(get_sampler("max_entropy")) is SAMPLERS["max-entropy"]


@pytest.mark.parametrize(
    ("typed", "meant"), [("herdin", "herding"), ("max_entropi", "max-entropy"), ("GSS", "gss"), ("unifrm", "uniform")]
)
def test_an_unknown_name_is_answered_with_the_nearest(typed: str, meant: str) -> None:
    with pytest.raises(UserError) as error:
        get_sampler(typed)
    message = str(error.value)
    assert f"`{typed}`" in message and f"did you mean `{meant}`?" in message and "\n" not in message
    assert all(name in message for name in sampler_names())


def test_a_name_like_no_other_gets_the_list_only() -> None:
    with pytest.raises(UserError, match="choose one of speed, uniform") as error:
        get_sampler("qqqqqqqq")
    assert "did you mean" not in str(error.value)


THIRD_PARTY = """
import torch
from mammoth_sbs.core.samplers import Sampler

class Lowest(Sampler):
    name = "lowest-loss"
    needs = frozenset({"losses"})

    def choose(self, task, k, generator):
        return task.need("losses").argsort()[:k]

class Stranger:
    pass
"""
ENTRY_POINTS = """[mammoth_sbs.samplers]
lowest_loss = third_party_sampler:Lowest
stranger = third_party_sampler:Stranger
missing = third_party_sampler_without:Anything
gss = third_party_sampler:Lowest
"""


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package with samplers, built as a wheel and installed by pip."""
    wheel = tmp_path / "third_party_sampler-1.0-py3-none-any.whl"
    info = "third_party_sampler-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("third_party_sampler.py", THIRD_PARTY)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: third-party-sampler\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/entry_points.txt", ENTRY_POINTS)
        archive.writestr(f"{info}/RECORD", "")
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(site)]
    subprocess.run([*pip, str(wheel)], check=True)
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "third_party_sampler", raising=False)


@pytest.mark.usefixtures("third_party")
def test_an_installed_package_adds_a_sampler() -> None:
    assert sampler_names()[-3:] == ["lowest-loss", "missing", "stranger"]
    for name in ("lowest-loss", "lowest_loss"):
        sampler = get_sampler(name)
        assert isinstance(sampler, Sampler)
        task = Task(torch.arange(4), losses=torch.tensor([3.0, 1.0, 4.0, 2.0]))
        assert sampler.choose(task, 2, seeded()).tolist() == [1, 3]
    assert type(get_sampler("gss")) is SAMPLERS["gss"]  # a built-in name cannot be taken over
    with pytest.raises(UserError, match="did you mean `lowest-loss`"):
        get_sampler("lowest-los")
    with pytest.raises(UserError, match="third_party_sampler:Stranger is not a subclass"):
        get_sampler("stranger")
    with pytest.raises(UserError, match="third_party_sampler_without:Anything could not be imported"):
        get_sampler("missing")
