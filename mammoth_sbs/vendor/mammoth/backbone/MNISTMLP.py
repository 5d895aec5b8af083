"""A perceptron with two hidden layers, for digits."""

from __future__ import annotations

import math

from torch import Tensor, nn

from backbone import MammothBackbone, register_backbone


class MNISTMLP(MammothBackbone):
    """Two hidden layers with ReLU; Xavier initialisation, zero biases."""

    def __init__(self, input_size: int, num_classes: int, hidden_size: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(input_size, hidden_size), nn.ReLU(),
                                    nn.Linear(hidden_size, hidden_size), nn.ReLU())
        self.feature_dim = hidden_size
        self.classifier = nn.Linear(hidden_size, num_classes)
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.xavier_uniform_(m.weight)
                nn.init.zeros_(m.bias)

    def embed(self, x: Tensor) -> Tensor:
        return self.layers(x)


@register_backbone("mnistmlp")
def mnistmlp(num_classes: int, mlp_hidden_size: int = 100,
             input_shape: tuple[int, int, int] = (1, 28, 28)) -> MNISTMLP:
    return MNISTMLP(math.prod(input_shape), num_classes, mlp_hidden_size)
