"""What scripts/bench_host measures: our loop beside itself compiled, Avalanche's and Mammoth's, a step of each in turn.

As a program: one of the processes that train on a host, `bench_loops.py ROOT DATA METHOD BACKBONE ROUNDS MORE`.
"""

from __future__ import annotations

import ctypes
import importlib.util
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
METHODS = {"er": "", "derpp": "--alpha .2 --beta .5"}
OWN_FLAGS = {"der": "--alpha .3", "derpp": "--alpha .2 --beta .5", "fdr": "--alpha 1", "gem": "--gamma .5",
             "xder": "--alpha .3 --beta .8"}
STEPS = {"tiny-resnet18 --num_filters 8": 24, "small-resnet18 --num_filters 8": 16, "reduced-resnet18": 6}  # an epoch
COMPILED = dict(zip(STEPS, (1.6, 1.3, 1.15), strict=True))  # at least; set when eager steps gave memory back
COMPILED_MAMMOTH = dict(zip(STEPS, (1.8, 1.5, 1.4), strict=True))  # against Mammoth's loop
FROZEN = "efficientnet-lite0 --pretrained 1 --frozen 1"  # a head on features
BATCH, BUFFER = 32, 200


def command(method: str, backbone: str, more: str) -> list[str]:
    return (f"--model {method} --dataset seq-cifar10 --backbone {backbone} --buffer_size {BUFFER} --lr 0.01 "
            f"--batch_size {BATCH} --seed 0 {METHODS.get(method, '')} {more}").split()


def seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def synthetic(count: int) -> Any:
    """Pictures of noise, `count` of each of CIFAR-10's classes."""
    import numpy as np

    from datasets.utils.sources import Images, Source

    rng = np.random.default_rng(0)
    train, test = (Images(rng.integers(0, 256, (10 * n, 3, 32, 32), np.uint8), np.arange(10).repeat(n))
                   for n in (count, 1))
    return Source(train, test, [str(c) for c in range(10)])


def synthetic_features(source: Any, *_: Any) -> Any:
    """Noise as long as efficientnet-lite0's features, in place of pictures."""
    import numpy as np

    rng = np.random.default_rng(0)
    return source._replace(**{split: getattr(source, split)._replace(
        images=rng.random((len(getattr(source, split).labels), 1280), np.float32).astype(np.float16))
        for split in ("train", "test")})


def second_task(method: str, backbone: str, more: str = "") -> tuple[Any, Any, Any]:
    """A model with a full buffer at the beginning of its second task, its data set and arguments."""
    from mammoth_sbs.models import load_host

    from datasets.utils import continual_dataset

    main, steps = load_host(), STEPS.get(backbone, 48)
    continual_dataset.load = lambda *_: synthetic(steps * BATCH // 2)
    continual_dataset.features_of = synthetic_features
    words = command(method, backbone, f"--n_epochs 1 --device cpu --non_verbose 1 {more}")
    model, dataset, args = main.initialize(main.parse_args(words))
    model.net.train()
    for task in range(2):
        dataset.get_data_loaders()
        model.meta_begin_task(dataset)
        if task == 0:
            model.buffer.add_data(*(column[:BUFFER] for column in first_task(model, dataset, method)))
            model.meta_end_task(dataset)
    assert model.buffer.is_full()
    return model, dataset, args


def first_task(model: Any, dataset: Any, method: str) -> list[torch.Tensor]:
    """What fills the buffer: images, labels and, for derpp, outputs of the first task."""
    inputs, labels, raw = (torch.cat(column) for column in zip(*dataset.train_loader, strict=True))
    repeat = -(-BUFFER // len(labels))
    columns = [raw, labels]
    if method == "derpp":
        with torch.no_grad():
            columns.append(model.net(inputs))
    return [column.repeat(repeat, *[1] * (column.dim() - 1)) for column in columns]


def steps_of(model: Any, dataset: Any) -> Iterator[None]:
    """The loop's steps, one for each time it is asked."""
    while True:
        for inputs, labels, not_aug_inputs in dataset.train_loader:
            yield model.meta_observe(inputs, labels, not_aug_inputs, epoch=0)


def compiled_steps(pipe: Connection, method: str, backbone: str) -> None:
    """Make a step, and say how long it took, for each time that is asked."""
    from mammoth_sbs.host import activate

    activate()
    torch.set_num_threads(1)
    steps = steps_of(*second_task(method, backbone, "--compile 1")[:2])
    while True:
        pipe.recv()
        pipe.send(seconds(lambda: next(steps)))


def compiled_loop(method: str, backbone: str) -> Callable[[], float]:
    """Seconds of the next step with `--compile 1`, in a process of its own: there, convolutions may be others."""
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    context.Process(target=compiled_steps, args=(its, method, backbone), daemon=True).start()

    def step() -> float:
        ours.send(None)
        return ours.recv()

    return step


def compiled_against_eager(method: str, backbone: str, rounds: int) -> tuple[float, float]:
    """Images per second with `--compile 1`, relative to those without, step by step in turn; and relative to eager
    steps that give freed memory back to the system, as they did before `--compile` came."""
    from utils.conf import M_MMAP_THRESHOLD, M_TOP_PAD, M_TRIM_THRESHOLD, keep_memory

    eager, compiled = steps_of(*second_task(method, backbone)[:2]), compiled_loop(method, backbone)
    ratios = []
    for _ in range(rounds + 1):
        times = [(seconds(lambda: next(eager)), compiled()) for _ in range(STEPS[backbone])]
        for option, default in ((M_MMAP_THRESHOLD, 128 << 10), (M_TRIM_THRESHOLD, 128 << 10), (M_TOP_PAD, 128 << 10)):
            ctypes.CDLL(None).mallopt(option, default)
        before = [seconds(lambda: next(eager)) for _ in range(STEPS[backbone])]
        keep_memory()
        next(eager)
        ratios.append((median(a / b for a, b in times), median(before[1:]) / median(b for _, b in times)))
    kept, given_back = map(median, zip(*ratios[1:], strict=True))  # the first round warms up
    return kept, given_back


def onednn_against_mkl(method: str, rounds: int) -> float:
    """Images per second of a head on features with oneDNN's products, relative to MKL's, in turn, on any processor."""
    from backbone.pretrained import Hidden

    with patch("backbone.pretrained.of_amd", lambda: True):
        ours, usual = (steps_of(*second_task(method, FROZEN)[:2]) for _ in range(2))
        return in_turn(ours, usual, lambda: patch.object(Hidden, "by_onednn", lambda *_: False), rounds)


def factors_against_whole(old_tasks: int, buffer_size: int, rounds: int) -> float:
    """GEM's steps per second on features by factors, relative to whole gradients, in turn."""
    from models.utils.factors import Factors

    loops = []
    for _ in range(2):
        model, dataset, _ = second_task("gem", FROZEN, "--gamma 0.5")
        model.args.buffer_size = buffer_size
        model.buffer = type(model.buffer)(buffer_size)
        model.buffer.add_data(torch.rand(buffer_size, 1280), torch.randint(0, 2, (buffer_size,)),
                              task_labels=torch.arange(buffer_size) % old_tasks)
        loops.append(steps_of(model, dataset))
    return in_turn(*loops, lambda: patch.object(Factors, "fit", lambda *_: False), rounds)


def in_turn(ours: Iterator[None], usual: Iterator[None], other_way: Callable[[], Any], rounds: int) -> float:
    """Steps per second of one loop relative to those of another, which goes on with something patched."""

    def usual_step() -> None:
        with other_way():
            next(usual)

    ratios = [median(seconds(usual_step) / seconds(lambda: next(ours)) for _ in range(48)) for _ in range(rounds + 1)]
    return median(ratios[1:])  # the first round warms up


def share_of_passes(method: str, backbone: str, steps: int = 12) -> tuple[float, float]:
    """Of a step in the second task: the share of its CPU time in forward and backward passes, and how many forward."""
    from mammoth_sbs.models import load_host

    from datasets.utils import continual_dataset

    main = load_host()
    continual_dataset.load = lambda *_: synthetic(steps * BATCH // 2)
    words = (f"--model {method} --dataset seq-cifar10 --backbone {backbone} --buffer_size {BUFFER} --lr 0.01 "
             f"--batch_size {BATCH} --seed 0 --n_epochs 1 --device cpu --non_verbose 1 --disable_log 1").split()
    model, dataset, args = main.initialize(main.parse_args(words + OWN_FLAGS.get(method, "").split()))
    from utils.training import train_task

    dataset.get_data_loaders()
    model.meta_begin_task(dataset)
    train_task(model, dataset, args)
    model.meta_end_task(dataset)
    dataset.get_data_loaders()
    model.meta_begin_task(dataset)
    batches = list(dataset.train_loader)
    spent: dict[str, list[float]] = {"forward": [], "backward": []}

    def timed(function: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            begin = time.process_time()
            out = function(*given, **named)
            spent[kind].append(time.process_time() - begin)
            return out

        return call

    model.net.forward = timed(model.net.forward, "forward")
    before = torch.Tensor.backward, torch.autograd.grad
    torch.Tensor.backward, torch.autograd.grad = (timed(f, "backward") for f in before)  # type: ignore[method-assign]
    try:
        took = seconds(lambda: [model.meta_observe(*batch[:3], epoch=0) for batch in batches[:steps]])
    finally:
        torch.Tensor.backward, torch.autograd.grad = before  # type: ignore[method-assign]
    return sum(map(sum, spent.values())) / took, len(spent["forward"]) / len(batches[:steps])


# ---- Avalanche's loop


def against_avalanche(backbone: str, rounds: int) -> tuple[float, float]:
    """Images per second of our ER, eager and compiled, relative to Avalanche's: its steps and ours in turn."""
    from PIL import Image

    from mammoth_sbs.packages import import_torchvision

    transforms = import_torchvision().transforms  # before Avalanche imports it
    from avalanche.benchmarks.scenarios.deprecated.generators import nc_benchmark
    from avalanche.core import SupervisedPlugin
    from avalanche.training.plugins import ReplayPlugin
    from avalanche.training.supervised import Naive

    from datasets.seq_cifar10 import SequentialCIFAR10

    class Pictures(torch.utils.data.Dataset):
        def __init__(self) -> None:
            images, labels = synthetic(STEPS[backbone] * BATCH // 2).train
            self.pictures = [Image.fromarray(image) for image in images.transpose(0, 2, 3, 1).copy()]
            self.targets = labels.tolist()

        def __len__(self) -> int:
            return len(self.targets)

        def __getitem__(self, i: int) -> tuple[Any, int]:
            return self.pictures[i], self.targets[i]

    change = transforms.Compose([
        transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
        transforms.Normalize(SequentialCIFAR10.MEAN, SequentialCIFAR10.STD)])
    benchmark = nc_benchmark(Pictures(), Pictures(), n_experiences=5, task_labels=False, shuffle=False,
                             train_transform=change, eval_transform=change)
    eager_steps, compiled_step = steps_of(*second_task("er", backbone)[:2]), compiled_loop("er", backbone)
    net = second_task("er", backbone)[0].net
    times: list[tuple[float, ...]] = []

    class Turns(SupervisedPlugin):
        """After each of their steps, one of ours and one of ours compiled."""

        since = 0.0

        def before_training_epoch(self, strategy: Any, **_: Any) -> None:
            self.since = time.process_time()

        def after_training_iteration(self, strategy: Any, **_: Any) -> None:
            took = time.process_time() - self.since
            if strategy.clock.train_exp_counter == 1:
                times.append((took, seconds(lambda: next(eager_steps)), compiled_step()))
            self.since = time.process_time()

    strategy = Naive(
        model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.01), train_mb_size=BATCH, train_epochs=1,
        plugins=[ReplayPlugin(BUFFER, batch_size=BATCH, batch_size_mem=BATCH), Turns()],
        evaluator=None)
    strategy.train(benchmark.train_stream[0])
    strategy.train_epochs = rounds
    strategy.train(benchmark.train_stream[1])
    later = times[len(times) // (rounds + 1):]
    eager, compiled = (median(turn[0] / turn[i] for turn in later) for i in (1, 2))
    return eager, compiled


# ---- Mammoth's loop


def worker(root: Path, data: str, method: str, backbone: str, rounds: int, more: str) -> None:
    """Train on a host; say when the second task begins; then an epoch, and its images per second, for each line."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.chdir(root)
    sys.path.insert(0, str(root))
    words = command(method, backbone, f"--n_epochs {rounds + 1} --debug_mode 1 --num_workers 0 "
                                      f"--base_path {data} {more}")
    sys.argv = ["main.py", *words]
    from mammoth_sbs.host.data import accept_exported
    from mammoth_sbs.packages import import_torchvision

    import_torchvision()  # even beside a CPU build of torch
    accept_exported()  # data that `mammoth-sbs` wrote for Mammoth
    spec = importlib.util.spec_from_file_location("mammoth_main", root / "main.py")
    assert spec is not None and spec.loader is not None
    main = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(main)
    import backbone as backbones

    if "tiny-resnet18" not in backbones.REGISTERED_BACKBONES:
        add_small_networks(backbones)
    torch.set_num_threads(1)
    model, dataset, args = main.initialize(main.parse_args())
    begin, observe, end = model.meta_begin_epoch, model.meta_observe, model.meta_end_epoch
    stamps: list[float] = []
    epochs: list[float] = []  # of the second task

    def meta_begin_epoch(*given: Any) -> None:
        if model.current_task == 1:
            if not epochs:
                print("ready", file=answer, flush=True)
            if not sys.stdin.readline():
                raise SystemExit
            epochs.append(time.process_time())
        stamps.clear()
        begin(*given)

    def meta_observe(*given: Any, **fields: Any) -> float:
        loss = observe(*given, **fields)
        stamps.append(time.process_time())
        return loss

    def meta_end_epoch(*given: Any) -> None:
        end(*given)
        if model.current_task == 1:  # without the first steps, in which Mammoth's loader processes start
            print(BATCH * (len(stamps) - 4) / (stamps[-1] - stamps[3]), file=answer, flush=True)

    model.meta_begin_epoch, model.meta_observe, model.meta_end_epoch = meta_begin_epoch, meta_observe, meta_end_epoch
    model.get_debug_iters = lambda: STEPS[backbone] + 4 if model.current_task else 6
    from utils.training import train

    train(model, dataset, args)


def add_small_networks(backbones: Any) -> None:
    """Our `small-resnet18` and `tiny-resnet18` from Mammoth's own parts: stages of one block, four or two of them."""
    from backbone.ResNetBlock import BasicBlock, ResNet

    def small(num_classes: int, num_filters: int = 32) -> torch.nn.Module:
        return ResNet(BasicBlock, [1, 1, 1, 1], num_classes, num_filters)

    def tiny(num_classes: int, num_filters: int = 16) -> torch.nn.Module:
        net = ResNet(BasicBlock, [1, 1, 1], num_classes, num_filters)
        net.layer3, net.classifier = torch.nn.Identity(), torch.nn.Linear(2 * num_filters, num_classes)
        return net

    for name, build in (("small-resnet18", small), ("tiny-resnet18", tiny)):
        build.__annotations__.update(num_classes=int, num_filters=int)  # Mammoth makes a flag's type of it
        backbones.register_backbone(name)(build)


def ours_against_mammoth(method: str, backbone: str, rounds: int) -> tuple[float, float]:
    """Images per second of our loop, eager and compiled, relative to Mammoth's."""
    from mammoth_sbs.host import EMBEDDED

    theirs = Path(os.environ["MAMMOTH_ROOT"]).resolve()
    data = str(Path(os.environ.get("MAMMOTH_DATA") or theirs / "data").resolve())
    python = os.environ.get("MAMMOTH_PYTHON") or sys.executable
    env = {key: value for key, value in os.environ.items() if key != "MAMMOTH_ROOT"} | {"CUDA_VISIBLE_DEVICES": ""}
    processes, ratios = [], []
    with tempfile.TemporaryFile("w+") as log:

        def answer(process: subprocess.Popen) -> str:
            line = process.stdout.readline()
            if not line:
                log.seek(0)
                sys.exit(f"error: {process.args[2:4]} ended too early:\n{log.read()[-3000:]}")
            return line

        def epoch(process: subprocess.Popen) -> float:
            process.stdin.write("go\n")
            process.stdin.flush()
            return float(answer(process))

        try:
            for interpreter, root, more in ((python, theirs, ""), (sys.executable, EMBEDDED, ""),
                                            (sys.executable, EMBEDDED, "--compile 1")):
                processes.append(subprocess.Popen(
                    [interpreter, __file__, str(root), data, method, backbone, str(rounds), more],
                    env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True))
                answer(processes[-1])  # one after the other: they would only get in each other's way
            for _ in range(rounds + 1):
                mammoths, eager, compiled = map(epoch, processes)
                ratios.append((eager / mammoths, compiled / mammoths))
        finally:
            for process in processes:  # there are more tasks, which nobody waits for
                process.kill()
                process.communicate()
    eager, compiled = map(median, zip(*ratios[1:], strict=True))  # the first round warms up
    return eager, compiled


if __name__ == "__main__":
    root, data, method, backbone, rounds, more = sys.argv[1:]
    worker(Path(root), data, method, backbone, int(rounds), more)
