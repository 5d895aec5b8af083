"""ResNet-18 for small images (3x3 stem, no pooling before the blocks) and its narrower and shallower relatives."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backbone import MammothBackbone, register_backbone

Shape = tuple[int, int, int]

def _spread(pixels: Tensor, height: int, width: int, step: int) -> Tensor:
    image = _image(pixels, height, width, step).zero_()
    image[:, :, ::step, ::step] = pixels
    return image


def _image(pixels: Tensor, height: int, width: int, step: int) -> Tensor:
    return torch.empty(*pixels.shape[:2], height, width, dtype=pixels.dtype, device=pixels.device,
                       memory_format=torch.channels_last)


if not hasattr(torch.ops.mammoth_sbs, "spread"):  # beside a user's Mammoth this file is loaded once more
    OPERATORS = torch.library.Library("mammoth_sbs", "FRAGMENT")
    OPERATORS.define("spread(Tensor pixels, SymInt height, SymInt width, int step) -> Tensor",
                     tags=(torch.Tag.flexible_layout, torch.Tag.pt2_compliant_tag))
    OPERATORS.impl("spread", _spread, "CompositeExplicitAutograd")
    torch.library.register_fake("mammoth_sbs::spread", _image, lib=OPERATORS)


class Thinned(torch.autograd.Function):
    """Every `step`-th pixel. To a compiler its gradient is one operator: asking at each pixel of a loop whether it was
    taken costs more than the convolutions around it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, step: int) -> Tensor:
        ctx.size, ctx.step = x.shape[2:], step
        return x[:, :, ::step, ::step]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return torch.ops.mammoth_sbs.spread(grads[0], *ctx.size, ctx.step), None



class Conv3x3(nn.Conv2d):
    """A 3x3 convolution. A CPU's kernels for torch's usual layout pad channels to blocks of 8 or 16: for widths between
    (reduced-resnet18's 20) those for channels-last are so much faster that converting pays. Compiled networks are in
    channels-last throughout."""

    def __init__(self, in_planes: int, planes: int, stride: int) -> None:
        super().__init__(in_planes, planes, 3, stride, 1, bias=False)
        self.between = in_planes > 8 and in_planes % 8 > 0

    def forward(self, x: Tensor) -> Tensor:
        if self.between and x.device.type == "cpu" and not torch.compiler.is_compiling():
            return super().forward(x.contiguous(memory_format=torch.channels_last)).contiguous()
        return super().forward(x)


class Conv1x1(nn.Conv2d):
    """A 1x1 convolution of every `stride`-th pixel. In channels-last, as networks are compiled, torch 2.13's own
    strided one is slow, and with less than 8 channels its gradient writes beyond its arrays."""

    def __init__(self, in_planes: int, planes: int, stride: int) -> None:
        super().__init__(in_planes, planes, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return F.conv2d(Thinned.apply(x, self.stride[0]), self.weight)
        return super().forward(x)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, in_planes: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = Conv3x3(in_planes, planes, stride)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = Conv3x3(planes, planes, 1)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_planes != planes:
            self.shortcut = nn.Sequential(Conv1x1(in_planes, planes, stride), nn.BatchNorm2d(planes))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(out)).add_(self.shortcut(x)), inplace=True)


class ResNet(MammothBackbone):
    """A stem and one stage per entry of `blocks`; each stage after the first halves the image and doubles the width."""

    def __init__(self, blocks: list[int], num_classes: int, nf: int, input_shape: Shape = (3, 32, 32)) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(input_shape[0], nf, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(nf)
        planes = nf
        for stage, depth in enumerate(blocks):
            width = nf * 2**stage
            layers = []
            for i in range(depth):
                layers.append(BasicBlock(planes, width, 2 if stage and i == 0 else 1))
                planes = width
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layers))
        self.n_stages, self.feature_dim = len(blocks), planes
        self.classifier = nn.Linear(planes, num_classes)

    def embed(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        for stage in range(self.n_stages):
            out = getattr(self, f"layer{stage + 1}")(out)
        return F.avg_pool2d(out, out.shape[2]).flatten(1)


@register_backbone("resnet18")
def resnet18(num_classes: int, num_filters: int = 64, input_shape: Shape = (3, 32, 32)) -> ResNet:
    return ResNet([2, 2, 2, 2], num_classes, num_filters, input_shape)


@register_backbone("reduced-resnet18")
def reduced_resnet18(num_classes: int, input_shape: Shape = (3, 32, 32)) -> ResNet:
    """The narrow ResNet-18 of the GEM paper."""
    return ResNet([2, 2, 2, 2], num_classes, 20, input_shape)


@register_backbone("small-resnet18")
def small_resnet18(num_classes: int, num_filters: int = 32, input_shape: Shape = (3, 32, 32)) -> ResNet:
    """The SBS paper's Small ResNet: width and depth of ResNet-18 divided by two, that is one block per stage."""
    return ResNet([1, 1, 1, 1], num_classes, num_filters, input_shape)


@register_backbone("tiny-resnet18")
def tiny_resnet18(num_classes: int, num_filters: int = 16, input_shape: Shape = (3, 32, 32)) -> ResNet:
    """The SBS paper's Tiny ResNet: width and depth divided by four, that is two of the four stages, a block each."""
    return ResNet([1, 1], num_classes, num_filters, input_shape)
