"""`--compile 1`: the network between the images and its head, compiled by torch's inductor and kept in the cache.

A kind of network is compiled twice, for passes that learn and for those that do not, and never again: the number of
images is left open, and the code is made from a batch of fixed size, so that it does not depend on who came first.
"""

from __future__ import annotations

import fcntl
import hashlib
import inspect
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mammoth_sbs.errors import UserError
from mammoth_sbs.watch import say

from backbone import MammothBackbone
from datasets.utils.sources import cache_root

IMAGES = 64  # in the batch that code is made from: 32 new and 32 replayed
LEAVE_OUT = "leave out --compile"
ISA = "ONEDNN_MAX_CPU_ISA"
KNOWS_AMX = 11  # since this version g++ does, and so does clang
Pass = Callable[[MammothBackbone, Tensor], Tensor]
_known: dict[str, Compiled] = {}  # by kind of network: copies and further models of it share the code


class CannotCompile(UserError):
    """No compiler, or a network that it does not understand."""


class Compiled:
    """What a network's `embed` becomes: compiled where that is right, as it was elsewhere."""

    def __init__(self, embed: Pass, shape: tuple[int, ...], options: dict[str, Any]) -> None:
        self.eager, self.shape = embed, shape
        self.learn, self.ask = (_compile(embed, name, options) for name in ("learn", "ask"))

    def __call__(self, net: MammothBackbone, x: Tensor) -> Tensor:
        """`embed`. A single image is left to the eager network, which complains if it cannot learn from one."""
        fits = x.dtype is torch.float32 and x.shape[1:] == self.shape and len(x) > 1 and not x.requires_grad \
            and not torch.is_autocast_enabled(x.device.type)
        if not fits or (torch.is_grad_enabled() and not net.training):
            return self.eager(net, x)
        x = x.contiguous()
        if not net.training:
            return self.ask(net, x)
        with _untracked(net), torch.enable_grad():
            features = self.learn(net, x)
        return features if torch.is_grad_enabled() else features.detach()


def _compile(embed: Pass, name: str, options: dict[str, Any]) -> Pass:
    """A function of the network that will be compiled when it is called: a copy, for torch keeps code by function."""
    code: CodeType = embed.__code__.replace(co_name=f"{embed.__code__.co_name}_{name}")
    copy = FunctionType(code, embed.__globals__, code.co_name, closure=embed.__closure__)
    return torch.compile(copy, fullgraph=True, options=dict(options))  # it takes some of them out


def _options(net: MammothBackbone) -> dict[str, Any]:
    """What inductor is told. The number of threads is not written into the code: processes that search for q and s have
    one each. Loops run along channels, so vectors are no longer than the first layer, whose images are the largest, is
    wide: with 8 channels in vectors of 16, each value was handled by itself."""
    from utils.by_image import ByImage  # it imports torch's compiler, which takes seconds

    threads = torch.get_num_threads()
    return {"cpp.threads": threads, "cpp.dynamic_threads": threads > 1, "cpp.simdlen": 256 if _narrow(net) else None,
            "cpp.vec_isa_ok": _knows_all_vectors() or None, "guard_filter_fn": _guards,
            "joint_custom_pre_pass": ByImage()}


def _knows_all_vectors() -> bool:
    """Whether the compiler is new enough for every kind of vector that torch may use. If not, torch tries each that the
    processor has: programs that take a sixth of all the time that compiling takes."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    said = subprocess.run([get_cpp_compiler(), "-dumpversion"], capture_output=True, text=True).stdout
    major = said.partition(".")[0].strip()
    return major.isdecimal() and int(major) >= KNOWS_AMX


def _narrow(net: MammothBackbone) -> bool:
    """Whether the first layer, a convolution, would not fill this machine's vectors."""
    first = next(net.parameters())
    return first.dim() == 4 and len(first) < 16 and torch.backends.cpu.get_cpu_capability() == "AVX512"


@contextmanager
def _short_vectors() -> Iterator[None]:
    """For oneDNN's convolutions too, which pad 8 channels to 16. It asks at a process's first convolution, once and for
    all of them: the one of the trial, for a run compiles before it does anything else."""
    before = os.environ.get(ISA)
    os.environ.setdefault(ISA, "AVX2")
    try:
        yield
    finally:
        if before is None:
            del os.environ[ISA]


def _guards(entries: Any) -> list[bool]:
    """What torch is to look at before it takes the code it has. The number of images only decides on what is fast, and
    modes, which include the number of threads, are our own to tell apart."""
    return [entry.guard_type not in ("SHAPE_ENV", "GLOBAL_STATE") for entry in entries]


@contextmanager
def _untracked(net: nn.Module) -> Iterator[None]:
    """Batch normalisation that is not to learn (`bn_track_stats`) does so, and forgets it: the code stays the same."""
    layers = [m for m in net.modules() if isinstance(m, _BatchNorm)
              and m.running_mean is not None and not m.track_running_stats]
    if not layers:
        yield
        return
    statistics = [buffer for layer in layers for buffer in layer.buffers()]
    before = [buffer.clone() for buffer in statistics]
    for layer in layers:
        layer.track_running_stats = True
    try:
        yield
    finally:
        for buffer, value in zip(statistics, before, strict=True):
            buffer.copy_(value)
        for layer in layers:
            layer.track_running_stats = False


def compile_network(net: MammothBackbone, shape: tuple[int, ...]) -> None:
    """Let `net` run compiled code for images of `shape`, made now or found in the cache."""
    kind = _kind(net, shape)
    if kind not in _known:
        _check(net)
        with _alone(_folder(), kind, type(net).__name__):
            try:
                _known[kind] = _compiled(net, shape)
            except Exception as e:  # whatever torch does not understand
                reason = (str(e).strip().splitlines() or [type(e).__name__])[0]
                raise CannotCompile(f"--compile 1: {type(net).__name__} cannot be compiled ({reason}); "
                                    f"{LEAVE_OUT}") from e
    net.embed = MethodType(_known[kind], net)  # type: ignore[method-assign]


def _compiled(net: MammothBackbone, shape: tuple[int, ...]) -> Compiled:
    """Both passes, made by running each once on a copy of the network. No random number is used up."""
    from utils.one_file import one_file_per_graph  # it imports torch's compiler

    compiled, trial = Compiled(type(net).embed, shape, _options(net)), deepcopy(net)
    images = torch.zeros(IMAGES, *shape, device=next(net.parameters()).device)
    torch._dynamo.mark_dynamic(images, 0)
    vectors = _short_vectors() if _narrow(net) else nullcontext()
    with torch.random.fork_rng(), vectors, _kept_whole(), one_file_per_graph():
        compiled(trial.train(), images).sum().backward()
        with torch.no_grad():
            compiled(trial.eval(), images)
    return compiled


def _kept_whole() -> AbstractContextManager:
    """torch may keep the backward pass of a function of ours too (`Thinned`): it is part of the graph that it is kept
    under. Otherwise it would be derived anew in every process, for a second or two."""
    import torch._functorch.config as config

    flag = "autograd_cache_allow_custom_autograd_functions"
    return config.patch({flag: True}) if hasattr(config, flag) else nullcontext()


def _check(net: MammothBackbone) -> None:
    """What is known beforehand to fail."""
    if type(net).embed is MammothBackbone.embed:
        raise CannotCompile(f"--compile 1: {type(net).__name__} has no `embed`, which is what is compiled; {LEAVE_OUT}")
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except Exception:  # torch says so with several classes of its own
        raise CannotCompile("--compile 1: no C++ compiler found; install g++ or name one in CXX, "
                            f"or {LEAVE_OUT}") from None


def _kind(net: MammothBackbone, shape: tuple[int, ...]) -> str:
    """Networks of one kind run the same code."""
    files = [Path(__file__), Path(__file__).with_name("by_image.py"), Path(inspect.getfile(type(net)))]
    said = [f"{type(net).__module__}.{type(net).__qualname__}", repr(net), shape, torch.get_num_threads(),
            next(net.parameters()).device.type, torch.get_float32_matmul_precision(),
            *(file.read_bytes() if file.is_file() else b"" for file in files)]
    return hashlib.sha256(repr(said).encode()).hexdigest()[:16]


def _folder() -> Path:
    """Where torch keeps compiled code: a part of our cache for each processor and each torch."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines() if cpu.exists() else []
    machine = [line for line in lines if line.startswith(("model name", "flags", "Features"))]
    said = [torch.__version__, platform.machine(), sys.version_info[:2], *machine]
    folder = cache_root() / "compiled" / hashlib.sha256(repr(said).encode()).hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise CannotCompile(f"--compile 1: cannot write the cache {folder}: {e.strerror}; set MAMMOTH_SBS_CACHE to "
                            f"another folder, or {LEAVE_OUT}") from None
    return folder


@contextmanager
def _alone(folder: Path, kind: str, name: str) -> Iterator[None]:
    """One process at a time compiles a kind of network on a machine; who finds it compiled does not wait."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    done = folder / f"{kind}.done"
    if done.exists():
        yield
        return
    say(f"compiling {name}: a minute or two, once; kept in {folder.parent}")
    with open(folder / f"{kind}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        done.touch()

