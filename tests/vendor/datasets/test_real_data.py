"""The real data sets, if they are there."""

import time

import numpy as np
import pytest

from tests.conftest import SHARED_DATA

from datasets.utils import sources
from datasets.utils.sources import load

pytestmark = pytest.mark.skipif(not SHARED_DATA.is_dir(), reason=f"needs CIFAR100/ and TINYIMG/ in {SHARED_DATA}")


def test_real_cifar100() -> None:
    source = load("cifar100", str(SHARED_DATA))
    assert source.train.images.shape == (50000, 3, 32, 32) and source.test.images.shape == (10000, 3, 32, 32)
    assert len(source.classes) == 100 and source.classes[0] == "apple"
    sources._check(sources.SPECS["cifar100"], source)
    start = time.monotonic()
    load("cifar100", str(SHARED_DATA))
    assert time.monotonic() - start < 2


def test_real_tiny_imagenet() -> None:
    source = load("tinyimg", str(SHARED_DATA))
    assert source.train.images.shape == (20000, 3, 64, 64) and source.test.images.shape == (2000, 3, 64, 64)
    assert set(np.bincount(source.train.labels)) == {500} and set(np.bincount(source.test.labels)) == {50}
    assert len(source.classes) == 40 and source.classes[0] == "n02124075"
    assert np.allclose(source.train.images.mean((0, 2, 3)) / 255, (0.4824, 0.4485, 0.3904), atol=1e-4)
