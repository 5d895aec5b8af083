"""Augmentations beside the loader's: X-DER's strong one against torchvision's and by what it leaves, and CutMix."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor

from mammoth_sbs.host import import_torchvision

from utils import augmentations
from utils.augmentations import Normalize, StrongAugment, apply_transform, cutmix_data, random_flip, there, to_float


@pytest.fixture
def pictures() -> Tensor:
    return torch.rand(40, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Of the four steps of colour jitter just one, for all images."""
    torch.manual_seed(0)

    def only(step: int) -> None:
        rand = torch.rand
        monkeypatch.setattr(torch, "randperm", lambda n: torch.tensor([step]))
        monkeypatch.setattr(torch, "rand", lambda *shape: torch.ones(shape) if len(shape) == 5 else rand(*shape))

    return only


@pytest.mark.parametrize("shift", [-0.1, -0.03, 0.0, 0.08])
def test_hue_turns_as_torchvisions(pictures: Tensor, shift: float) -> None:
    functional = import_torchvision().transforms.functional
    turned = augmentations._shift_hue(pictures, torch.full((40,), shift))
    torch.testing.assert_close(turned, functional.adjust_hue(pictures, shift), atol=1e-5, rtol=0)
    grey = pictures[:, :1].expand(-1, 3, -1, -1)
    torch.testing.assert_close(augmentations._shift_hue(grey, torch.full((40,), shift)), grey)


def test_every_image_has_a_hue_of_its_own(pictures: Tensor) -> None:
    functional = import_torchvision().transforms.functional
    shifts = torch.linspace(-0.5, 0.5, 40)
    for picture, shift, turned in zip(pictures, shifts, augmentations._shift_hue(pictures, shifts), strict=True):
        torch.testing.assert_close(turned, functional.adjust_hue(picture, float(shift)), atol=1e-5, rtol=0)


def test_grey_is_the_luminance_and_a_blend_stays_a_picture(pictures: Tensor) -> None:
    functional = import_torchvision().transforms.functional
    torch.testing.assert_close(augmentations._grey(pictures), functional.rgb_to_grayscale(pictures), atol=1e-3, rtol=0)
    a, b = torch.tensor([0.2, 0.9, 0.1]), torch.tensor([0.6, 0.5, 0.9])
    blended = augmentations._blend(a, b, torch.tensor([0.75, 2.0, 1.5]))
    torch.testing.assert_close(blended, torch.tensor([0.3, 1.0, 0.0]))  # 1.3 and -0.3 are no pixels


def uniform(values: Tensor, low: float, high: float) -> bool:
    return bool((values >= low - 1e-3).all() and (values <= high + 1e-3).all()) and \
        kstest(values.numpy(), "uniform", (low, high - low)).pvalue > 1e-3


def test_brightness(only: Callable[[int], None]) -> None:
    only(0)
    x = torch.rand(500, 3, 4, 4) * 0.5 + 0.1  # never clipped
    ratio = StrongAugment.colour(x) / x
    assert (ratio.flatten(1).max(1).values - ratio.flatten(1).min(1).values).max() < 1e-4  # one for the whole image
    assert uniform(ratio[:, 0, 0, 0], 0.6, 1.4)
    assert StrongAugment.colour(torch.ones(500, 3, 4, 4)).max() == 1


def test_contrast_and_saturation(only: Callable[[int], None]) -> None:
    x = 0.4 + 0.2 * torch.rand(500, 3, 4, 4)
    grey = augmentations._grey(x)
    for step, towards in ((1, grey.mean((2, 3), keepdim=True)), (2, grey)):
        only(step)
        amount = (StrongAugment.colour(x) - towards) / (x - towards)
        middle = amount.flatten(1).median(1).values  # where x is nearly what it goes towards, rounding is all there is
        assert uniform(middle, 0.6, 1.4)
        torch.testing.assert_close(StrongAugment.colour(towards.expand_as(x)), towards.expand_as(x))


def test_hue_by_a_tenth_at_the_most(only: Callable[[int], None]) -> None:
    only(3)
    red = torch.tensor([0.9, 0.1, 0.1]).view(1, 3, 1, 1).expand(500, 3, 2, 2)
    turned = StrongAugment.colour(red)[:, :, 0, 0]
    up, down = (turned[:, 1] - 0.1) / 4.8, (turned[:, 2] - 0.1) / 4.8  # towards yellow, towards magenta
    assert uniform(up - down, -0.1, 0.1) and bool(((up < 1e-4) | (down < 1e-4)).all())


def test_a_fifth_is_not_jittered_and_a_fifth_goes_grey(pictures: Tensor) -> None:
    torch.manual_seed(0)
    x = pictures.repeat(60, 1, 1, 1)
    found = StrongAugment.colour(x)
    untouched = (found == x).flatten(1).all(1).float().mean()
    grey = (found[:, 0] == found[:, 1]).flatten(1).all(1) & (found[:, 0] == found[:, 2]).flatten(1).all(1)
    assert abs(float(untouched) - 0.2 * 0.8) < 0.03 and abs(float(grey.float().mean()) - 0.2) < 0.03
    alike = (augmentations._grey(x) - found[:, :1]).flatten(1).abs().amax(1) < 1e-6
    assert abs(float((grey & alike).float().mean()) - 0.2 * 0.2) < 0.02  # grey, and not jittered before


def test_the_four_steps_come_in_any_order(pictures: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    randperm, orders = torch.randperm, []

    def watched(n: int) -> Tensor:
        orders.append(tuple(randperm(n).tolist()))
        return torch.tensor(orders[-1])

    torch.manual_seed(0)
    monkeypatch.setattr(torch, "randperm", watched)
    for _ in range(40):
        found = StrongAugment.colour(pictures[:2])
        assert found.min() >= 0 and found.max() <= 1
    assert len(set(orders)) > 12 and {tuple(sorted(order)) for order in orders} == {(0, 1, 2, 3)}


def windows(augment: StrongAugment, n: int = 1500) -> tuple[Tensor, ...]:
    """Halves and centres of the windows that were cut, in units of the image's half: read off pictures of places."""
    torch.manual_seed(0)
    places = (torch.arange(33) * 2 + 1) / 33 - 1
    x = torch.stack([places.expand(33, 33), places.unsqueeze(1).expand(33, 33)]).expand(n, 2, 33, 33)
    cut = augment.resized_crop(x)
    assert cut.shape == x.shape
    across, down = cut[:, 0, 16], cut[:, 1, :, 16]  # the middle row and column
    step = places[22] - places[10]
    return ((across[:, 22] - across[:, 10]) / step, (down[:, 22] - down[:, 10]) / step, across[:, 16], down[:, 16])


def test_a_window_has_a_random_area_aspect_and_place() -> None:
    width, height, x, y = windows(StrongAugment(None))
    whole = (width > 0.999) | (height > 0.999)  # cut off at the image's border
    assert whole.float().mean() < 0.3
    area, aspect = (width * height)[~whole], (width / height)[~whole]
    assert 0.19 < float(area.min()) < 0.22 and float((width * height).max()) <= 1.0001
    assert abs(float(area.median()) - 0.5) < 0.06 and abs(float((width * height).mean()) - 0.6) < 0.05
    assert 0.745 < float(aspect.min()) < 0.78 and 1.28 < float(aspect.max()) < 1.34
    assert abs(float(aspect.log().mean())) < 0.02
    for half, centre in ((width, x), (height, y)):
        room = (1 - half)[half < 0.95]
        place = centre[half < 0.95] / room
        assert uniform(place.clamp(-1, 1), -1, 1)
    assert abs(np.corrcoef(x.numpy(), y.numpy())[0, 1]) < 0.1


def test_the_scale_is_what_was_asked_for() -> None:
    width, height, *_ = windows(StrongAugment(None, scale=(0.3, 0.4)), 300)
    assert uniform(width * height, 0.3, 0.4)


def test_colours_are_for_pictures_of_three_channels_and_all_are_normalised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StrongAugment, "resized_crop", lambda self, x: x)
    monkeypatch.setattr(StrongAugment, "colour", staticmethod(lambda x: x / 2))
    grey, colour = (torch.full((4, n, 2, 2), 204, dtype=torch.uint8) for n in (1, 3))
    for x, was in ((grey, 0.8), (colour, 0.4)):
        torch.testing.assert_close(StrongAugment(None)(x), torch.full(x.shape, was))
        normalized = StrongAugment(Normalize([0.3] * x.shape[1], [0.5] * x.shape[1]))(x)
        torch.testing.assert_close(normalized, torch.full(x.shape, (was - 0.3) / 0.5))


def test_strong_augmentation_mirrors_every_second_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StrongAugment, "resized_crop", lambda self, x: x)
    torch.manual_seed(0)
    x = torch.arange(3.0).expand(400, 1, 2, 3)
    mirrored = (StrongAugment(None)(x)[:, 0, 0, 0] == 2).float().mean()
    assert abs(float(mirrored) - 0.5) < 0.1


# ---- CutMix

def test_cutmix_puts_a_window_of_another_image_into_each() -> None:
    np.random.seed(0), torch.manual_seed(0)
    shares = []
    for _ in range(200):
        x = torch.arange(6.0).view(6, 1, 1, 1).expand(6, 1, 10, 12).clone()
        mixed, first, second, share = cutmix_data(x, torch.arange(6) + 10, force=True)
        assert mixed is x and first.tolist() == list(range(10, 16)) and sorted(second.tolist()) == first.tolist()
        for i, image in enumerate(mixed[:, 0]):
            other = int(second[i]) - 10
            assert set(image.unique().tolist()) <= {float(i), float(other)}
            if other != i:
                assert float((image == i).float().mean()) == pytest.approx(share)
                inside = (image == other).nonzero()
                if len(inside):  # a rectangle
                    low, high = inside.min(0).values, inside.max(0).values
                    assert len(inside) == int((high - low + 1).prod())
        shares.append(share)
    assert 0.55 < np.mean(shares) < 0.8  # the window's area is uniform, but for what lies beyond the border
    assert min(shares) < 0.4 and max(shares) > 0.95


def test_the_size_of_cutmix_windows_follows_alpha() -> None:
    np.random.seed(0), torch.manual_seed(0)
    shares = [cutmix_data(torch.zeros(2, 1, 40, 40), torch.arange(2), alpha=200.0, force=True)[3] for _ in range(60)]
    assert all(0.45 < share <= 0.9 for share in shares)  # half of the image, or what of it lies inside


def test_cutmix_happens_with_its_probability() -> None:
    np.random.seed(0), torch.manual_seed(0)
    x, y = torch.rand(3, 1, 4, 4), torch.arange(3)
    for given, low, high in (({}, 0.4, 0.6), ({"cutmix_prob": 0.1}, 0.05, 0.16), ({"cutmix_prob": 1.0}, 1, 1)):
        mixed = 0
        for _ in range(300):
            images, first, second, share = cutmix_data(x.clone(), y, **given)
            if second is y:
                assert torch.equal(images, x) and first is y and share == 1
            else:
                mixed += 1
        assert low <= mixed / 300 <= high


# ---- small ones

def test_a_transform_on_a_batch_and_on_one_image() -> None:
    x = torch.rand(1, 3, 2, 2)
    assert torch.equal(apply_transform(x, lambda x: x * 2), x * 2) and apply_transform(x, None) is x
    assert torch.equal(apply_transform(x, lambda x: x * 2, autosqueeze=True), x[0] * 2)
    assert apply_transform(torch.rand(2, 3), None, autosqueeze=True).shape == (2, 3)


def test_bytes_become_parts_of_one_and_floats_stay() -> None:
    assert to_float(torch.tensor([0, 51, 255], dtype=torch.uint8)).tolist() == pytest.approx([0, 0.2, 1])
    x = torch.rand(3)
    assert to_float(x) is x and there(x, None) is x and there(x, "cpu") is x


def test_flips_are_drawn_from_the_generator_that_is_given() -> None:
    x = torch.arange(2.0).expand(50, 1, 1, 2)
    before = torch.get_rng_state()
    a, b = (random_flip(x, torch.Generator().manual_seed(seed)) for seed in (0, 0))
    assert torch.equal(a, b) and torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(a, random_flip(x, torch.Generator().manual_seed(1)))
