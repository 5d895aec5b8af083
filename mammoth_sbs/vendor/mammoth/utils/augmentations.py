"""Image augmentation in plain torch: drawn per image, applied a batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

Transform = Callable[[Tensor], Tensor]


def there(x: Tensor, device: torch.device | str | None) -> Tensor:
    """`x` on a device. On the way to a GPU nobody waits, neither for the copy nor for what is still to do there."""
    return x.to(device, non_blocking=torch.device(device).type != "cpu") if device is not None else x


@cache
def constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """A number per channel, brought to a device once."""
    return torch.tensor(values, device=device)[:, None, None]


def to_float(x: Tensor) -> Tensor:
    """Pixels in [0, 1]."""
    return x.float().div_(255) if x.dtype == torch.uint8 else x


def apply_transform(x: Tensor, transform: Transform | None, autosqueeze: bool = False) -> Tensor:
    """A transform on a batch."""
    x = transform(x) if transform is not None else x
    return x[0] if autosqueeze and len(x) == 1 else x


def cutmix_data(x: Tensor, y: Tensor, alpha: float = 1.0, cutmix_prob: float = 0.5,
                force: bool = False) -> tuple[Tensor, Tensor, Tensor, float]:
    """CutMix (Yun et al., 2019), with probability `cutmix_prob`: a window of every image, whose area is Beta(alpha,
    alpha) distributed, comes from another. Returns images, both labels and the share of the first; `x` is changed."""
    if not force and np.random.rand() > cutmix_prob:
        return x, y, y, 1.0
    size, share = np.array(x.shape[2:]), np.sqrt(1 - np.random.beta(alpha, alpha))
    other = there(torch.randperm(len(x)), x.device)
    half, centre = (size * share).astype(int) // 2, np.random.randint(size)
    (top, left), (bottom, right) = np.clip(centre - half, 0, size), np.clip(centre + half, 0, size)
    x[:, :, top:bottom, left:right] = x[other, :, top:bottom, left:right]
    return x, y, y[other], float(1 - (bottom - top) * (right - left) / size.prod())


def random_crop(x: Tensor, padding: int, generator: Generator | None = None) -> Tensor:
    """Pad with zeros, then cut a window of the old size, elsewhere for every image."""
    height, width = x.shape[-2:]
    windows = F.pad(x, (padding,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    top, left = there(torch.randint(2 * padding + 1, (2, len(x)), generator=generator), x.device)
    return windows[torch.arange(len(x), device=x.device), :, top, left]


def random_flip(x: Tensor, generator: Generator | None = None) -> Tensor:
    """Mirror every second image, at random."""
    flip = there(torch.rand(len(x), generator=generator), x.device) < 0.5
    return torch.where(flip[:, None, None, None], x.flip(-1), x)


class Normalize:
    """(x - mean) / std per channel, from uint8 or from pixels in [0, 1]."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.mean, self.std = tuple(mean), tuple(std)

    def __call__(self, x: Tensor) -> Tensor:
        return to_float(x).sub(constant(self.mean, x.device)).div_(constant(self.std, x.device))


class DeNormalize(Normalize):
    """x * std + mean per channel."""

    def __call__(self, x: Tensor) -> Tensor:
        return x * constant(self.std, x.device) + constant(self.mean, x.device)


class Augment:
    """What training does to a batch: random crop, random flip, normalisation. The draws are the caller's to own."""

    def __init__(self, normalize: Normalize | None, padding: int = 0, flip: bool = False) -> None:
        self.normalize, self.padding, self.flip = normalize, padding, flip

    def __call__(self, x: Tensor, generator: Generator | None = None) -> Tensor:
        if self.padding:
            x = random_crop(x, self.padding, generator)
        if self.flip:
            x = random_flip(x, generator)
        return self.normalize(x) if self.normalize else to_float(x)


def _blend(a: Tensor, b: Tensor, weight: Tensor) -> Tensor:
    return (a * weight + b * (1 - weight)).clamp_(0, 1)


def _grey(x: Tensor) -> Tensor:
    return (x * constant((0.299, 0.587, 0.114), x.device)).sum(1, keepdim=True)


def _shift_hue(x: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue by `shift` (a fraction of the circle): RGB to hue and chroma and back."""
    value, top = x.max(1)
    chroma = value - x.min(1).values
    r, g, b = x.unbind(1)
    safe = chroma.clamp(min=1e-8)
    sector = torch.stack([((g - b) / safe) % 6, (b - r) / safe + 2, (r - g) / safe + 4], 1)
    hue = sector.gather(1, top[:, None])[:, 0] / 6 + shift.view(-1, 1, 1)
    k = (constant((5.0, 3.0, 1.0), x.device) + 6 * hue[:, None]) % 6
    return value[:, None] - chroma[:, None] * torch.minimum(k, 4 - k).clamp(0, 1)


class StrongAugment:
    """The augmentation of X-DER's consistency loss: flip, resized crop, colour jitter, greyscale, normalisation."""

    def __init__(self, normalize: Normalize | None, scale: tuple[float, float] = (0.2, 1.0)) -> None:
        self.normalize, self.scale = normalize, scale

    def __call__(self, x: Tensor) -> Tensor:
        x = self.resized_crop(random_flip(to_float(x)))
        if x.shape[1] == 3:
            x = self.colour(x)
        return self.normalize(x) if self.normalize else x

    def resized_crop(self, x: Tensor) -> Tensor:
        """A window of random area (`scale` of the image) and aspect (3/4 to 4/3), resized to the whole."""
        n = len(x)
        area = torch.empty(n).uniform_(*self.scale)
        aspect = torch.exp(torch.empty(n).uniform_(-0.2877, 0.2877))  # log(3/4), log(4/3)
        half_w, half_h = (area * aspect).sqrt().clamp(max=1), (area / aspect).sqrt().clamp(max=1)
        centre_x, centre_y = (1 - half_w) * (2 * torch.rand(n) - 1), (1 - half_h) * (2 * torch.rand(n) - 1)
        zero = torch.zeros(n)
        theta = torch.stack([half_w, zero, centre_x, zero, half_h, centre_y], 1).view(n, 2, 3)
        grid = F.affine_grid(there(theta, x.device), list(x.shape), align_corners=False)
        return F.grid_sample(x, grid, padding_mode="reflection", align_corners=False)

    @staticmethod
    def colour(x: Tensor) -> Tensor:
        """Brightness, contrast, saturation (0.6 to 1.4) and hue (a tenth) for four images in five; a fifth go grey."""
        n = len(x)

        def amount() -> Tensor:
            return there(torch.empty(n, 1, 1, 1).uniform_(0.6, 1.4), x.device)

        jittered = x
        for step in torch.randperm(4).tolist():
            if step == 0:
                jittered = (jittered * amount()).clamp_(0, 1)
            elif step == 1:
                jittered = _blend(jittered, _grey(jittered).mean((2, 3), keepdim=True), amount())
            elif step == 2:
                jittered = _blend(jittered, _grey(jittered), amount())
            else:
                jittered = _shift_hue(jittered, there(torch.empty(n).uniform_(-0.1, 0.1), x.device))
        keep, grey = there(torch.rand(2, n, 1, 1, 1).lt(0.2), x.device)
        x = torch.where(keep, x, jittered)
        return torch.where(grey, _grey(x), x)
