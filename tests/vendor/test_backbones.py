"""The networks: their outputs, sizes and convolutions."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize("name, shape, parameters", [
    ("resnet18", (3, 32, 32), 11_173_962), ("reduced-resnet18", (3, 32, 32), 1_094_750),
    ("small-resnet18", (3, 32, 32), None), ("tiny-resnet18", (3, 64, 64), None), ("vgg16", (3, 32, 32), None),
    ("mnistmlp", (1, 28, 28), 784 * 100 + 100 + 100 * 100 + 100 + 100 * 10 + 10)])
def test_networks_give_logits_features_or_both(name: str, shape: tuple, parameters: int | None) -> None:
    from backbone import get_backbone_class

    net = get_backbone_class(name)(num_classes=10, input_shape=shape).eval()
    if parameters is not None:
        assert sum(p.numel() for p in net.parameters()) == parameters
    x = torch.rand(2, *shape)
    with torch.no_grad():
        logits, features = net(x, returnt="both")
        assert logits.shape == (2, 10) and features.shape == (2, net.feature_dim)
        torch.testing.assert_close(net(x), logits)
        torch.testing.assert_close(net(x, returnt="features"), features)
        torch.testing.assert_close(net.classifier(features), logits)


@pytest.mark.parametrize("width, between", [(8, False), (16, False), (20, True), (64, False)])
def test_a_convolution_is_the_plain_one_whatever_layout_it_is_done_in(width: int, between: bool) -> None:
    import torch.nn.functional as F

    from backbone.ResNetBlock import Conv3x3

    layer = Conv3x3(width, 2 * width, 2)
    assert layer.between == between
    x = torch.randn(3, width, 8, 8, requires_grad=True)
    weight = torch.randn(3, 2 * width, 4, 4)
    outputs = layer(x), F.conv2d(x, layer.weight, stride=2, padding=1)
    ours, plain = ((out, *torch.autograd.grad((out * weight).sum(), [x, layer.weight])) for out in outputs)
    for one, other in zip(ours, plain, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)
    assert outputs[0].is_contiguous()  # what follows sees torch's usual layout
    assert between or torch.equal(*outputs)


def test_the_papers_small_and_tiny_networks_are_resnet18_divided() -> None:
    """Width and depth by two and by four: filters of the stem, and number of convolutions in blocks."""
    from torch import nn

    from backbone import get_backbone_class

    for name, filters, convolutions in (("resnet18", 64, 16), ("small-resnet18", 32, 8), ("tiny-resnet18", 16, 4)):
        net = get_backbone_class(name)(num_classes=10)
        blocks = [m for n, m in net.named_modules()
                  if isinstance(m, nn.Conv2d) and n.startswith("layer") and m.kernel_size == (3, 3)]
        assert (net.conv1.out_channels, len(blocks)) == (filters, convolutions)


@pytest.mark.parametrize("size, step", [((8, 8), 2), ((7, 5), 2), ((9, 6), 3), ((4, 4), 1)])
def test_thinning_takes_every_step_th_pixel_and_its_gradient_goes_back_there(size: tuple[int, int], step: int) -> None:
    """In a compiled shortcut: the values and gradients of a slice, and to the compiler the sizes that come out."""
    from backbone.ResNetBlock import Thinned

    x = torch.randn(3, 4, *size, requires_grad=True)
    ours, plain = Thinned.apply(x, step), x[:, :, ::step, ::step]
    assert torch.equal(ours, plain)
    weight = torch.randn_like(plain)
    gradients = [torch.autograd.grad((out * weight).sum(), x)[0] for out in (ours, plain)]
    assert torch.equal(*gradients)
    torch.library.opcheck(torch.ops.mammoth_sbs.spread.default, (weight, *size, step), test_utils="test_faketensor")
