"""The loops of a compiled graph go to the compiler in one file, and are the ones that torch would have made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import fresh_inductor_cache

from utils.one_file import Loops, one_file_per_graph

TWICE = """
#include <cmath>
extern "C" void kernel(const float* a, float* b, const int64_t n) { for (int64_t i = 0; i < n; ++i) b[i] = 2 * a[i]; }
"""
ROOTS = TWICE.replace("2 * a[i]", "std::sqrt(a[i])")
TYPES = ["const float*", "float*", "const int64_t"]


@pytest.fixture(autouse=True)
def nothing_compiled(tmp_path: Path) -> Iterator[None]:
    with fresh_inductor_cache(dir=str(tmp_path)):
        yield
    torch.compiler.reset()


def three_loops(x: Tensor, w: Tensor) -> Tensor:
    """Products of matrices are torch's own, what stands between them is not."""
    return (((x.sin() * 2) @ w).cos().cumsum(0) @ w).exp().sum(1)


def libraries(folder: Path) -> int:
    return len(list(folder.rglob("*.main.so")))


def test_one_library_for_a_graph_with_the_numbers_of_many(tmp_path: Path) -> None:
    x, w = torch.randn(40, 30), torch.randn(30, 30)
    with one_file_per_graph():
        ours = torch.compile(three_loops)(x, w)
    assert libraries(tmp_path) == 1
    torch.compiler.reset()
    (tmp_path / "alone").mkdir()
    with fresh_inductor_cache(dir=str(tmp_path / "alone")):
        alone = torch.compile(three_loops)(x, w)
        assert libraries(tmp_path / "alone") > 1
    assert torch.equal(ours, alone)


def test_loops_are_told_apart_and_know_their_arguments() -> None:
    twice, roots = Loops.load_all([(TYPES, TWICE), (TYPES, ROOTS)])
    a, b = torch.tensor([1.0, 4, 9]), torch.zeros(3)
    twice(a, b, 3)
    assert b.tolist() == [2, 8, 18]
    roots(a, b, 2)
    assert b.tolist() == [1, 2, 18]
    with pytest.raises(RuntimeError, match="requires 3 arguments"):
        roots(a, b)
    with pytest.raises(RuntimeError, match="expected int"):
        twice(a, b, "3")


def test_a_torch_that_does_it_otherwise_is_left_to_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(loops: object) -> None:
        raise TypeError("load_pybinding() got an unexpected argument")

    monkeypatch.setattr(Loops, "load_all", other)
    x, w = torch.randn(40, 30), torch.randn(30, 30)
    with one_file_per_graph():
        result = torch.compile(three_loops)(x, w)
    assert libraries(tmp_path) > 1
    assert torch.allclose(result, three_loops(x, w), rtol=1e-4)


def test_torch_is_as_it_was_afterwards(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), one_file_per_graph():
        _ = 1 / 0
    torch.compile(three_loops)(torch.randn(40, 30), torch.randn(30, 30))
    assert libraries(tmp_path) > 1
