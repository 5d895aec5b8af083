"""`--compile 1`: the same learning from compiled networks, compiled once for all batches, models and processes."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.fx.experimental.proxy_tensor import make_fx

from mammoth_sbs.errors import UserError
from mammoth_sbs.experiments.config import read_config
from mammoth_sbs.experiments.executors.local import Local
from mammoth_sbs.experiments.runs import resolve
from mammoth_sbs.models.scores import SCORES, fresh
from mammoth_sbs.tuning.rotation import Rotation
from tests.conftest import COMPILED_NET as NET
from tests.conftest import REPO, STOCK, Start, mammoth_main

import backbone as backbones
from utils import compiled
from utils.batch_norm import bn_track_stats
from utils.evaluate import evaluate
from utils.training import train_task

Run = Callable[..., dict[str, Any]]
SMALL = f"{NET} --max_classes 6 --n_tasks 3 --train_per_class 24 --n_epochs 2 --batch_size 20"
XDER = "--simclr_batch_size 8 --simclr_num_aug 2"


def flags(model: str, compile_it: int = 1, lr: float = 0.03) -> str:
    buffer = "" if model in ("sgd", "joint") else "--buffer_size 22"
    return f"{SMALL} --lr {lr} {buffer} {XDER if model.startswith('xder') else ''} --compile {compile_it}"


def compilations() -> int:
    return counters["stats"]["unique_graphs"]


@pytest.fixture(autouse=True)
def use_cache(compiled_networks: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MAMMOTH_SBS_CACHE", str(compiled_networks))
    yield
    os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)


@pytest.fixture
def both(start: Start) -> Callable[..., tuple[Any, Any]]:
    """The same model, eager and compiled."""

    def both(model: str = "er", more: str = "") -> tuple[Any, Any]:
        pair = [start(model, f"{flags(model, c)} {more}").model for c in (0, 1)]
        assert "embed" in vars(pair[1].net) and "embed" not in vars(pair[0].net)
        return pair[0], pair[1]

    return both


def near(a: Tensor, b: Tensor, within: float = 1e-4) -> None:
    """Their distance, relative to their length if that is above 1."""
    a, b = a.detach(), b.detach()
    assert float((a - b).norm()) <= within * max(1.0, float(a.norm()))


def test_one_step_is_the_eager_one_whatever_the_size_of_the_batch(both: Callable) -> None:
    """Loss, gradients and batch statistics to 1e-4; sizes from one image on need no compilation of their own."""
    eager, ours = both()
    before = compilations()
    for n in (64, 2, 1, 3, 15, 16, 17, 32, 33, 100, 200):
        images, labels = torch.randn(n, 1, 8, 8), torch.randint(6, (n,))
        losses = []
        for model in (eager, ours):
            model.net.train().zero_grad()
            losses.append(F.cross_entropy(model.net(images), labels))
            losses[-1].backward()
        near(*losses)
        near(eager.net.get_grads(), ours.net.get_grads())
        for a, b in zip(eager.net.buffers(), ours.net.buffers(), strict=True):
            near(a.float(), b.float())
        for model in (eager, ours):
            model.net.eval()
        with torch.no_grad():
            near(eager.net(images), ours.net(images))
    assert compilations() == before


def test_sums_of_batch_normalisation_go_image_by_image() -> None:
    """What torch would sum over all pixels at once is summed within images first, and means the same."""
    from utils.by_image import ALL_BUT_CHANNELS, ByImage, aten

    def sums(x: Tensor) -> tuple[Tensor, ...]:
        return (*torch.var_mean(x, [0, 2, 3], correction=0, keepdim=True), (x * x).sum([0, 2, 3]), x.sum([1, 2, 3]),
                x.sum([0, 2, 3], keepdim=True))

    x = 3 + torch.randn(7, 4, 5, 6)
    traced = make_fx(sums, tracing_mode="fake")(x)
    ByImage()(traced.graph)
    traced.recompile()
    left = [node.args[1] for node in traced.graph.find_nodes(op="call_function", target=aten.sum.dim_IntList)]
    assert ALL_BUT_CHANNELS not in left and [1, 2, 3] in left
    assert not traced.graph.find_nodes(op="call_function", target=aten.var_mean.correction)
    for more in (x, torch.randn(3, 4, 5, 6)):
        for ours, theirs in zip(traced(more), sums(more.double()), strict=True):
            assert ours.shape == theirs.shape
            near(ours.double(), theirs, 1e-6)


def test_what_only_asks_is_compiled_and_without_autograd(start: Start, monkeypatch: pytest.MonkeyPatch,
                                                         tmp_path: Path) -> None:
    """Evaluation, and the passes of samplers, scores, recording and the rotation task."""
    it = start("er_sbs", f"{flags('er')} --sampler max-entropy --sbs-record {tmp_path / 'record.npz'}")
    asked: list[tuple[int, bool]] = []
    code = it.model.net.embed.__func__
    ask = code.ask
    monkeypatch.setattr(code, "ask", lambda net, x: asked.append((len(x), torch.is_grad_enabled())) or ask(net, x))
    monkeypatch.setattr(code, "eager", lambda net, x: pytest.fail("an eager pass"))
    it.dataset.get_data_loaders()
    it.model.meta_begin_task(it.dataset)
    train_task(it.model, it.dataset, it.args)
    data = it.dataset.train_loader.dataset
    task = it.model.describe(data)
    passes = [lambda: evaluate(it.model, it.dataset), lambda: it.model.features_and_logits(data),
              lambda: SCORES["loss"](it.model, data), lambda: Rotation(it.model, it.dataset, task),
              lambda: it.model.recorder.correct(it.model, it.model.recorder.batches(it.model, 0), 0)]
    for look in passes:
        asked.clear()
        look()
        assert asked and not any(with_gradients for _, with_gradients in asked)


@pytest.mark.parametrize("model", ["sgd", "joint", *STOCK, *(f"{name}_sbs" for name in STOCK)])
def test_every_model_learns_compiled_and_none_compiles_again(model: str, run: Run) -> None:
    """All sizes of batches, passes without gradients and without statistics: two compilations, made by the first."""
    before = compilations()
    once, again = run(model, flags(model)), run(model, flags(model))
    assert compilations() - before <= 2
    assert again["results"] == once["results"] and again.get("sbs") == once.get("sbs")
    for a, b in zip(*(end["model"].net.state_dict().values() for end in (once, again)), strict=True):
        assert torch.equal(a, b), "the same flags twice, and other numbers"
    eager = run(model, flags(model, 0))
    near(eager["model"].net.get_params(), once["model"].net.get_params(), 0.1)  # rounding grows from step to step


def test_seeds_end_within_noise(run: Run) -> None:
    """Three seeds on all of digits: the mean accuracy differs by less than the seeds do."""
    found = {c: torch.tensor([run("er_sbs", f"{NET} --compile {c} --seed {seed}")["results"]["task_il"]["final"]
                              for seed in range(3)]) for c in (0, 1)}
    assert found[0].min() > 55, "nothing was learned: there is nothing to compare"
    assert abs(float(found[0].mean() - found[1].mean())) <= 2 * float(found[0].std()) / 3**0.5 + 1


def test_the_hook_sees_the_same_learning_speed(run: Run) -> None:
    """Steps so short that rounding decides nothing: every example counts as often as in eager steps."""
    tasks = [run("er_sbs", f"{flags('er', c, lr=1e-6)} --stop_after 2")["sbs"]["tasks"] for c in (0, 1)]
    assert tasks[0] == tasks[1] and 0 < tasks[0][0]["speed_mean"] < 1


def test_features_and_logits_on_request(both: Callable) -> None:
    eager, ours = both()
    images = torch.randn(20, 1, 8, 8)
    for a, b in zip(eager.net(images, returnt="both"), ours.net(images, returnt="both"), strict=True):
        near(a, b)
    near(eager.net(images, returnt="features"), ours.net.features(images))


@pytest.mark.parametrize("with_gradients", [True, False])
def test_statistics_that_are_not_to_be_learned_stay(both: Callable, with_gradients: bool) -> None:
    """`bn_track_stats`, as X-DER and the filling of buffers use it: the batch's own statistics, and none is kept."""
    eager, ours = both()
    images = torch.randn(20, 1, 8, 8)
    kept = [buffer.clone() for buffer in ours.net.buffers()]
    with torch.set_grad_enabled(with_gradients), bn_track_stats(ours.net, False), bn_track_stats(eager.net, False):
        near(eager.net(images), ours.net(images))
        assert ours.net(images).requires_grad is with_gradients
    assert all(torch.equal(a, b) for a, b in zip(kept, ours.net.buffers(), strict=True))
    ours.net(images)
    assert not torch.equal(kept[0], next(ours.net.buffers()))


def test_a_copy_is_compiled_and_its_own(both: Callable) -> None:
    """As the rotation task and `--sbs-score c-score` make them."""
    ours = both()[1].net
    before = compilations()
    for twin in (copy.deepcopy(ours), fresh(ours)):
        twin.classifier = nn.Linear(ours.feature_dim, 9)
        assert twin.embed.__self__ is twin
        kept = ours.get_params().clone()
        optimizer = torch.optim.SGD(twin.parameters(), 0.1)
        twin(torch.randn(20, 1, 8, 8)).square().sum().backward()
        optimizer.step()
        assert torch.equal(kept, ours.get_params())
        assert not torch.equal(kept[:4], twin.get_params()[:4])
    assert compilations() == before


def test_the_rotation_task(start: Start) -> None:
    """A trial on a wider copy scores what it scores eagerly, to one of the examples held out."""
    points = []
    for c in (0, 1):
        it = start("derpp_sbs", f"{NET} --train_per_class 40 --buffer_size 40 --n_epochs 1 --compile {c} --lr 0.001")
        it.dataset.get_data_loaders()
        it.model.meta_begin_task(it.dataset)
        train_task(it.model, it.dataset, it.args)
        it.model.close_task(it.dataset)
        before = compilations()
        rotation = Rotation(it.model, it.dataset, it.model.describe(it.dataset.train_loader.dataset))
        points.append(rotation(0.2, 0.2))
        assert compilations() == before
    one = 100 / len(rotation.held_out)
    assert abs(points[0].old - points[1].old) <= one and abs(points[0].rotation - points[1].rotation) <= one


@pytest.mark.parametrize("first", [0, 1])
def test_a_checkpoint_goes_over(first: int, run: Run, tmp_path: Path) -> None:
    """From compiled to eager and back: the same weights go in, and the run goes on as the flag says."""
    run("xder_sbs", f"{flags('xder', first)} --stop_after 1 --savecheck last --ckpt_name a")
    saved = torch.load(tmp_path / "a_last.pt", weights_only=True)
    ended = [run("xder_sbs", f"{flags('xder', c)} --ckpt_name b{c} --loadcheck {tmp_path / 'a_last.pt'}")
             for c in (0, 1)]
    assert [key.removeprefix("net.") for key in saved["model"] if key.startswith("net.")] \
        == list(ended[0]["model"].net.state_dict())
    assert [("embed" in vars(end["model"].net)) for end in ended] == [False, True]
    near(ended[0]["model"].net.get_params(), ended[1]["model"].net.get_params(), 0.1)


def test_another_process_takes_the_code_from_the_cache(run: Run, compiled_networks: Path, tmp_path: Path) -> None:
    """It compiles nothing, and gives the same numbers as the process that did."""
    here = run("derpp", flags("derpp"))
    there = """
import sys
from mammoth_sbs.models import load_host
host = load_host()
model, dataset, args = host.initialize(host.parse_args(sys.argv[1:]))
host.train(model, dataset, args)
from torch._dynamo.utils import counters
print("found", counters["inductor"]["fxgraph_cache_hit"], "made", counters["inductor"]["fxgraph_cache_miss"],
      "whole", counters["aot_autograd"]["autograd_cache_hit"])
"""
    words = f"--model derpp --dataset seq-digits --alpha .2 --beta .5 --seed 0 {flags('derpp')}".split()
    env = {**os.environ, "PYTHONPATH": str(REPO), "MAMMOTH_SBS_CACHE": str(compiled_networks)}
    done = subprocess.run([sys.executable, "-c", there, *words, "--base_path", str(tmp_path / "there")], env=env,
                          capture_output=True, text=True)
    assert "found 3 made 0 whole 2" in done.stdout, done.stdout + done.stderr
    (file,) = (tmp_path / "there").rglob("*.json")
    assert json.loads(file.read_text())["results"] == here["results"]


def test_a_sweep_compiles_before_its_runs(tmp_path: Path, compiled_networks: Path, run: Run) -> None:
    """The runs of two workers are those of the command line; eager runs have other ids."""
    text = f"base: --model er_sbs --dataset seq-digits {flags('er')}\ngrid:\n  sbs-q: [0.1, 0.3]\nseeds: 2\n"
    config = tmp_path / "config.yaml"
    config.write_text(text)
    done = subprocess.run([sys.executable, "-m", "mammoth_sbs", "sweep", config.name, "--results", "out",
                           "--jobs", "2"], capture_output=True, text=True, cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": str(REPO), "MAMMOTH_SBS_CACHE": str(compiled_networks)})
    assert done.returncode == 0, done.stderr
    records = [json.loads(file.read_text()) for file in (tmp_path / "out").glob("*.json")]
    assert len(records) == 4
    for record in records:
        alone = run("er_sbs", f"{flags('er')} --sbs-q {record['args']['sbs_q']} --seed {record['seed']}")
        assert alone["results"] == record["results"] and alone["sbs"] == record["sbs"]
        assert record["args"]["compile"] is True
    runs = resolve(read_config(config))
    config.write_text(text.replace("--compile 1", "--compile 0"))
    for with_code, without in zip(runs, resolve(read_config(config)), strict=True):
        assert with_code.id != without.id and with_code.first_task != without.first_task is not None
        assert "compile" not in without.args, "runs made before the flag came would no longer count"


def networks_in_memory() -> list[str]:
    """In a worker, before it has done anything."""
    return list(compiled._known)


def test_workers_of_a_sweep_inherit_compiled_code(tmp_path: Path, start: Start) -> None:
    """Where several runs share a network: they need not even read the cache."""
    config = tmp_path / "config.yaml"
    config.write_text(f"base: --model er_sbs --dataset seq-digits {flags('er')}\nseeds: 3\n")
    start("er", flags("er"))  # it is compiled
    executor = Local(1, 1)
    assert executor.call(networks_in_memory) == []
    executor._inherit(resolve(read_config(config)))
    assert executor.call(networks_in_memory) == [compiled._kind(start("er", flags("er")).model.net, (1, 8, 8))]


def test_without_a_compiler_a_run_goes_on_and_a_sweep_does_not(
        run: Run, tmp_path: Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config as inductor

    monkeypatch.setattr(compiled, "_known", {})
    with inductor.patch({"cpp.cxx": ("no-such-compiler",)}):
        eager, asked = run("er", flags("er", 0)), run("er", flags("er", 1))
    (line,) = [line for line in capfd.readouterr().out.splitlines() if "--compile" in line]
    assert line.startswith("warning: --compile 1: no C++ compiler found") and line.endswith("going on without")
    assert asked["results"] == eager["results"] and asked["args"]["compile"] is False
    config = tmp_path / "config.yaml"
    config.write_text(f"base: --model er --dataset seq-digits {flags('er')}\nseeds: 1\n")
    done = subprocess.run([sys.executable, "-m", "mammoth_sbs", "sweep", str(config), "--results", "out"],
                          capture_output=True, text=True, cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": str(REPO), "CXX": "no-such-compiler"})
    assert done.returncode and "config.yaml, line 1: --compile 1: no C++ compiler found" in done.stderr.splitlines()[-1]
    assert not list((tmp_path / "out").glob("*.json"))


def test_a_network_that_cannot_be_compiled(run: Run, capfd: pytest.CaptureFixture,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a plugin's own: its way depends on the pictures."""

    class Undecided(backbones.MammothBackbone):
        def __init__(self, num_classes: int) -> None:
            super().__init__()
            self.layer, self.classifier = nn.Linear(64, 8), nn.Linear(8, num_classes)

        def embed(self, x: Tensor) -> Tensor:
            return self.layer(x.flatten(1)) * (2 if float(x.sum()) > 0 else 1)

    monkeypatch.setitem(backbones.REGISTERED_BACKBONES, "undecided",
                        lambda num_classes, input_shape: Undecided(num_classes))
    words = flags("er").replace(NET, "--backbone undecided")
    assert run("er", words)["args"]["compile"] is False
    (line,) = [line for line in capfd.readouterr().out.splitlines() if "--compile" in line]
    assert line.startswith("warning: --compile 1: Undecided cannot be compiled (") and line.endswith("going on without")
    cmd = f"--model er --dataset seq-digits {words}".split()
    with pytest.raises(UserError, match="Undecided cannot be compiled"):
        mammoth_main.initialize(mammoth_main.parse_args(cmd), must_compile=True)


def test_a_shared_first_task_is_of_compiled_runs_or_of_eager_ones(run: Run, tmp_path: Path) -> None:
    shared = f"--stop_after 1 --shared_first_task {tmp_path / 'first.pt'}"
    run("er_sbs", f"{flags('er', 1)} {shared}")
    with pytest.raises(UserError, match="--compile True there and False here"):
        run("er_sbs", f"{flags('er', 0)} {shared}")


CONVOLVE = """
import os, sys
from mammoth_sbs.models import load_host
load_host()
import torch
from backbone.ResNetBlock import tiny_resnet18
from utils import compiled
compiled.Compiled = lambda embed, shape, options: embed
torch.backends.cpu.get_cpu_capability = lambda: "AVX512"
before = os.environ.get(compiled.ISA)
compiled.compile_network(tiny_resnet18(4, int(sys.argv[1]), (3, 8, 8)), (3, 8, 8))
assert os.environ.get(compiled.ISA) == before  # processes that it starts decide for themselves
torch.nn.functional.conv2d(torch.rand(4, 8, 9, 9), torch.rand(8, 8, 3, 3))
"""


@pytest.mark.parametrize(("filters", "given"), [(8, None), (15, None), (16, None), (8, "SSE41")])
def test_a_process_with_a_narrow_network_convolves_with_short_vectors(filters: int, given: str | None,
                                                                      tmp_path: Path) -> None:
    """oneDNN says which instructions each of its convolutions is made of; who has set them keeps the last word."""
    env = {**os.environ, "ONEDNN_VERBOSE": "1", "MAMMOTH_SBS_CACHE": str(tmp_path)} | \
        ({compiled.ISA: given} if given else {})
    said = subprocess.run([sys.executable, "-c", CONVOLVE, str(filters)], env=env, cwd=REPO, capture_output=True,
                          text=True, check=True).stdout
    kernels = [line.split(",")[6] for line in said.splitlines() if ",exec,cpu,convolution," in line]
    assert len(kernels) > 10
    long = any("avx512" in kernel for kernel in kernels)
    assert long == (filters == 16 and "AVX512" in torch.backends.cpu.get_cpu_capability())
    assert not (given and any("avx2" in kernel for kernel in kernels))


@pytest.mark.parametrize(("version", "sure"), [("11", True), ("13.2.0", True), ("10.5.0", None), ("", None)])
def test_a_compiler_that_knows_all_vectors_need_not_try_them(version: str, sure: bool | None, tmp_path: Path,
                                                             start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text(f"#!/bin/sh\n[ $1 = -dumpversion ] && echo {version}\n")
    compiler.chmod(0o755)
    monkeypatch.setattr("torch._inductor.cpp_builder.get_cpp_compiler", lambda: str(compiler))
    assert compiled._options(start("sgd", "--backbone tiny-resnet18 --lr 0.1").model.net)["cpp.vec_isa_ok"] is sure


@pytest.mark.parametrize("line, capability, simdlen", [
    ("--backbone tiny-resnet18 --num_filters 8", "AVX512", 256),  # a layer of 8 fills half of a vector of 16
    ("--backbone tiny-resnet18 --num_filters 16", "AVX512", None),
    ("--backbone tiny-resnet18 --num_filters 8", "AVX2", None),  # whose vectors are of 8
    ("--backbone mnistmlp --mlp_hidden_size 8", "AVX512", None)])
def test_vectors_are_no_longer_than_the_first_layer_is_wide(line: str, capability: str, simdlen: int | None,
                                                            start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert compiled._options(start("sgd", f"{line} --lr 0.1").model.net)["cpp.simdlen"] == simdlen
