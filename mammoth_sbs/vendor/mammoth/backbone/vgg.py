"""VGG-16 with batch normalisation, for small images: one linear layer at the end."""

from __future__ import annotations

from torch import Tensor, nn

from backbone import MammothBackbone, register_backbone


class VGG(MammothBackbone):
    """Stages of 3x3 convolutions, each followed by pooling while the image can still be halved."""

    def __init__(self, stages: list[list[int]], num_classes: int, input_shape: tuple[int, int, int]) -> None:
        super().__init__()
        planes, size = input_shape[0], min(input_shape[1:])
        layers: list[nn.Module] = []
        for stage in stages:
            for width in stage:
                layers += [nn.Conv2d(planes, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True)]
                planes = width
            if size > 1:
                layers.append(nn.MaxPool2d(2))
                size //= 2
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.feature_dim = planes
        self.classifier = nn.Linear(planes, num_classes)

    def embed(self, x: Tensor) -> Tensor:
        return self.layers(x)


@register_backbone("vgg16")
def vgg16(num_classes: int, num_filters: int = 64, input_shape: tuple[int, int, int] = (3, 32, 32)) -> VGG:
    n = num_filters
    return VGG([[n] * 2, [2 * n] * 2, [4 * n] * 3, [8 * n] * 3, [8 * n] * 3], num_classes, input_shape)
